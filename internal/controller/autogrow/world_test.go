//go:build integration

package autogrow

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/kubelet"
	"tarn.dev/tarn/internal/testkit"
)

func TestMain(m *testing.M) { testkit.QuietMain(m) }

// teller is the account as which kubelets are asked.
var teller = client.ObjectKey{Namespace: "tarn-system", Name: "tarn-stats"}

// world is an API server with one class that allows growth. The test acts as driver and kubelets.
type world struct {
	testkit.World
	name, namespace string
	kubelets        map[string]*fakeKubelet
	// authority has signed the certificates of the kubelets. If it is nil, nobody has.
	authority []byte
}

func newWorld(t *testing.T, name string) *world {
	t.Helper()
	w := &world{World: testkit.NewWorld(t, testkit.APIServer(t)), name: name, kubelets: map[string]*fakeKubelet{}}
	w.namespace = w.Namespace(name)
	w.PodsMayRun(w.namespace)
	w.Create(testkit.Class(name, func(c *storagev1.StorageClass) { c.AllowVolumeExpansion = ptr.To(true) }))
	return w
}

// fakeKubelet reports one claim. It believes the API server about tokens.
type fakeKubelet struct {
	w      *world
	server *httptest.Server

	mu                    sync.Mutex
	asked                 int
	claim                 string
	used, available, size int64
	at                    time.Time
}

// node makes a node with a kubelet.
func (w *world) node(name string) *fakeKubelet {
	w.T.Helper()
	k := &fakeKubelet{w: w}
	k.server = httptest.NewTLSServer(k)
	w.T.Cleanup(k.server.Close)
	host, port, err := net.SplitHostPort(k.server.Listener.Addr().String())
	w.Must(err)
	number, err := strconv.Atoi(port)
	w.Must(err)
	w.CreateWithStatus(testkit.Node(w.name+"-"+name, func(n *corev1.Node) {
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: host}}
		n.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(number)
	}))
	w.authority = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: k.server.Certificate().Raw})
	w.kubelets[name] = k
	return k
}

// ServeHTTP implements http.Handler.
func (k *fakeKubelet) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	if err := k.w.Client.Create(k.w.Ctx, review); err != nil || review.Status.User.Username != "system:serviceaccount:tarn-system:tarn-stats" {
		if k.w.Ctx.Err() == nil {
			k.w.T.Errorf("asked for %s by %q, %v", r.URL.Path, review.Status.User.Username, err)
		}
		rw.WriteHeader(http.StatusUnauthorized)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked++
	volume := map[string]any{
		"name": "v", "time": k.at.UTC().Format(time.RFC3339), "usedBytes": k.used, "availableBytes": k.available, "capacityBytes": k.size,
		"pvcRef": map[string]string{"namespace": k.w.namespace, "name": k.claim},
	}
	_ = json.NewEncoder(rw).Encode(map[string]any{"pods": []any{map[string]any{"volume": []any{volume}}}})
}

// measures sets the reading of a claim of 100Mi: so many mebibytes are in use, at a time.
func (k *fakeKubelet) measures(claim string, used int64, at time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.claim, k.used, k.available, k.size, k.at = claim, used*mi, max(0, 100-used)*mi, 100*mi, at
}

func (k *fakeKubelet) times() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.asked
}

// askedAgain waits until a kubelet has been asked so many more times.
func (k *fakeKubelet) askedAgain(more int) {
	k.w.T.Helper()
	want := k.times() + more
	k.w.Eventually("the kubelet being asked", func() string {
		if n := k.times(); n < want {
			return fmt.Sprintf("it was asked %d times, want %d", n, want)
		}
		return ""
	})
}

// claim makes a bound claim of 100Mi, with a pod that uses it on each node.
func (w *world) claim(name, setting string, nodes ...string) *corev1.PersistentVolumeClaim {
	w.T.Helper()
	claim := testkit.Claim(w.namespace, name, "", w.name, func(c *corev1.PersistentVolumeClaim) {
		if setting != "" {
			c.Annotations[tarnv1.AnnotationAutoGrow] = setting
		}
		c.Spec.VolumeName = w.name + "-" + name
		c.Spec.Resources.Requests, c.Status.Capacity = testkit.Storage("100Mi"), testkit.Storage("100Mi")
		c.Status.Phase = corev1.ClaimBound
	})
	w.CreateWithStatus(claim)
	for _, node := range nodes {
		w.CreateWithStatus(testkit.Pod(w.namespace, name+"-"+node, testkit.OnNode(w.name+"-"+node), testkit.Using(name), testkit.InPhase(corev1.PodRunning)))
	}
	return claim
}

// run starts the controller as its account.
func (w *world) run(config *rest.Config) (stop func()) {
	w.T.Helper()
	return w.Run(config, func(mgr ctrl.Manager) error {
		pods, err := kube.AllPods(mgr)
		if err != nil {
			return err
		}
		live, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme()})
		if err != nil {
			return err
		}
		asked := &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: w.authority}}
		asked.Wrap(kubelet.As(live, teller))
		kubelets, err := kubelet.New(asked, live)
		if err != nil {
			return err
		}
		return Register(mgr, Options{Namespace: "tarn-system", Pods: pods, Kubelets: kubelets, MaxConcurrent: 4, Period: 100 * time.Millisecond})
	})
}

// now reads a claim, and gives its request.
func (w *world) now(claim *corev1.PersistentVolumeClaim) string {
	w.T.Helper()
	w.Must(w.Client.Get(w.Ctx, client.ObjectKeyFromObject(claim), claim))
	request := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	return request.String()
}

// grows waits until a claim requests a size.
func (w *world) grows(claim *corev1.PersistentVolumeClaim, want string) {
	w.T.Helper()
	w.Eventually("growing", func() string {
		if size := w.now(claim); size != want {
			return "it requests " + size + ", want " + want
		}
		return ""
	})
}

// resized does the driver's work: the claim has what it requests.
func (w *world) resized(claim *corev1.PersistentVolumeClaim) {
	w.T.Helper()
	w.now(claim)
	claim.Status.Capacity = claim.Spec.Resources.Requests
	w.Must(w.Client.Status().Update(w.Ctx, claim))
}

// told gives the notes of the Events of a claim with a reason.
func (w *world) told(claim *corev1.PersistentVolumeClaim, reason string) []string {
	w.T.Helper()
	events := &corev1.EventList{}
	w.Must(w.Client.List(w.Ctx, events, client.InNamespace(w.namespace)))
	var notes []string
	for _, e := range events.Items {
		if e.InvolvedObject.UID == claim.UID && e.Reason == reason {
			notes = append(notes, e.Message)
		}
	}
	return notes
}

// isTold waits for an Event with a text.
func (w *world) isTold(claim *corev1.PersistentVolumeClaim, reason, text string) {
	w.T.Helper()
	w.Eventually("Event "+reason, func() string {
		notes := w.told(claim, reason)
		if !strings.Contains(strings.Join(notes, "\n"), text) {
			return fmt.Sprintf("%q does not say %q", notes, text)
		}
		return ""
	})
}
