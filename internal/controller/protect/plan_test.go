package protect

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
)

// later is the earliest time of the next list, in plans that must wait for it.
var later = time.Unix(1000, 0)

func claimOf(name string, changes ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name + "-uid"), Finalizers: []string{FinalizerClaim}}}
	for _, change := range changes {
		change(c)
	}
	return c
}

func bare[O metav1.Object](o O)    { o.SetFinalizers([]string{"example.org/other"}) }
func deleted[O metav1.Object](o O) { o.SetDeletionTimestamp(ptr.To(metav1.Unix(1, 0))) }

func ownedBy(pod types.UID) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: pod, Controller: ptr.To(true)}}
	}
}

// podWith is a scheduled pod that uses claims, given by name.
func podWith(name string, claims ...string) corev1.Pod {
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name + "-uid")},
		Spec:       corev1.PodSpec{NodeName: "n", Volumes: []corev1.Volume{{Name: "e", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, claim := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}})
	}
	return pod
}

// ephemeral is a scheduled pod with one ephemeral volume.
func ephemeral(name, volume string) corev1.Pod {
	pod := podWith(name)
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}})
	return pod
}

func with(pod corev1.Pod, change func(*corev1.Pod)) corev1.Pod {
	change(&pod)
	return pod
}

func unscheduled(p *corev1.Pod) { p.Spec.NodeName = "" }

func inPhase(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

func shutDown(p *corev1.Pod) {
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds, p.Finalizers = ptr.To(metav1.Unix(1, 0)), ptr.To[int64](0), []string{"example.org/held"}
}

// written names what a plan writes.
func written(p Plan) []string {
	var names []string
	for _, a := range p.Actions {
		switch a := a.(type) {
		case action.AddFinalizer:
			names = append(names, "protect "+a.Object.GetName())
		case action.RemoveFinalizer:
			names = append(names, "release "+a.Object.GetName())
		default:
			names = append(names, fmt.Sprintf("%T", a))
		}
	}
	return names
}

func TestClaimsAreKeptWhileAPodUsesThem(t *testing.T) {
	dying := claimOf("x", deleted)
	cached := func(claim *corev1.PersistentVolumeClaim, pods ...corev1.Pod) *Namespace {
		return &Namespace{Claims: []Claim{{Claim: claim, Pods: pods}}}
	}
	live := func(claim *corev1.PersistentVolumeClaim, pods ...corev1.Pod) *Namespace {
		return &Namespace{Claims: []Claim{{Claim: claim}}, Listed: true, Live: pods}
	}
	for _, c := range []struct {
		name     string
		view     *Namespace
		want     []string
		wantList bool
	}{
		{"case 143: a claim without its finalizer gets it", cached(claimOf("x", bare)), []string{"protect x"}, false},
		{"case 143: one that has it costs no write", cached(claimOf("x")), nil, false},
		{"a claim being deleted that never had it is let be", cached(claimOf("x", bare, deleted)), nil, false},
		{"case 144: one that nothing uses is let go after a list", live(dying), []string{"release x"}, true},
		{"case 144: and not before", &Namespace{Claims: []Claim{{Claim: dying}}, ListAt: later}, nil, true},
		{"case 146: a scheduled pod in the cache keeps it, without a list", cached(dying, podWith("p", "x")), nil, false},
		{"case 146: a scheduled pod that only the API server knows keeps it", live(dying, podWith("p", "x")), nil, true},
		{"case 146: pods that use another claim, or none, do not", live(dying, podWith("p", "y"), podWith("q")), []string{"release x"}, true},
		{"case 147: a scheduled pod that has failed keeps it where nothing tells of its mounts", cached(dying, with(podWith("p", "x"), inPhase(corev1.PodFailed))), nil, false},
		{"case 147: one that has succeeded does too", live(dying, with(podWith("p", "x"), inPhase(corev1.PodSucceeded))), nil, true},
		{"case 148: an unscheduled pod does not", live(dying, with(podWith("p", "x"), unscheduled)), []string{"release x"}, true},
		{"case 148: nor is it believed to be unscheduled still", cached(dying, with(podWith("p", "x"), unscheduled)), nil, true},
		{"case 148: it was scheduled meanwhile", live(dying, podWith("p", "x")), nil, true},
		{"case 149: a pod of the old one's name keeps it", live(dying, with(podWith("p", "x"), func(p *corev1.Pod) { p.UID = "new" })), nil, true},
		{"case 150: the pod that owns it keeps it", cached(claimOf("p-v", deleted, ownedBy("p-uid")), ephemeral("p", "v")), nil, false},
		{"case 150: a pod that only has the name for it does not", live(claimOf("p-v", deleted), ephemeral("p", "v")), []string{"release p-v"}, true},
		{"case 150: nor does its owner once shut down, though a finalizer holds it", live(claimOf("p-v", deleted, ownedBy("p-uid")), with(ephemeral("p", "v"), shutDown)), []string{"release p-v"}, true},
		{"case 151: two pods use it", cached(dying, podWith("p", "x"), podWith("q", "x")), nil, false},
		{"case 151: one of two is gone", cached(dying, podWith("q", "x")), nil, false},
		{"case 145: a list that failed lets nothing go", &Namespace{Claims: []Claim{{Claim: dying}}, ListError: fmt.Errorf("refused")}, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := mustList(c.view); got != c.wantList {
				t.Errorf("mustList = %t, want %t", got, c.wantList)
			}
			p := planClaims(c.view)
			if got := written(p); !slices.Equal(got, c.want) {
				t.Errorf("plan = %q, want %q", got, c.want)
			}
			if !p.Next.Equal(c.view.ListAt) {
				t.Errorf("the next look is at %v, want %v", p.Next, c.view.ListAt)
			}
		})
	}
}

// Kubernetes keeps the claim of an ended pod, and so did the first version of Tarn's protection.
func TestAnEndedPodKeepsItsClaimWhileItMayBeMounted(t *testing.T) {
	const target = "/var/lib/kubelet/pods/%s/volumes/kubernetes.io~csi/v/mount"
	claim := claimOf("x", deleted)
	csi := volumeOf(corev1.VolumeBound, func(v *corev1.PersistentVolume) {
		v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "example.org", VolumeHandle: "h"}
	})
	path := volumeOf(corev1.VolumeBound, func(v *corev1.PersistentVolume) { v.Spec.HostPath = &corev1.HostPathVolumeSource{Path: "/x"} })
	ended := with(podWith("p", "x"), inPhase(corev1.PodSucceeded))
	failed := with(podWith("p", "x"), inPhase(corev1.PodFailed))
	running := with(failed, func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	})
	at := func(node string, targets ...string) []tarnv1.PavStage {
		s := tarnv1.PavStage{Spec: tarnv1.PavStageSpec{NodeName: node}}
		s.Status.Node.Targets = targets
		return []tarnv1.PavStage{s}
	}
	ahead := func(uid types.UID) []tarnv1.PavStage {
		return []tarnv1.PavStage{{Spec: tarnv1.PavStageSpec{NodeName: "n", AheadFor: &tarnv1.StageConsumer{UID: uid}}}}
	}
	of := func(uid string) string { return fmt.Sprintf(target, uid) }
	for _, c := range []struct {
		name   string
		volume *corev1.PersistentVolume
		staged bool
		stages []tarnv1.PavStage
		pods   []corev1.Pod
		// wantList says that the cache alone does not keep the claim, wantGone that nothing does.
		wantList, wantGone bool
	}{
		{"staged nowhere", csi, true, nil, []corev1.Pod{ended}, true, true},
		{"failed, staged nowhere", csi, true, nil, []corev1.Pod{failed}, true, true},
		{"mounted still", csi, true, at("n", of("p-uid")), []corev1.Pod{ended}, true, false},
		{"mounted still as a block device", csi, true, at("n", "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/v/p-uid"), []corev1.Pod{ended}, true, false},
		{"mounted still on a node that is not the pod's any more", csi, true, at("m", of("p-uid")), []corev1.Pod{ended}, true, false},
		{"mounted by another pod", csi, true, at("n", of("q-uid")), []corev1.Pod{ended}, true, true},
		{"mounted where no pod can be told, on its node", csi, true, at("n", "/somewhere"), []corev1.Pod{ended}, true, false},
		{"mounted where no pod can be told, elsewhere", csi, true, at("m", "/somewhere"), []corev1.Pod{ended}, true, true},
		{"a stage without a mount, which is being undone", csi, true, at("n"), []corev1.Pod{ended}, true, true},
		{"staged ahead for it", csi, true, ahead("p-uid"), []corev1.Pod{ended}, true, false},
		{"staged ahead for another", csi, true, ahead("q-uid"), []corev1.Pod{ended}, true, true},
		{"a container runs still as far as is known", csi, true, nil, []corev1.Pod{running}, false, false},
		{"another pod uses it and runs", csi, true, nil, []corev1.Pod{ended, podWith("q", "x")}, false, false},
		{"a driver that is not Tarn's", csi, false, nil, []corev1.Pod{ended}, false, false},
		{"a directory of the node", path, false, nil, []corev1.Pod{failed}, true, true},
		{"a directory of the node in a container that runs", path, false, nil, []corev1.Pod{running}, false, false},
		{"a claim without a volume", nil, false, nil, []corev1.Pod{ended}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			view := &Namespace{Claims: []Claim{{Claim: claim, Pods: c.pods, Volume: c.volume, Staged: c.staged}}}
			if got := mustList(view); got != c.wantList {
				t.Errorf("mustList = %t, want %t", got, c.wantList)
			}
			view.Listed, view.Live, view.Claims[0].Stages = true, c.pods, c.stages
			if got := written(planClaims(view)); (len(got) > 0) != c.wantGone {
				t.Errorf("plan = %q, want the claim released: %t", got, c.wantGone)
			}
			view.Live = append(slices.Clone(c.pods), podWith("late", "x"))
			if got := written(planClaims(view)); len(got) > 0 {
				t.Errorf("plan = %q though a pod that only the API server knows uses it", got)
			}
		})
	}
}

func TestClaimsOfANamespaceAreJudgedOneByOne(t *testing.T) {
	view := &Namespace{
		Claims: []Claim{
			{Claim: claimOf("bare", bare)},
			{Claim: claimOf("used", deleted), Pods: []corev1.Pod{podWith("p", "used")}},
			{Claim: claimOf("a", deleted)},
			{Claim: claimOf("b", deleted)},
			{Claim: claimOf("behind", deleted)},
		},
	}
	t.Run("case 145: what needs no list does not wait for one", func(t *testing.T) {
		view := *view
		view.ListError = fmt.Errorf("refused")
		if got, want := written(planClaims(&view)), []string{"protect bare"}; !slices.Equal(got, want) {
			t.Errorf("plan = %q, want %q", got, want)
		}
	})
	t.Run("case 144: one list serves all", func(t *testing.T) {
		view := *view
		view.Listed, view.Live = true, []corev1.Pod{podWith("p", "used"), podWith("q", "behind")}
		if got, want := written(planClaims(&view)), []string{"protect bare", "release a", "release b"}; !slices.Equal(got, want) {
			t.Errorf("plan = %q, want %q", got, want)
		}
	})
}

func volumeOf(phase corev1.PersistentVolumePhase, changes ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "v-uid", Finalizers: []string{FinalizerVolume}},
		Status:     corev1.PersistentVolumeStatus{Phase: phase},
	}
	for _, change := range changes {
		change(v)
	}
	return v
}

func pointing(uid types.UID) func(*corev1.PersistentVolume) {
	return func(v *corev1.PersistentVolume) {
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "x", UID: uid}
	}
}

func TestVolumesAreKeptWhileAClaimIsBoundToThem(t *testing.T) {
	boundTo := func(name string) *corev1.PersistentVolumeClaim {
		return claimOf("x", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = name })
	}
	for _, c := range []struct {
		name     string
		volume   *corev1.PersistentVolume
		claim    *corev1.PersistentVolumeClaim
		want     []string
		wantRead bool
	}{
		{"case 143: a volume without its finalizer gets it", volumeOf(corev1.VolumePending, bare), nil, []string{"protect v"}, false},
		{"case 143: one that has it costs no write", volumeOf(corev1.VolumeBound), nil, nil, false},
		{"a volume being deleted that never had it is let be", volumeOf(corev1.VolumeAvailable, bare, deleted), nil, nil, false},
		{"case 152: a Bound one is kept", volumeOf(corev1.VolumeBound, deleted, pointing("x-uid")), nil, nil, false},
		{"case 152: an Available one is let go", volumeOf(corev1.VolumeAvailable, deleted), nil, []string{"release v"}, false},
		{"case 152: a Failed one is let go", volumeOf(corev1.VolumeFailed, deleted, pointing("x-uid")), nil, []string{"release v"}, true},
		{"case 152: a Released one is let go once its claim is gone", volumeOf(corev1.VolumeReleased, deleted, pointing("x-uid")), nil, []string{"release v"}, true},
		{"ours: one whose claim names it is kept, whatever its phase", volumeOf(corev1.VolumeAvailable, deleted, pointing("x-uid")), boundTo("v"), nil, true},
		{"ours: one whose claim may be about to name it is kept", volumeOf(corev1.VolumeAvailable, deleted, pointing("x-uid")), boundTo(""), nil, true},
		{"ours: one whose claim has another is let go", volumeOf(corev1.VolumeReleased, deleted, pointing("x-uid")), boundTo("w"), []string{"release v"}, true},
		{"one that is reserved by name alone is let go", volumeOf(corev1.VolumeAvailable, deleted, pointing("")), nil, []string{"release v"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			view := &Volume{Volume: c.volume, Claim: c.claim}
			if got := mustRead(view); got != c.wantRead {
				t.Errorf("mustRead = %t, want %t", got, c.wantRead)
			}
			if got := written(planVolume(view)); !slices.Equal(got, c.want) {
				t.Errorf("plan = %q, want %q", got, c.want)
			}
		})
	}
}

func TestAThousandDeletionsShareAFewLists(t *testing.T) {
	p, now := newPace(), time.Unix(0, 0)
	var lists []time.Duration
	for began := now; now.Sub(began) <= 30*time.Second; now = now.Add(10 * time.Millisecond) {
		if !p.earliest("ns", now).After(now) {
			p.listed("ns", now)
			lists = append(lists, now.Sub(began))
		}
	}
	if len(lists) > 20 || lists[0] != 0 || lists[1] != firstPause || lists[len(lists)-1] < 28*time.Second {
		t.Errorf("deletions that go on for 30 s make lists at %v; want at most 20, the first at once, and none later than %v after the last", lists, lastPause)
	}
	if at := p.earliest("other", now); at.After(now) {
		t.Errorf("another namespace waits until %v at %v", at, now)
	}
	p.listed("other", now.Add(restAfter))
	if _, kept := p.beats["ns"]; kept {
		t.Errorf("a namespace at rest is not forgotten: %v", p.beats)
	}
}
