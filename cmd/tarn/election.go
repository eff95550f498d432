package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/cli"
	"tarn.dev/tarn/internal/controller/apps"
	"tarn.dev/tarn/internal/kube"
)

// electionFlags say how several controllers elect a leader.
//
// A standby asks for the lease every retry to 2.2 retries. It takes the lease when it has seen no
// renewal for the lease's duration. After a leader was killed, the next one leads after at most
// duration + 4.4 retries: 4.9 s with the defaults. A leader that ends cleanly releases the lease,
// and the next one leads within 2.2 retries.
type electionFlags struct {
	on                     bool
	duration, renew, retry time.Duration
}

func (f *electionFlags) register(flags *pflag.FlagSet) {
	flags.BoolVar(&f.on, "leader-elect", true, "run only while holding the lease tarn-controller, so that several replicas can run")
	flags.DurationVar(&f.duration, "leader-elect-lease-duration", 4*time.Second, "time without a renewal after which another controller takes over, in whole seconds. A longer time tolerates longer outages of the API server, but delays the takeover")
	flags.DurationVar(&f.renew, "leader-elect-renew-deadline", 2500*time.Millisecond, "how long a leader tries to renew its lease before it exits; at least a second and a retry period less than the lease duration")
	flags.DurationVar(&f.retry, "leader-elect-retry-period", 200*time.Millisecond, "how often the leader renews the lease and standbys try to acquire it")
}

// unseen is how much earlier than a lease's duration after its last renewal another controller may
// take it. Renewals are recorded in whole seconds, so standbys see only the first of several within
// one second.
const unseen = time.Second

// check rejects times with which two controllers could lead at once, or none could.
func (f *electionFlags) check() error {
	switch slowest := time.Duration(float64(f.retry) * leaderelection.JitterFactor); {
	case !f.on:
		return nil
	case f.duration%time.Second != 0 || f.duration <= 0:
		return fmt.Errorf("--leader-elect-lease-duration=%s: the duration must be whole seconds: use %s", f.duration, f.duration.Truncate(time.Second)+time.Second)
	case f.renew+f.retry > f.duration-unseen:
		return fmt.Errorf("--leader-elect-renew-deadline=%s: the leader could still run after another has acquired its lease of %s: use %s or less, or a longer lease", f.renew, f.duration, f.duration-unseen-f.retry)
	case f.retry <= 0 || f.renew <= slowest:
		return fmt.Errorf("--leader-elect-retry-period=%s: there must be time for a retry before the renew deadline of %s: use more than 0 and less than %s", f.retry, f.renew, time.Duration(float64(f.renew)/leaderelection.JitterFactor))
	}
	return nil
}

// apply makes a manager take part in the election. When it is told to end, it first ends its
// controllers and then releases the lease. When it loses the lease, the process exits at once,
// because another controller may already lead.
func (f *electionFlags) apply(o *ctrl.Options) {
	o.LeaderElection = f.on
	o.LeaderElectionID = kube.ControllerName
	o.LeaderElectionNamespace = cli.Namespace
	o.LeaderElectionReleaseOnCancel = true
	o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = ptr.To(f.duration), ptr.To(f.renew), ptr.To(f.retry)
}

// watched are the kinds that each controller watches, besides everyKind.
var watched = map[string][]client.Object{
	"accept":    {&pavv1.PavProvisioner{}, &storagev1.CSIDriver{}, &storagev1.CSINode{}, &storagev1.CSIStorageCapacity{}, &storagev1.StorageClass{}, &corev1.Node{}},
	"apps":      append(apps.Watched(), &storagev1.StorageClass{}),
	"autogrow":  {&corev1.Node{}, &storagev1.StorageClass{}},
	"expand":    {&pavv1.PavProvisioner{}},
	"inprocess": {&storagev1.StorageClass{}},
	"pavvolume": {&pavv1.PavProvisioner{}, &corev1.Node{}, &storagev1.StorageClass{}},
	"pool":      {&tarnv1.PersistentVolumeSet{}, &tarnv1.PersistentVolumeSetScaler{}, &storagev1.StorageClass{}, &pavv1.PavProvisioner{}, &corev1.Node{}},
	"recycle":   {&pavv1.PavProvisioner{}, &storagev1.VolumeAttachment{}},
	"stage":     {&policyv1.PodDisruptionBudget{}, &pavv1.PavProvisioner{}, &corev1.Node{}},
	"trash":     {&storagev1.StorageClass{}, &tarnv1.PersistentVolumeSet{}},
}

// everyKind are the kinds with possibly thousands of objects, which all controllers watch.
var everyKind = []client.Object{
	&corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}, &corev1.Pod{}, &tarnv1.PavVolume{}, &tarnv1.PavStage{},
}

// fillCaches makes a standby watch what its controllers will watch. So it need not read that when
// it takes over. It also becomes ready only if all resources and rights for that exist. Without an
// election, the controllers start watching at once by themselves.
func (f *electionFlags) fillCaches(ctx context.Context, from cache.Cache, selected []string) error {
	if !f.on {
		return nil
	}
	kinds := slices.Clone(everyKind)
	for _, name := range selected {
		kinds = append(kinds, watched[name]...)
	}
	for _, kind := range kinds {
		if _, err := from.GetInformer(ctx, kind, cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("watching %T: %w", kind, err)
		}
	}
	return nil
}
