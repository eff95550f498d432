//go:build integration

package pool

import (
	"fmt"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

// refusePods makes the API server reject filler pods, and waits until it does.
func (w *world) refusePods() {
	w.T.Helper()
	for _, text := range []string{
		`{kind: ValidatingAdmissionPolicy, spec: {matchConstraints: {resourceRules: [
			{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]}, validations: [
			{expression: "!object.metadata.name.startsWith('pool-')", reason: Forbidden}]}}`,
		`{kind: ValidatingAdmissionPolicyBinding, spec: {policyName: refuses-pods, validationActions: [Deny]}}`,
	} {
		o := &unstructured.Unstructured{}
		w.Must(yaml.Unmarshal([]byte(text), &o.Object))
		o.SetAPIVersion("admissionregistration.k8s.io/v1")
		o.SetName("refuses-pods")
		w.Create(o)
	}
	pod := fillerPod(&View{Set: set(1, 1), PauseImage: DefaultPauseImage}, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: "pool-try"}})
	pod.OwnerReferences = nil
	w.Eventually("refusing", func() string {
		if err := w.Client.Create(w.Ctx, pod.DeepCopy(), client.DryRunAll); !apierrors.IsForbidden(err) {
			return fmt.Sprintf("got %v, want a refusal", err)
		}
		return ""
	})
}

// reason expects a reason in the condition of a set.
func (w *world) reason(s *tarnv1.PersistentVolumeSet, want string) func() string {
	return func() string {
		w.read(s)
		if ready := meta.FindStatusCondition(s.Status.Conditions, tarnv1.ConditionReady); ready == nil || ready.Reason != want {
			return fmt.Sprintf("the set says %+v, want reason %s", ready, want)
		}
		return ""
	}
}

// add creates a volume as volumeOf builds it, with its phase.
func (w *world) add(s *tarnv1.PersistentVolumeSet, name string, changes ...testkit.With[*corev1.PersistentVolume]) *corev1.PersistentVolume {
	w.T.Helper()
	vol := volumeOf(s, w.name+"-"+name, changes...)
	vol.ResourceVersion, vol.UID = "", ""
	vol.Labels = merge(vol.Labels, map[string]string{"pool": w.name})
	vol.Spec.StorageClassName = w.name
	vol.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: w.name, VolumeHandle: vol.Name}
	w.Create(vol)
	return vol
}

func TestARefusedFillerPodKeepsNoVolumeHalfWay(t *testing.T) {
	w := newWorld(t, testkit.OwnAPIServer(t), "refused-pod", true)
	w.refusePods()
	s := w.set(1, 10)
	defer w.Run(w.Config)()
	w.Eventually("refusing the filler pod", w.reason(s, reasonRefused))
	freed := w.add(s, "freed", fillerOf(1))
	tenant := testkit.Claim("default", "tenant", "", w.name)
	w.Create(tenant)
	drawn := w.add(s, "drawn", fillerOf(2), boundTo(tenant.UID))
	w.Eventually("freeing one, and settling the other", func() string {
		for _, vol := range []*corev1.PersistentVolume{freed, drawn} {
			w.read(vol)
			if marked(vol) || vol.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
				return fmt.Sprintf("%s is marked: %v, its policy %s", vol.Name, marked(vol), vol.Spec.PersistentVolumeReclaimPolicy)
			}
		}
		return ""
	})
}

func TestAVolumeThatAClaimNamesIsNoSpareUntilTheClaimGoes(t *testing.T) {
	w := newWorld(t, testkit.OwnAPIServer(t), "named", false)
	s := w.set(0, 1)
	vol := w.add(s, "restored", nobodys)
	claim := testkit.Claim("default", "holder", "", w.name, func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = vol.Name })
	w.Create(claim)
	defer w.Run(w.Config)()
	w.Eventually("counting the volume as bound", func() string {
		w.read(s)
		if s.Status.BoundReplicas != 1 || s.Status.UnboundReplicas != 0 {
			return fmt.Sprintf("the set says %+v", s.Status)
		}
		return ""
	})
	w.edit(s, func(s *tarnv1.PersistentVolumeSet) { s.Spec.MaximumReplicas = 0 })
	w.Eventually("looking at it", func() string {
		w.read(s)
		if s.Status.ObservedGeneration != s.Generation {
			return "it has not been"
		}
		return ""
	})
	w.read(vol)
	if vol.Spec.ClaimRef != nil {
		t.Fatalf("the volume is given to %s, though a claim names it", vol.Spec.ClaimRef.Name)
	}
	w.Must(w.Client.Delete(w.Ctx, claim))
	w.Eventually("giving the volume up", func() string { return w.Gone(vol) })
}

func TestOnlyTarnMakesClaimsOfFillerClasses(t *testing.T) {
	config := testkit.APIServer(t)
	ctx, admin := t.Context(), testkit.Client(t, config)
	as := func(user string) client.Client {
		own := rest.CopyConfig(config)
		own.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
		return testkit.Client(t, own)
	}
	const tarn, tenant = "system:serviceaccount:tarn-system:tarn-controller", "tenant"
	if err := admin.Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "claims-for-all"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: tenant}, {APIGroup: rbacv1.GroupName, Kind: "User", Name: tarn}},
	}); err != nil {
		t.Fatal(err)
	}
	filler := testkit.Claim("default", "filler", "", "tarn-pool-gold")
	annotated := testkit.Claim("default", "annotated", "", "fast", func(c *corev1.PersistentVolumeClaim) {
		c.Annotations = map[string]string{corev1.BetaStorageClassAnnotation: "tarn-pool-gold"}
		c.Spec.StorageClassName = nil
	})
	named := testkit.Claim(testNamespace, "pool-x-0", "", "fast")
	cases := []struct {
		name, user string
		claim      *corev1.PersistentVolumeClaim
		refused    bool
	}{
		{"a tenant's claim of a filler class", tenant, filler, true},
		{"one by annotation", tenant, annotated, true},
		{"one with the name of a filler claim", tenant, named, true},
		{"a tenant's claim of another class", tenant, testkit.Claim("default", "pool-x-0", "", "gold"), false},
		{"Tarn's claim", tarn, testkit.Claim(testNamespace, "pool-y-0", "", "tarn-pool-gold"), false},
	}
	for _, user := range []string{tenant, tarn} {
		testkit.Allowed(t, admin, authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "*", Group: "*", Resource: "*"}})
	}
	for deadline := time.Now().Add(time.Minute); ; { // the API server takes a moment to compile policies
		if apierrors.IsForbidden(as(tenant).Create(ctx, filler.DeepCopy(), client.DryRunAll)) || time.Now().After(deadline) {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := as(c.user).Create(ctx, c.claim.DeepCopy(), client.DryRunAll)
			if apierrors.IsForbidden(err) != c.refused || !c.refused && err != nil {
				t.Errorf("got %v, want a refusal: %v", err, c.refused)
			}
		})
	}
	t.Run("a tenant may change what is one already, but not make one of what is none", func(t *testing.T) {
		late := testkit.Claim("default", "late", "", "", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil })
		for _, c := range []*corev1.PersistentVolumeClaim{filler, late} {
			if err := admin.Create(ctx, c); err != nil {
				t.Fatal(err)
			}
		}
		filler.Labels = map[string]string{"a": "b"}
		if err := as(tenant).Update(ctx, filler); err != nil {
			t.Errorf("a label of a filler claim: %v", err)
		}
		class := "tarn-pool-gold"
		late.Spec.StorageClassName = &class
		if err := as(tenant).Update(ctx, late); !apierrors.IsForbidden(err) {
			t.Errorf("a claim that gets a filler class later: %v, want a refusal", err)
		}
	})
}
