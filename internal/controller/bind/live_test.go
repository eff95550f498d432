package bind

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/typed/core/v1"
	storagev1 "k8s.io/client-go/kubernetes/typed/storage/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"tarn.dev/tarn/internal/volume"
)

const (
	pathVolume = "/api/v1/persistentvolumes/a"
	pathClaim  = "/api/v1/namespaces/ns/persistentvolumeclaims/c"
	pathClass  = "/apis/storage.k8s.io/v1/storageclasses/gold"
)

// failing is the status that a server answers when it cannot return an object.
const failing = http.StatusInternalServerError

// liveReconciler returns a reconciler whose API server answers the given paths, and 404 for all
// others. asked lists the requested paths.
func liveReconciler(t *testing.T, b *cache, answers map[string]any) (r *reconciler, asked *[]string) {
	t.Helper()
	asked = &[]string{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		*asked = append(*asked, q.URL.Path)
		w.Header().Set("Content-Type", "application/json")
		answer, code := answers[q.URL.Path], http.StatusOK
		switch {
		case answer == nil:
			code = http.StatusNotFound
		case answer == failing:
			code = failing
		}
		if code != http.StatusOK {
			reason := map[int]metav1.StatusReason{http.StatusNotFound: metav1.StatusReasonNotFound}[code]
			answer = metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason}
		}
		w.WriteHeader(code)
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL}
	api, err := v1.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	storage, err := storagev1.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	newQueue := func() queue {
		return workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	}
	return &reconciler{watches: &watches{cache: b, claims: newQueue(), volumes: newQueue()}, api: api, classes: storage.StorageClasses()}, asked
}

func TestWhatACacheMayBeLateWithIsAskedOfTheAPIServer(t *testing.T) {
	bound := in(corev1.VolumeBound)
	ours := volumeOf("a", "1Gi", to("c", "u"), bound)
	completedClaim := claimOf("1Gi", completed("a", corev1.ClaimBound))
	lost := "Warning ClaimLost"
	for name, c := range map[string]struct {
		knows   []any
		answers map[string]any
		asked   []string
		wantErr bool
		// events and writes of the plan; both nil if nothing can be decided.
		want *done
		// woken says whether the claim is enqueued again at once.
		woken bool
	}{
		"case 59: a claim whose volume is gone": {
			knows: []any{completedClaim}, asked: []string{pathVolume}, want: &done{writes: []string{"claim/status"}, events: []string{lost}},
		},
		"case 59: one whose volume the watch has yet to tell of": {
			knows: []any{completedClaim}, answers: map[string]any{pathVolume: ours}, asked: []string{pathVolume},
		},
		"case 59: the API server cannot say": {
			knows: []any{completedClaim}, answers: map[string]any{pathVolume: failing}, asked: []string{pathVolume}, wantErr: true,
		},
		"case 59: a claim that is lost already": {knows: []any{claimOf("1Gi", completed("a", corev1.ClaimLost))}, want: &done{}},
		"case 61: a volume that points at it by now": {
			knows: []any{volumeOf("a", "1Gi", to("c", "")), completedClaim}, answers: map[string]any{pathVolume: volumeOf("a", "1Gi", to("c", "u"), bound, version("2"))},
			asked: []string{pathVolume},
		},
		"case 61: one that points at another": {
			knows: []any{volumeOf("a", "1Gi", to("d", "d"), bound), completedClaim}, answers: map[string]any{pathVolume: volumeOf("a", "1Gi", to("d", "d"), bound)},
			asked: []string{pathVolume}, want: &done{writes: []string{"claim/status"}, events: []string{"Warning ClaimMisbound"}},
		},
		"section 6.5: a volume written before": {
			knows: []any{ours, claimOf("1Gi")}, answers: map[string]any{pathVolume: ours}, asked: []string{pathVolume}, want: &done{writes: []string{"claim", "claim/status"}},
		},
		"section 6.5: one that points elsewhere by now": {
			knows: []any{ours, claimOf("1Gi")}, answers: map[string]any{pathVolume: volumeOf("a", "1Gi", to("d", "d"), bound, version("2"))},
			asked: []string{pathVolume}, woken: true,
		},
		"section 6.5: one that is gone by now": {
			knows: []any{ours, claimOf("1Gi")}, asked: []string{pathVolume}, woken: true,
		},
		"case 155: a plain match asks nothing": {
			knows: []any{volumeOf("a", "1Gi"), claimOf("1Gi")}, want: &done{writes: []string{"volume", "volume/status", "claim", "claim/status"}},
		},
		"case 155: nor does one with a class": {
			knows: []any{classOf("gold"), volumeOf("a", "1Gi", class("gold")), claimOf("1Gi", ofClass("gold"))},
			want:  &done{writes: []string{"volume", "volume/status", "claim", "claim/status"}},
		},
		"case 158: nor does a volume that was written in part": {
			knows: []any{volumeOf("a", "1Gi", to("c", "u"), in(corev1.VolumePending)), claimOf("1Gi")}, want: &done{writes: []string{"volume/status", "claim", "claim/status"}},
		},
		"a class that there is not": {
			knows: []any{volumeOf("a", "1Gi", class("gold")), claimOf("1Gi", ofClass("gold"))}, asked: []string{pathClass},
			want: &done{writes: []string{"volume", "volume/status", "claim", "claim/status"}},
		},
		"case 81: a class that waits, which the watch has yet to tell of": {
			knows:   []any{volumeOf("a", "1Gi", class("gold")), claimOf("1Gi", ofClass("gold"))},
			answers: map[string]any{pathClass: classOf("gold", waits)}, asked: []string{pathClass}, wantErr: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := booksOf(c.knows...)
			r, asked := liveReconciler(t, b, c.answers)
			v, err := r.gatherClaim(context.Background(), key)
			if (err != nil) != c.wantErr || !slices.Equal(*asked, c.asked) {
				t.Fatalf("asked %v with error %v, want %v and an error: %t", *asked, err, c.asked, c.wantErr)
			}
			switch {
			case v == nil && c.want == nil && len(b.locks) > 0:
				t.Errorf("volumes are still locked: %v", b.locks)
			case v == nil && c.want == nil && c.woken != (r.watches.claims.Len() > 0):
				t.Errorf("%d claims are woken, want one: %t", r.watches.claims.Len(), c.woken)
			case v == nil || c.want == nil:
				if v != nil || c.want != nil {
					t.Errorf("got view %+v, want to do %+v", v, c.want)
				}
			default:
				d := carryOut(planClaim(v), pair{claim: v.Claim, volume: v.volume()})
				if !slices.Equal(d.writes, c.want.writes) || !slices.Equal(d.events, c.want.events) {
					t.Errorf("writes %v with Events %v, want %v with %v", d.writes, d.events, c.want.writes, c.want.events)
				}
			}
		})
	}
}

func TestAClassThatThereIsNotIsAskedForOnce(t *testing.T) {
	b := booksOf(volumeOf("a", "1Gi", class("gold")), volumeOf("b", "1Gi", class("gold")), claimOf("1Gi", ofClass("gold")), otherClaim(ofClass("gold")))
	r, asked := liveReconciler(t, b, nil)
	for _, k := range []claimKey{key, other} {
		if v, err := r.gatherClaim(context.Background(), k); err != nil || v.Chosen == nil {
			t.Fatalf("claim %s: got %+v, %v, want a volume", k, v, err)
		}
	}
	if len(*asked) != 1 {
		t.Errorf("asked %v, want the class once", *asked)
	}
	b.classChanged(classOf("gold", waits))
	b.classDeleted(classOf("gold", waits))
	if b.classIsAbsent("gold") {
		t.Error("a class that came and went is still taken to be absent, and may have come again")
	}
}

func TestNothingIsReleasedWhileTheAPIServerCannotSay(t *testing.T) {
	b := booksOf(volumeOf("a", "1Gi", to("c", "u"), in(corev1.VolumeBound)))
	answers := map[string]any{pathClaim: failing}
	r, asked := liveReconciler(t, b, answers)
	for range 2 {
		v, err := r.gatherVolume(context.Background(), "a")
		if v != nil || err == nil || len(b.locks) > 0 {
			t.Fatalf("case 71: got %+v, %v and locks %v, want an error alone", v, err, slices.Collect(maps.Keys(b.locks)))
		}
	}
	delete(answers, pathClaim)
	v, err := r.gatherVolume(context.Background(), "a")
	if err != nil {
		t.Fatal(err)
	}
	d := carryOut(planVolume(v), pair{volume: v.Volume})
	if d.volume.Status.Phase != corev1.VolumeReleased || len(*asked) != 3 {
		t.Errorf("case 71: asked %d times, then the volume is %s; want 3 and Released", len(*asked), d.volume.Status.Phase)
	}
}

func TestAnAssignmentThatWasOvertakenIsDecidedAnew(t *testing.T) {
	b := booksOf(classOf("std", isDefault(0)), classOf("gold", by("gold.example")), claimOf("1Gi"))
	d, err := syncClaim(t, b)
	if err != nil || volume.ClassOf(d.claim) != "std" {
		t.Fatalf("the claim is given class %q, %v; want std", volume.ClassOf(d.claim), err)
	}
	b.markUncertain(key, "") // the write conflicted with another writer's, who set a class
	r, asked := liveReconciler(t, b, map[string]any{pathClaim: claimOf("1Gi", ofClass("gold"), claimVersion("2"))})
	v, err := r.gatherClaim(context.Background(), key)
	if err != nil || len(*asked) != 1 {
		t.Fatalf("case 98: asked %v, %v; want the claim", *asked, err)
	}
	d = carryOut(planClaim(v), pair{claim: v.Claim})
	if volume.ClassOf(d.claim) != "gold" || volume.ProvisionerOf(d.claim) != "gold.example" {
		t.Errorf("case 98: the claim has class %q and provisioner %q, want those of gold", volume.ClassOf(d.claim), volume.ProvisionerOf(d.claim))
	}
}

func TestAMatchThatWasOvertakenHalfWayIsStillCalledFree(t *testing.T) {
	var m match
	for _, c := range []struct {
		volume    string
		how, want Match
	}{{"a", MatchFree, MatchFree}, {"a", MatchReserved, MatchFree}, {"b", MatchReserved, MatchReserved}} {
		if got := m.as(c.volume, c.how); got != c.want {
			t.Errorf("volume %s, found %s, is called %s, want %s", c.volume, c.how, got, c.want)
		}
	}
}
