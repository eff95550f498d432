package steppod

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/jinja"
)

// maxLookups limits the reads from the API server in one evaluation.
const maxLookups = 100

// The functions of templates that read from the API server.
const (
	getClaim  = "get_pvc"
	getVolume = "get_pv"
)

// lookups are the functions get_pvc and get_pv of one evaluation. They read live, so that a
// template sees the present objects. An error of the API server is kept in transient: it is not the
// template's mistake and is not recorded.
type lookups struct {
	reader      client.Reader
	provisioner *pavv1.PavProvisioner
	own         string // namespace of the claim the volume is for
	transient   error
	calls       int
}

// addTo adds the functions to the variables of an evaluation.
func (l *lookups) addTo(vars map[string]any) {
	vars[getClaim], vars[getVolume] = ClaimLookup(l.claim), VolumeLookup(l.volume)
}

// ClaimLookup makes the template function get_pvc(name, namespace, default) of f.
func ClaimLookup(f jinja.Func) jinja.Function {
	return jinja.Function{Params: []string{"name", "namespace", "default"}, Required: 2, Strings: 2, Call: f}
}

// VolumeLookup makes the template function get_pv(name, default) of f.
func VolumeLookup(f jinja.Func) jinja.Function {
	return jinja.Function{Params: []string{"name", "default"}, Required: 1, Strings: 1, Call: f}
}

// claim is get_pvc(name, namespace, default). The engine has checked the arguments.
func (l *lookups) claim(ctx context.Context, args []any) (any, error) {
	name, _ := args[0].(string)
	namespace, _ := args[1].(string)
	for _, part := range []struct {
		what  string
		wrong []string
	}{{"name", validation.IsDNS1123Subdomain(name)}, {"namespace", validation.IsDNS1123Label(namespace)}} {
		if len(part.wrong) > 0 {
			return nil, fmt.Errorf("get_pvc(%q, %q): the %s is not valid: %s", name, namespace, part.what, part.wrong[0])
		}
	}
	claim := &corev1.PersistentVolumeClaim{}
	err := l.get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, claim)
	if !l.mayRead(namespace) && (apierrors.IsNotFound(err) || err == nil && !l.granted(claim)) {
		return nil, fmt.Errorf("get_pvc may not read namespace %q: spec.claimAccess is ClaimNamespace, and claim %q, if it exists, does not allow namespace %q by annotation %s",
			namespace, name, l.own, tarnv1.AnnotationReadableFrom)
	}
	if apierrors.IsNotFound(err) && len(args) > 2 {
		return args[2], nil
	}
	if err != nil {
		return nil, fmt.Errorf("get_pvc(%q, %q): %w", name, namespace, err)
	}
	return toObject(claim, corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"))
}

// volume is get_pv(name, default). A volume that it may not show counts as absent, so that its
// existence stays hidden.
func (l *lookups) volume(ctx context.Context, args []any) (any, error) {
	name, _ := args[0].(string)
	if wrong := validation.IsDNS1123Subdomain(name); len(wrong) > 0 {
		return nil, fmt.Errorf("get_pv(%q): the name is not valid: %s", name, wrong[0])
	}
	volume := &corev1.PersistentVolume{}
	err := l.get(ctx, client.ObjectKey{Name: name}, volume)
	switch {
	case apierrors.IsNotFound(err), err == nil && !l.shows(volume):
		if len(args) > 1 {
			return args[1], nil
		}
		where := ""
		if l.provisioner.Spec.ClaimAccess != pavv1.ClaimAccessAny {
			where = fmt.Sprintf(" of namespace %q", l.own)
		}
		return nil, fmt.Errorf("get_pv(%q): PavProvisioner %q has no volume of this name that is Bound to a claim%s", name, l.provisioner.Name, where)
	case err != nil:
		return nil, fmt.Errorf("get_pv(%q): %w", name, err)
	}
	return toObject(shown(volume), corev1.SchemeGroupVersion.WithKind("PersistentVolume"))
}

// mayRead says whether templates may read the claims of a namespace.
func (l *lookups) mayRead(namespace string) bool {
	return l.provisioner.Spec.ClaimAccess == pavv1.ClaimAccessAny || namespace == l.own
}

// granted says whether a claim of another namespace may be read.
func (l *lookups) granted(claim *corev1.PersistentVolumeClaim) bool {
	for _, name := range strings.Split(claim.Annotations[tarnv1.AnnotationReadableFrom], ",") {
		if name = strings.TrimSpace(name); name == "*" || name == l.own && name != "" {
			return true
		}
	}
	return false
}

// shows says whether templates may read a volume: it must be the provisioner's own, with a claim
// that they may read.
func (l *lookups) shows(v *corev1.PersistentVolume) bool {
	return v.Spec.CSI != nil && v.Spec.CSI.Driver == l.provisioner.Name &&
		v.Status.Phase == corev1.VolumeBound && v.Spec.ClaimRef != nil && l.mayRead(v.Spec.ClaimRef.Namespace)
}

// shown is the part of a volume that templates may read: no annotations, and no names of Secrets.
func shown(v *corev1.PersistentVolume) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: v.Name, UID: v.UID, Labels: v.Labels},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: v.Spec.Capacity, AccessModes: v.Spec.AccessModes, VolumeMode: v.Spec.VolumeMode,
			MountOptions: v.Spec.MountOptions, NodeAffinity: v.Spec.NodeAffinity,
			StorageClassName: v.Spec.StorageClassName, ClaimRef: v.Spec.ClaimRef,
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: v.Spec.CSI.Driver, VolumeHandle: v.Spec.CSI.VolumeHandle, FSType: v.Spec.CSI.FSType,
				VolumeAttributes: v.Spec.CSI.VolumeAttributes, ReadOnly: v.Spec.CSI.ReadOnly,
			}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: v.Status.Phase},
	}
}

// get reads an object, unless the evaluation has used up its reads.
func (l *lookups) get(ctx context.Context, key client.ObjectKey, into client.Object) error {
	if l.calls++; l.calls > maxLookups {
		return fmt.Errorf("get_pvc and get_pv were called more than %d times in one evaluation", maxLookups)
	}
	err := l.reader.Get(ctx, key, into)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
		l.transient = err
	}
	return err
}
