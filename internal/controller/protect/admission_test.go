//go:build integration

package protect

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

// The accounts of controllers that delete volumes, or the contents of namespaces.
const (
	asController = "system:serviceaccount:tarn-system:tarn-controller"
	asCollector  = "system:serviceaccount:kube-system:namespace-controller"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// as is a client with another user name.
func as(t *testing.T, config *rest.Config, user string) client.Client {
	t.Helper()
	config = rest.CopyConfig(config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	return testkit.Client(t, config)
}

func protected(o client.Object) {
	o.SetLabels(map[string]string{tarnv1.LabelDeletionProtection: "true"})
}

// storage builds what the deletion guard protects; name is part of all names.
func storage(name string) (*corev1.Namespace, *corev1.PersistentVolumeClaim, *corev1.PersistentVolume, *tarnv1.PersistentVolumeSet) {
	claim := testkit.Claim(name, name, "", "none")
	claim.Annotations = nil
	spec := corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}, StorageClassName: "none",
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
	}
	vol := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: *spec.DeepCopy()}
	vol.Spec.HostPath = &corev1.HostPathVolumeSource{Path: "/nowhere/" + name}
	set := &tarnv1.PersistentVolumeSet{ObjectMeta: metav1.ObjectMeta{Name: name}}
	set.Spec.Selector = map[string]string{"set": name}
	set.Spec.Template.Metadata.Labels, set.Spec.Template.Spec = set.Spec.Selector, spec
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, claim, vol, set
}

func TestWhatIsProtectedFromDeletionIsDeletedByNobody(t *testing.T) {
	config := testkit.APIServer(t)
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Limit)
	defer cancel()
	admin := testkit.Client(t, config)
	grantDeletion(ctx, t, admin)
	namespace, claim, vol, set := storage("guarded")
	for _, o := range []client.Object{namespace, claim, vol, set} {
		if o != namespace {
			protected(o)
		}
		if o == claim { // one that Tarn has made, as the policy on its token lets it delete no other
			metav1.SetMetaDataLabel(&claim.ObjectMeta, tarnv1.LabelApp, "shop")
		}
		if err := admin.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	awaitGuard(ctx, t, admin, vol)
	for _, o := range []client.Object{claim, vol, set, namespace} {
		if o == namespace { // its claim protects it until here, its own label from now on
			if err := admin.Patch(ctx, o, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata": {"labels": {%q: "true"}}}`, tarnv1.LabelDeletionProtection))); err != nil {
				t.Fatal(err)
			}
			unprotect(ctx, t, admin, claim)
		}
		for user, c := range map[string]client.Client{"an administrator": admin, "Tarn": as(t, config, asController), "Kubernetes": as(t, config, asCollector)} {
			err := c.Delete(ctx, o)
			if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "kubectl label ") {
				t.Errorf("%s deletes %T: %v, want a refusal with the command that lifts it", user, o, err)
			}
		}
	}
	for _, o := range []client.Object{vol, set, namespace} {
		unprotect(ctx, t, admin, o)
		deleteUnprotected(ctx, t, admin, o)
	}
}

func TestTheCommandOfARefusalNamesTheObject(t *testing.T) {
	config := testkit.APIServer(t)
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Limit)
	defer cancel()
	admin := testkit.Client(t, config)
	namespace, claim, vol, set := storage("named")
	for _, o := range []client.Object{namespace, claim, vol, set} {
		if o != namespace {
			protected(o)
		}
		if err := admin.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	awaitGuard(ctx, t, admin, vol)
	for _, c := range []struct {
		o    client.Object
		want string
	}{
		{claim, "persistentvolumeclaims named/named is protected from deletion by its label tarn.dev/deletion-protection; to lift that: kubectl label persistentvolumeclaims named -n named tarn.dev/deletion-protection-"},
		{vol, "kubectl label persistentvolumes named tarn.dev/deletion-protection-"},
		{set, "kubectl label persistentvolumesets.tarn.dev named tarn.dev/deletion-protection-"},
		{namespace, "namespace named holds claim named, which is protected from deletion by its label tarn.dev/deletion-protection; to lift that: kubectl label persistentvolumeclaims named -n named tarn.dev/deletion-protection-"},
	} {
		if err := admin.Delete(ctx, c.o); err == nil || !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("deleting %T: %v, want it to end in %q", c.o, err, c.want)
		}
	}
	t.Run("Tarn's own resources go by tarn uninstall", func(t *testing.T) {
		for _, kind := range []string{"pavvolumes.tarn.dev", "apps.tarn.dev", "pavprovisioners.pav.albertofaria.github.io"} {
			crd := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"}}
			crd.Name = kind
			err := admin.Delete(ctx, crd, client.DryRunAll)
			if !apierrors.IsForbidden(err) || !strings.HasSuffix(err.Error(), "tarn uninstall") || !strings.Contains(err.Error(), kind) {
				t.Errorf("deleting the definition of %s: %v, want a refusal that names tarn uninstall", kind, err)
			}
		}
	})
	t.Run("a collection goes but for what is protected", func(t *testing.T) {
		_, other, _, _ := storage("named")
		other.Name = "plain"
		if err := admin.Create(ctx, other); err != nil {
			t.Fatal(err)
		}
		err := admin.DeleteAllOf(ctx, &corev1.PersistentVolumeClaim{}, client.InNamespace("named"))
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "claims named/named is protected") {
			t.Errorf("deleting all claims: %v, want a refusal that names the protected one", err)
		}
		if err := admin.Get(ctx, client.ObjectKeyFromObject(claim), claim); err != nil || claim.DeletionTimestamp != nil {
			t.Errorf("the protected claim is being deleted since %v (%v)", claim.DeletionTimestamp, err)
		}
	})
	t.Run("a namespace goes once its claims are protected no more", func(t *testing.T) {
		unprotect(ctx, t, admin, claim)
		deleteUnprotected(ctx, t, admin, namespace)
	})
}

// deleteUnprotected deletes an object whose protection was just removed. It retries, as the API
// server learns the contents of a namespace from a watch, a moment late.
func deleteUnprotected(ctx context.Context, t *testing.T, admin client.Client, o client.Object) {
	t.Helper()
	for {
		err := admin.Delete(ctx, o)
		if err == nil {
			return
		}
		if !apierrors.IsForbidden(err) || ctx.Err() != nil {
			t.Fatalf("deleting %T with the label gone: %v", o, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// awaitGuard waits until the API server has compiled the policies, which takes a moment. Then it
// rejects the deletion of protected objects, and of a namespace that contains some.
func awaitGuard(ctx context.Context, t *testing.T, admin client.Client, vol *corev1.PersistentVolume) {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: vol.Name}}
	for _, o := range []client.Object{vol, namespace} {
		for !apierrors.IsForbidden(admin.Delete(ctx, o, client.DryRunAll)) {
			if ctx.Err() != nil {
				t.Fatalf("the API server never began to refuse the deletion of %T %s", o, o.GetName())
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// unprotect does what a rejection tells the user to do.
func unprotect(ctx context.Context, t *testing.T, admin client.Client, o client.Object) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"metadata": {"labels": {%q: null}}}`, tarnv1.LabelDeletionProtection)
	if err := admin.Patch(ctx, o, client.RawPatch("application/merge-patch+json", patch)); err != nil {
		t.Fatal(err)
	}
}

// grantDeletion lets the accounts of controllers do what only the guard must prevent.
func grantDeletion(ctx context.Context, t *testing.T, admin client.Client) {
	t.Helper()
	subject := func(user string) rbacv1.Subject {
		return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}
	}
	for _, o := range []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "deleter"}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"", tarnv1.GroupVersion.Group}, Resources: []string{"*"}, Verbs: []string{"delete"}},
		}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "deleter"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "deleter"},
			Subjects:   []rbacv1.Subject{subject(asController), subject(asCollector)},
		},
	} {
		if err := client.IgnoreAlreadyExists(admin.Create(ctx, o)); err != nil {
			t.Fatal(err)
		}
	}
	for _, user := range []string{asController, asCollector} {
		testkit.Allowed(t, admin, authorizationv1.SubjectAccessReviewSpec{
			User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "delete", Resource: "persistentvolumes"},
		})
	}
}

// TestClaimsAndVolumesAreBornWithTheirFinalizers is case 154 of the binder's behaviour.
func TestClaimsAndVolumesAreBornWithTheirFinalizers(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
	}{
		{"by Tarn's policy", []string{"--kube-apiserver-arg=--disable-admission-plugins=ServiceAccount,StorageObjectInUseProtection"}},
		{"by Kubernetes' plugin, and not twice", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var config *rest.Config
			if c.args == nil {
				config = testkit.APIServer(t)
			} else {
				config = testkit.OwnAPIServer(t, c.args...)
			}
			born(t, testkit.Client(t, config))
		})
	}
}

func born(t *testing.T, admin client.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Limit)
	defer cancel()
	namespace, claim, vol, _ := storage("born")
	for trial := vol.DeepCopy(); len(trial.Finalizers) == 0; { // until the policy is compiled
		trial = vol.DeepCopy()
		if err := admin.Create(ctx, trial, client.DryRunAll); err != nil {
			t.Fatal(err)
		}
	}
	claim.Finalizers = []string{"example.org/other"}
	for _, o := range []client.Object{namespace, claim, vol} {
		if err := admin.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"example.org/other", "kubernetes.io/pvc-protection"}; !slices.Equal(claim.Finalizers, want) {
		t.Errorf("the claim is born with %q, want %q", claim.Finalizers, want)
	}
	if want := []string{"kubernetes.io/pv-protection"}; !slices.Equal(vol.Finalizers, want) {
		t.Errorf("the volume is born with %q, want %q", vol.Finalizers, want)
	}
	_, second, _, _ := storage("born")
	second.Name, second.Finalizers = "second", []string{"kubernetes.io/pvc-protection"}
	if err := admin.Create(ctx, second); err != nil || len(second.Finalizers) != 1 {
		t.Errorf("a claim that comes with its finalizer has %q (%v)", second.Finalizers, err)
	}
	t.Run("updates and subresources leave them alone", func(t *testing.T) {
		for _, o := range []client.Object{claim, vol} {
			o.SetFinalizers(nil)
			if err := admin.Update(ctx, o); err != nil || len(o.GetFinalizers()) != 0 {
				t.Errorf("an update gives %T finalizers %q (%v)", o, o.GetFinalizers(), err)
			}
			claim.Status.Phase, vol.Status.Phase = corev1.ClaimLost, corev1.VolumeAvailable
			if err := admin.Status().Update(ctx, o); err != nil || len(o.GetFinalizers()) != 0 {
				t.Errorf("an update of its status gives %T finalizers %q (%v)", o, o.GetFinalizers(), err)
			}
		}
	})
}
