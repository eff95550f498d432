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

// electionFlags say how several controllers agree on the one that works.
//
// A controller that stands by asks for the lease every retry to 2.2 retries, and takes
// it when it has seen no renewal for the lease's duration. So it works at the latest
// duration + 4.4 retries after a leader was killed: 4.9 s with the defaults. A leader
// that ends in order gives the lease back, and is followed within 2.2 retries.
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

// unseen is how much sooner than a lease's duration after its last renewal another may
// take it: of several renewals within one second those who stand by see the first alone.
const unseen = time.Second

// check refuses times with which two controllers could lead at once, or none.
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

// apply makes a manager elect. It gives the lease back when it is told to end, after
// its controllers have ended; when it loses the lease it ends at once, and the process
// with it, as another may be at work already.
func (f *electionFlags) apply(o *ctrl.Options) {
	o.LeaderElection = f.on
	o.LeaderElectionID = kube.ControllerName
	o.LeaderElectionNamespace = cli.Namespace
	o.LeaderElectionReleaseOnCancel = true
	o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = ptr.To(f.duration), ptr.To(f.renew), ptr.To(f.retry)
}

// watched are the kinds that each controller watches, beside those of everyKind.
var watched = map[string][]client.Object{
	"accept":    {&pavv1.PavProvisioner{}, &storagev1.CSIDriver{}, &storagev1.CSINode{}},
	"apps":      append(apps.Watched(), &storagev1.StorageClass{}),
	"expand":    {&pavv1.PavProvisioner{}},
	"inprocess": {&storagev1.StorageClass{}},
	"pool":      {&tarnv1.PersistentVolumeSet{}, &tarnv1.PersistentVolumeSetScaler{}, &storagev1.StorageClass{}, &pavv1.PavProvisioner{}},
	"provision": {&pavv1.PavProvisioner{}},
	"reclaim":   {&pavv1.PavProvisioner{}, &corev1.Node{}},
	"recycle":   {&pavv1.PavProvisioner{}, &storagev1.VolumeAttachment{}},
	"stage":     {&policyv1.PodDisruptionBudget{}, &pavv1.PavProvisioner{}, &corev1.Node{}},
	"trash":     {&storagev1.StorageClass{}, &tarnv1.PersistentVolumeSet{}},
}

// everyKind is what there may be thousands of.
var everyKind = []client.Object{
	&corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}, &corev1.Pod{}, &tarnv1.PavVolume{}, &tarnv1.PavStage{},
}

// fillCaches makes a controller that stands by watch what its controllers will, so that
// it need not read that first when it takes over, and is ready only where it could: with
// all resources and rights there. Without an election the controllers themselves begin
// at once.
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
