//go:build integration

package cli

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appspec "tarn.dev/tarn/internal/app/spec"
	"tarn.dev/tarn/internal/testkit"
)

// appWorld is a namespace without apps, and a command line to create some. The test acts as the
// apps controller.
type appWorld struct {
	t         *testing.T
	client    client.WithWatch
	config    string
	namespace string
}

func newAppWorld(t *testing.T, name string) *appWorld {
	t.Helper()
	namespace := fmt.Sprintf("%s-%05x", name, rand.IntN(1<<20)) // a test may be run twice
	config := testkit.APIServer(t)
	w := &appWorld{t: t, client: testkit.Client(t, config), config: kubeconfig(t, config), namespace: namespace}
	w.must(w.client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))
	class := testkit.Class("grows-" + namespace)
	class.AllowVolumeExpansion = ptr.To(true)
	w.must(w.client.Create(t.Context(), class))
	w.must(w.client.Create(t.Context(), testkit.Class("stays-"+namespace, func(c *storagev1.StorageClass) { c.AllowVolumeExpansion = ptr.To(false) })))
	return w
}

func (w *appWorld) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// says runs the command line in the namespace, and checks its exit status and output. The output
// must contain each text, but not those with ! in front.
func (w *appWorld) says(wantStatus int, args string, texts ...string) {
	w.t.Helper()
	out, said, status := run(w.t, "", append(strings.Fields(args), "--kubeconfig", w.config, "--namespace", w.namespace)...)
	if status != wantStatus {
		w.t.Fatalf("tarn %s: exit status %d, want %d\n%s%s", args, status, wantStatus, out, said)
	}
	for _, text := range texts {
		absent, isAbsent := strings.CutPrefix(text, "!")
		if strings.Contains(out+said, absent) == isAbsent {
			w.t.Errorf("tarn %s: want %q in\n%s%s", args, text, out, said)
		}
	}
}

func (w *appWorld) file(text string) string {
	return writeFile(w.t, "paas.toml", strings.ReplaceAll(text, "NAMESPACE", w.namespace))
}

// claim creates the bound claim of an app's volume, as its controller does.
func (w *appWorld) claim(app, volume, class, size string, mode corev1.PersistentVolumeAccessMode) *corev1.PersistentVolumeClaim {
	w.t.Helper()
	claim := testkit.Claim(w.namespace, appspec.ClaimName(app, volume), "", class, func(c *corev1.PersistentVolumeClaim) {
		c.Labels = map[string]string{tarnv1.LabelApp: app, tarnv1.LabelAppVolume: volume}
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{mode}
		c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse(size)
	})
	w.must(w.client.Create(w.t.Context(), claim))
	w.bind(w.t.Context(), claim)
	return claim
}

// bind binds a claim, with the capacity that it requests.
func (w *appWorld) bind(ctx context.Context, claim *corev1.PersistentVolumeClaim) {
	w.t.Helper()
	claim.Status.Phase = corev1.ClaimBound
	claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]}
	if err := w.client.Status().Update(ctx, claim); err != nil {
		w.t.Error(err)
	}
}

// serve acts as the controller of an app: it sets the app to Ready each time its spec changes. It
// runs until the caller calls stop.
func (w *appWorld) serve(id string, look func(app *tarnv1.App)) (stop func()) {
	return w.serveAs(id, tarnv1.ReasonReady, "", look)
}

// serveAs is serve with another reason and message.
func (w *appWorld) serveAs(id, reason, message string, look func(app *tarnv1.App)) (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	changes, err := w.client.Watch(ctx, &tarnv1.AppList{}, client.InNamespace(w.namespace))
	w.must(err)
	go func() {
		defer close(done)
		for change := range changes.ResultChan() {
			app, is := change.Object.(*tarnv1.App)
			if !is || app.Name != id || app.Spec.Image == "" || app.Status.ObservedGeneration == app.Generation {
				continue
			}
			look(app)
			app.Status.ObservedGeneration, app.Status.ReadyReplicas = app.Generation, ptr.Deref(app.Spec.Replicas, 1)
			for _, kind := range []string{tarnv1.ConditionDeployed, tarnv1.ConditionReady} {
				is := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: app.Generation}
				if reason == tarnv1.ReasonReady || reason == tarnv1.ReasonPodsFailing && kind == tarnv1.ConditionDeployed {
					is.Status = metav1.ConditionTrue
				}
				meta.SetStatusCondition(&app.Status.Conditions, is)
			}
			_ = w.client.Status().Update(ctx, app) // a newer version is on its way
		}
	}()
	return func() { cancel(); changes.Stop(); <-done }
}

const shop = `[app]
name = "shop"
image = "registry.example/shop:1"

[[volumes]]
name = "data"
mountPath = "/data"
size = "10Gi"
storageClass = "grows-NAMESPACE"
preserveOnDelete = true
`

func TestAnAppIsPlannedDeployedScaledAndDeletedByCommand(t *testing.T) {
	t.Parallel()
	w := newAppWorld(t, "cli-app-life")
	file := w.file(shop)
	w.says(0, "app plan --file "+file, "create  data    10Gi", "paas-app-shop-data", "app shop: 1 pod")
	w.says(1, "app show shop", "app 'shop' not found")
	classless := w.file(strings.Replace(shop, "storageClass = \"grows-NAMESPACE\"\n", "", 1))
	w.says(0, "app plan --file "+classless, "ReadWriteOnce, by storage class 'ovh-csi-rbd'")
	w.says(0, "app plan --file "+classless+" --app-class rwo=grows-"+w.namespace, "ReadWriteOnce, by storage class 'grows-"+w.namespace+"'", "!which does not exist")
	w.says(1, "volume list --app-class rox=fast", "--app-class rox=fast: write it as rwo=CLASS,rwx=CLASS")
	stop := w.serve("shop", func(*tarnv1.App) {
		w.claim("shop", "data", "grows-"+w.namespace, "10Gi", corev1.ReadWriteOnce)
	})
	w.says(0, "app deploy --file "+file, "create  data", "app shop is Ready, 1 of 1 pod ready")
	stop()
	w.says(0, "app plan --file "+file, "keep    data", "!create  data")
	w.says(0, "app list", "shop  Ready   1/1   1        registry.example/shop:1")
	w.says(0, "app show shop", "image registry.example/shop:1", "/data", "kept", "paas-app-shop-data")
	w.says(1, "app scale shop 3", "cannot scale to 3 replicas: volume 'data' is ReadWriteOnce (max 1 replica). Re-create the volume with accessMode 'ReadWriteMany' to scale out.")
	stop = w.serve("shop", func(*tarnv1.App) {})
	w.says(0, "app scale shop 0", "app shop is Ready, 0 of 0 pods ready")
	stop()
	w.says(1, "app delete shop", "would delete app shop", "would keep volume data, 10Gi, claim paas-app-shop-data", "nothing was changed; to do it, add --yes")
	w.says(0, "app delete shop --yes", "app shop is deleted", "preserved: paas-app-shop-data")
	w.says(1, "app show shop", "app 'shop' not found")
}

func TestADeployOfAnAppThatFailsEndsWithItsLastWords(t *testing.T) {
	t.Parallel()
	w := newAppWorld(t, "cli-failing")
	defer w.serveAs("shop", tarnv1.ReasonPodsFailing, "pod p keeps ending, with exit code 3; it printed last:\nreading\nno config", func(*tarnv1.App) {})()
	w.says(1, "app deploy --file "+w.file(shop), "app shop is Failing, 1 of 1 pod ready: pod p keeps ending, with exit code 3; it printed last:\n  | reading\n  | no config\n",
		"app shop does not run as deployed; run tarn explain app "+w.namespace+"/shop to see why")
	w.says(0, "app list", "pod p keeps ending, with exit code 3", "!no config")
}

func TestWhatCannotBeDeployedIsToldWholeAndChangesNothing(t *testing.T) {
	t.Parallel()
	w := newAppWorld(t, "cli-app-refused")
	bad := w.file("[app]\nimage = \"a:1\"\nreplica = 2\n\n[[volumes]]\nname = \"data\"\nmountPath = \"data\"\nsize = \"1Gi\"\n")
	w.says(1, "app deploy shop --file "+bad, bad+":3:1: ", bad+":7:1: ", "replica")
	two := w.file(strings.Replace(shop, "image", "replicas = 2\nimage", 1))
	w.says(1, "app plan --file "+two, "refuse", "nothing is changed")
	w.says(1, "app deploy --file "+two, "cannot scale to 2 replicas: volume 'data' is ReadWriteOnce")
	w.says(0, "app list", "!shop")
	w.says(2, "app deploy --file "+w.file("[app]\nimage = \"a:1\"\n"), "does not name an app; give the app's ID as argument")
	w.says(1, "app deploy --file no-such-file", "no-such-file", "choose another file with --file")
	w.says(2, "app scale shop many", `PODS "many" is not a number of pods; write a whole number such as 3`)
	w.says(1, "app scale Shop 1", `app id "Shop" is not a valid name`)
}

func TestAVolumeIsGrownByCommand(t *testing.T) {
	t.Parallel()
	w := newAppWorld(t, "cli-volume")
	both := shop + "\n[[volumes]]\nname = \"logs\"\nmountPath = \"/logs\"\nsize = \"1Gi\"\nstorageClass = \"stays-NAMESPACE\"\n"
	var data *corev1.PersistentVolumeClaim
	stop := w.serve("shop", func(*tarnv1.App) {
		data = w.claim("shop", "data", "grows-"+w.namespace, "10Gi", corev1.ReadWriteOnce)
		w.claim("shop", "logs", "stays-"+w.namespace, "1Gi", corev1.ReadWriteOnce)
	})
	w.says(0, "app deploy --file "+w.file(both))
	stop()
	w.says(1, "volume resize shop data 5", "size must be strictly greater than current size (no shrink)")
	w.says(1, "volume resize shop data 2000Gi", "new_size_gi must be between 1 and 1000")
	w.says(1, "volume resize shop logs 5", "storage class 'stays-"+w.namespace+"' does not allow expansion")
	w.says(1, "volume resize shop nope 5", "volume 'nope' not found on app 'shop'")
	w.says(2, "volume resize shop data big", `SIZE "big" is not a valid size in GiB`)
	w.says(3, "volume resize shop data 20 --timeout 1s", "volume data of app shop is Resizing, 20Gi", "tarn explain app "+w.namespace+"/shop")
	stop = w.serve("shop", func(app *tarnv1.App) {
		w.must(w.client.Get(t.Context(), client.ObjectKeyFromObject(data), data))
		data.Spec.Resources.Requests[corev1.ResourceStorage] = *resource.NewQuantity(app.Spec.Volumes[0].SizeGi<<30, resource.BinarySI)
		if err := w.client.Update(t.Context(), data); err != nil {
			t.Error(err)
		}
		w.bind(t.Context(), data)
	})
	w.says(0, "volume resize shop data 30Gi --output json", `"status": "Bound"`, `"size_gi": 30`)
	stop()
	stop = w.serveAs("shop", tarnv1.ReasonRefused, "no room", func(*tarnv1.App) {})
	w.says(1, "volume resize shop data 40", "resizing volume 'data' of app 'shop': no room")
	stop()
	w.says(0, "volume list shop", "data    Bound   30Gi", "logs    Bound   1Gi")
	w.says(0, "app deploy --wait=false --file "+w.file(shop), "detach  logs")
	for _, c := range []struct{ args, want string }{
		{"app show", "shop"}, {"volume resize shop", "data"}, {"explain claim", "paas-app-shop-data"}, {"status --namespace", w.namespace},
	} {
		args := append(strings.Fields(c.args), "")
		if !strings.HasPrefix(c.args, "status") {
			args = slices.Insert(args, len(args)-1, "--namespace", w.namespace)
		}
		if got := proposed(t, slices.Insert(args, 1, "--kubeconfig", w.config)...); !slices.Contains(got, c.want) {
			t.Errorf("completing tarn %s: got %q, want %s in it", c.args, got, c.want)
		}
	}
	w.says(0, "volume list --output json", `"app": "shop"`, `"detached": true`, `"name": "logs"`)

	// With no pods, the command does not wait for a file system that grows with the next pod.
	defer w.serve("shop", func(app *tarnv1.App) {
		if app.Spec.Volumes[0].SizeGi != 50 {
			return
		}
		w.must(w.client.Get(t.Context(), client.ObjectKeyFromObject(data), data))
		data.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("50Gi")
		w.must(w.client.Update(t.Context(), data))
		data.Status.AllocatedResources = data.Spec.Resources.Requests
		data.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizePending}
		w.must(w.client.Status().Update(t.Context(), data))
	})()
	w.says(0, "app scale shop 0", "app shop is Ready, 0 of 0 pods ready")
	w.says(0, "volume resize shop data 50", "volume data of app shop is Resizing, 50Gi")
}
