package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// installed holds the objects of Tarn in a cluster.
type installed struct {
	provisioners []pavv1.PavProvisioner
	records      []tarnv1.PavVolume
	stages       []tarnv1.PavStage
	pools        []tarnv1.PersistentVolumeSet
	apps         []tarnv1.App
	// volumes are the volumes that Tarn's provisioners serve, and those in Tarn's trash.
	volumes []corev1.PersistentVolume
	// claims are the claims for which a plugin is creating a volume, and those by which Tarn has
	// volumes created or scrubbed.
	claims []corev1.PersistentVolumeClaim
	// alone are the controllers that run in place of Kubernetes' own, by the arguments of Tarn's
	// Deployment.
	alone []string
	// abandoned says that no controller of Tarn is running. So nothing destroys volumes, and
	// nothing removes Tarn's finalizers.
	abandoned bool
	// ended says that this command has ended the controllers.
	ended bool
	// strangers names the claims in Tarn's namespace that are not Tarn's.
	strangers []string
	// theirs names objects of others that keep Tarn's namespace. lost names those that are deleted
	// with the namespace. Both are gathered only before steps.
	theirs, lost []string
}

// gather reads everything without a cache. A kind that the API server does not serve has no
// objects, as after an interrupted uninstallation.
func (u *uninstaller) gather(ctx context.Context) (*installed, error) {
	provisioners, records, stages := &pavv1.PavProvisionerList{}, &tarnv1.PavVolumeList{}, &tarnv1.PavStageList{}
	pools, apps := &tarnv1.PersistentVolumeSetList{}, &tarnv1.AppList{}
	volumes, claims := &corev1.PersistentVolumeList{}, &corev1.PersistentVolumeClaimList{}
	for _, list := range []client.ObjectList{provisioners, records, stages, pools, apps, volumes, claims} {
		if err := u.client.List(ctx, list); err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("reading Tarn's objects: %w", err)
		}
	}
	in := &installed{
		provisioners: provisioners.Items, records: records.Items, stages: stages.Items, pools: pools.Items, apps: apps.Items,
		volumes: volumes.Items, abandoned: u.abandoned,
	}
	var err error
	if in.alone, err = u.inPlaceOfKubernetes(ctx); err != nil {
		return nil, err
	}
	names := in.drivers()
	in.volumes = slices.DeleteFunc(in.volumes, func(v corev1.PersistentVolume) bool { return !ofTarn(&v, names) && !volume.Held(&v) })
	for i := range claims.Items {
		if c := &claims.Items[i]; c.Namespace == Namespace && !errand(c) {
			in.strangers = append(in.strangers, c.Name)
		}
	}
	in.claims = slices.DeleteFunc(claims.Items, func(c corev1.PersistentVolumeClaim) bool {
		return !errand(&c) && !slices.Contains(c.Finalizers, tarnv1.FinalizerInProcess)
	})
	return in, nil
}

// inPlaceOfKubernetes names the controllers in Tarn's Deployment that run because Kubernetes' own
// are disabled. Without that Deployment, as with processes on hosts, nothing in the cluster shows
// it.
func (u *uninstaller) inPlaceOfKubernetes(ctx context.Context) ([]string, error) {
	d := &appsv1.Deployment{}
	err := u.client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: kube.ControllerName}, d)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the pods of Deployment %s: %w", kube.ControllerName, err)
	}
	for i := range d.Spec.Template.Spec.Containers {
		if c := &d.Spec.Template.Spec.Containers[i]; c.Name == "controller" {
			return substitutes(c.Args), nil
		}
	}
	return nil, nil
}

// substitutes reads the flag --controllers as `tarn controller` does. If it is given several times,
// all names count, and a name with a minus wins. The flag's default contains neither controller.
func substitutes(args []string) []string {
	flags := pflag.NewFlagSet("controller", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	words := flags.StringSlice("controllers", nil, "")
	if err := flags.Parse(args); err != nil {
		return nil // the controller does not start with these either
	}
	var found []string
	for _, name := range []string{"bind", "protect"} {
		if (slices.Contains(*words, "*") || slices.Contains(*words, name)) && !slices.Contains(*words, "-"+name) {
			found = append(found, name)
		}
	}
	return found
}

// withClaims adds to each volume's name the claim that it belonged to, as far as that is known.
func (in *installed) withClaims(volumes []string) []string {
	claims := map[string]string{}
	for i := range in.volumes {
		if ref := in.volumes[i].Spec.ClaimRef; ref != nil {
			claims[in.volumes[i].Name] = ref.Namespace + "/" + ref.Name
		}
	}
	for i := range in.records {
		claims[in.records[i].Name] = in.records[i].Spec.Claim.Namespace + "/" + in.records[i].Spec.Claim.Name
	}
	var named []string
	for _, name := range volumes {
		if claim := claims[name]; claim != "" {
			name += " of " + claim
		}
		named = append(named, name)
	}
	return named
}

// few lists the first of some names, and says how many more there are.
func few(names []string) string {
	const first = 5
	if more := len(names) - first; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:first], ", "), more)
	}
	return strings.Join(names, ", ")
}

// drivers returns the names of all provisioners, including those that were removed by force.
func (in *installed) drivers() map[string]bool {
	names := map[string]bool{}
	for i := range in.provisioners {
		names[in.provisioners[i].Name] = true
	}
	for i := range in.records {
		names[in.records[i].Spec.Provisioner.Name] = true
	}
	return names
}

// ofTarn says whether Tarn made a volume, or one of the drivers serves it.
func ofTarn(v *corev1.PersistentVolume, drivers map[string]bool) bool {
	return v.Spec.CSI != nil && drivers[v.Spec.CSI.Driver] || v.Annotations[tarnv1.AnnotationRecord] != "" ||
		strings.HasPrefix(v.Annotations[volume.AnnProvisionedBy], tarnv1.GroupVersion.Group+"/")
}

// leader names the controller that holds the lease and renews it, empty if there is none. A running
// controller renews its lease several times within the lease's duration. Its clock may differ from
// this one, so leader watches the lease for that long and does not compare times.
func (u *uninstaller) leader(ctx context.Context) (string, error) {
	var began time.Time
	var seen, holder string
	err := wait.PollUntilContextCancel(ctx, lookAgain, true, func(ctx context.Context) (bool, error) {
		lease := &coordinationv1.Lease{}
		err := u.client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: kube.ControllerName}, lease)
		if apierrors.IsNotFound(err) {
			holder = ""
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("finding the controller: %w", err)
		}
		if holder = ptr.Deref(lease.Spec.HolderIdentity, ""); holder == "" {
			return true, nil
		}
		if seen == "" {
			seen, began = lease.ResourceVersion, time.Now()
		}
		if lease.ResourceVersion != seen {
			return true, nil
		}
		if time.Since(began) > time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 4))*time.Second {
			holder = ""
			return true, nil
		}
		return false, nil
	})
	return holder, err
}
