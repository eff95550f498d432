package capacity

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
)

func object(name string, bytes int64, annotations map[string]string) *storagev1.CSIStorageCapacity {
	return &storagev1.CSIStorageCapacity{
		ObjectMeta:       metav1.ObjectMeta{Namespace: tarnv1.SystemNamespace, Name: name, Annotations: annotations},
		StorageClassName: "gold", Capacity: resource.NewQuantity(bytes, resource.BinarySI),
	}
}

func TestTheAgentWritesWhatIsFreeOfItsOwnNodeIfItHasMoved(t *testing.T) {
	root := t.TempDir()
	s, err := statfs(root, "/")
	if err != nil {
		t.Fatal(err)
	}
	now := int64(s.Bavail) * s.Frsize //nolint:gosec // it fits
	at := func(node, path, reserve string) map[string]string {
		return map[string]string{tarnv1.AnnotationNode: node, tarnv1.AnnotationCapacityPath: path, tarnv1.AnnotationCapacityReserve: reserve}
	}
	for name, c := range map[string]struct {
		object *storagev1.CSIStorageCapacity
		// moved changes the path while it is measured.
		moved  bool
		writes int
		wants  func(int64) bool
	}{
		"new":                {object("new", 1<<62, at("n1", "/pool/of/it", "")), false, 1, func(b int64) bool { return b > now/2 && b < now*2 }},
		"all reserved":       {object("reserved", 7, at("n1", "/", "8191Pi")), false, 1, func(b int64) bool { return b == 0 }},
		"not moved":          {object("same", 0, at("n1", "/", "8191Pi")), false, 0, func(b int64) bool { return b == 0 }},
		"of another node":    {object("other", 7, at("n2", "/", "")), false, 0, func(b int64) bool { return b == 7 }},
		"nothing to measure": {object("none", 7, map[string]string{tarnv1.AnnotationNode: "n1"}), false, 0, func(b int64) bool { return b == 7 }},
		"moved meanwhile":    {object("moved", 7, at("n1", "/", "")), true, 1, func(b int64) bool { return b == 7 }},
		"below a file":       {object("file", 7, at("n1", "/file/x", "")), false, 0, func(b int64) bool { return b == 7 }},
	} {
		if err := os.WriteFile(filepath.Join(root, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		writes := 0
		api := interceptor.NewClient(fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(c.object).Build(), interceptor.Funcs{
			Patch: func(ctx context.Context, w client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
				writes++
				if c.moved {
					other := c.object.DeepCopy()
					other.Annotations[tarnv1.AnnotationCapacityPath] = "/elsewhere"
					if err := w.Patch(ctx, other, client.MergeFrom(c.object)); err != nil {
						t.Error(err)
					}
				}
				return w.Patch(ctx, o, p, opts...)
			},
		})
		m := New(api, api, "n1")
		m.root = root
		result, err := m.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(c.object)})
		if err != nil || c.moved && (result.RequeueAfter == 0 || result.RequeueAfter == interval) {
			t.Errorf("%s: %v, again after %s", name, err, result.RequeueAfter)
		}
		got := &storagev1.CSIStorageCapacity{}
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(c.object), got); err != nil || !c.wants(got.Capacity.Value()) || writes != c.writes {
			t.Errorf("%s: %v bytes after %d writes (%v), %d are free", name, got.Capacity, writes, err, now)
		}
	}
}

func TestAStepThatEndsHasEachObjectMeasuredOnce(t *testing.T) {
	api := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(object("a", 1, nil), object("b", 1, nil)).Build()
	m := New(api, api, "n1")
	for range 3 { // none of them waits for a reader
		m.StepEnded()
	}
	if got := m.all(t.Context(), (<-m.steps).Object); len(got) != 2 || len(m.steps) != 0 {
		t.Errorf("%d steps wait, and enqueue %v, want one and both objects", len(m.steps)+1, got)
	}
}

func TestASymbolicLinkDoesNotLeadOutOfTheNodesRoot(t *testing.T) {
	root := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(root, "proc"), 0o700), os.Symlink("/proc", filepath.Join(root, "absolute")), os.Symlink("../../../../../../../proc", filepath.Join(root, "relative"))); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/absolute", "/relative", "/absolute/x/y", "/absent"} {
		if s, err := statfs(root, path); err != nil || s.Type == unix.PROC_SUPER_MAGIC {
			t.Errorf("%s: %v, file system %x", path, err, s.Type)
		}
	}
	if _, err := statfs(filepath.Join(root, "absent"), "/"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("without a root: %v", err)
	}
}
