package kubelet

import (
	"context"
	"encoding/pem"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// answer is a kubelet's report of two claims, a claim of another namespace, and a volume without a
// claim.
const answer = `{"node": {"nodeName": "a"}, "pods": [
	{"podRef": {"name": "p"}, "volume": [{"name": "v", "usedBytes": 7, "capacityBytes": 10, "pvcRef": {"name": "data", "namespace": "red"}}, {"name": "tmp", "usedBytes": 1}]},
	{"podRef": {"name": "q"}, "volume": [{"name": "v", "usedBytes": 9, "capacityBytes": 10, "pvcRef": {"name": "data", "namespace": "blue"}}, {"name": "w", "pvcRef": {"name": "unknown", "namespace": "red"}}]}]}`

// cluster is one node with one pod.
type cluster struct {
	client.Reader
	node corev1.Node
}

// List implements client.Reader.
func (c cluster) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if pods, is := list.(*corev1.PodList); is {
		pods.Items = []corev1.Pod{{Spec: corev1.PodSpec{NodeName: "a"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}, {Status: corev1.PodStatus{Phase: corev1.PodPending}}}
	}
	return nil
}

// Get implements client.Reader.
func (c cluster) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if node, is := o.(*corev1.Node); is {
		*node = c.node
	}
	return nil
}

// kubelet is a server that replaces a kubelet, with its node and the authority that has signed its
// certificate.
func kubelet(t *testing.T, handler http.HandlerFunc) (cluster, []byte) {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	host, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "a"}, {Type: corev1.NodeInternalIP, Address: host}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(number)
	return cluster{node: node}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

func TestAKubeletTellsHowFullTheVolumesOfClaimsAre(t *testing.T) {
	var asked atomic.Int32
	there, authority := kubelet(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.URL.Path != "/stats/summary" || r.Header.Get("Authorization") != "Bearer mine" {
			t.Errorf("asked for %s as %q", r.URL.Path, r.Header.Get("Authorization"))
		}
		_, _ = w.Write([]byte(answer))
	})
	k, err := New(&rest.Config{Host: "https://elsewhere", BearerToken: "mine", TLSClientConfig: rest.TLSClientConfig{CAData: authority, ServerName: "elsewhere"}}, there)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		used, err := k.Used(context.Background(), "red", nil)
		if want := map[string]Usage{"data": {Used: 7, Size: 10, Available: 3}}; err != nil || !maps.Equal(used, want) {
			t.Errorf("Used = %v, %v; want %v", used, err, want)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the kubelet was asked %d times within moments, want once", n)
	}
}

func TestAKubeletThatNobodyVouchesForIsShownNoToken(t *testing.T) {
	there, _ := kubelet(t, func(http.ResponseWriter, *http.Request) { t.Error("it was asked") })
	k, err := New(&rest.Config{BearerToken: "mine"}, there) // trusts the system's authorities, which have not signed it
	if err != nil {
		t.Fatal(err)
	}
	used, err := k.Used(context.Background(), "red", nil)
	if err == nil || !strings.Contains(err.Error(), "asking the kubelet of node a") || len(used) != 0 {
		t.Errorf("Used = %v, %v", used, err)
	}
	if _, err := New(&rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, there); err == nil {
		t.Error("certificates are not verified, and that is no error")
	}
}

func TestAKubeletThatSendsElsewhereIsNotFollowed(t *testing.T) {
	there, authority := kubelet(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/stats/summary" {
			t.Errorf("followed to %s", r.URL.Path)
		}
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	})
	k, err := New(&rest.Config{BearerToken: "mine", TLSClientConfig: rest.TLSClientConfig{CAData: authority}}, there)
	if err != nil {
		t.Fatal(err)
	}
	if used, err := k.Used(context.Background(), "red", nil); err == nil || len(used) != 0 {
		t.Errorf("Used = %v, %v", used, err)
	}
}

func TestTheNewestReadingOfAClaimCountsWithItsTime(t *testing.T) {
	there, authority := kubelet(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"pods": [
			{"volume": [{"time": "2026-11-29T18:00:07Z", "usedBytes": 7, "capacityBytes": 10, "availableBytes": 2, "pvcRef": {"name": "data", "namespace": "red"}}]},
			{"volume": [{"time": "2026-11-29T18:00:05Z", "usedBytes": 5, "capacityBytes": 10, "availableBytes": 4, "pvcRef": {"name": "data", "namespace": "red"}}]},
			{"volume": [{"time": null, "usedBytes": 5, "capacityBytes": 10, "pvcRef": {"name": "timeless", "namespace": "red"}}]}]}`))
	})
	verified, err := New(&rest.Config{BearerToken: "mine", TLSClientConfig: rest.TLSClientConfig{CAData: authority}}, there)
	if err != nil {
		t.Fatal(err)
	}
	unverified, err := NewInsecure(&rest.Config{BearerToken: "mine", TLSClientConfig: rest.TLSClientConfig{CAData: []byte("of another"), ServerName: "elsewhere"}}, there)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []*Kubelets{verified, unverified} {
		told, err := k.Node(t.Context(), &there.node)
		want := map[client.ObjectKey]Usage{
			{Namespace: "red", Name: "data"}:     {Used: 7, Size: 10, Available: 2, Time: time.Date(2026, 11, 29, 18, 0, 7, 0, time.UTC)},
			{Namespace: "red", Name: "timeless"}: {Used: 5, Size: 10, Available: 5},
		}
		if err != nil || !maps.Equal(told, want) {
			t.Errorf("Node = %v, %v; want %v", told, err, want)
		}
	}
}

func TestAVolumeIsNotFullBecauseItsDriverDoesNotSayWhatIsAvailable(t *testing.T) {
	for name, c := range map[string]struct{ reported, used, want int64 }{
		"said":                          {700, 200, 700},
		"not said, empty":               {0, 0, 1000},
		"not said, in use":              {0, 850, 150},
		"full but for root's reserve":   {0, 950, 0},
		"full":                          {0, 1000, 0},
		"more in use than there can be": {0, 1001, 0},
	} {
		if got := available(c.reported, c.used, 1000); got != c.want {
			t.Errorf("%s: %d bytes are available, want %d", name, got, c.want)
		}
	}
}
