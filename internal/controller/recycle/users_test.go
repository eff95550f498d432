package recycle

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

// claimNaming is a claim whose spec.volumeName is vol; its UID is its name.
func claimNaming(namespace, name string, phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(noon)}}
	c.Spec.VolumeName, c.Status.Phase = "vol", phase
	return c
}

// runs is a pod p that has run on a node since a time, with a claim of its namespace.
func runs(namespace, claim string, since metav1.Time) *corev1.Pod {
	return testkit.Pod(namespace, "p", testkit.OnNode("n"), testkit.Using(claim), testkit.InPhase(corev1.PodRunning), func(p *corev1.Pod) { p.CreationTimestamp = since })
}

// recycler is the pod by which Kubernetes recycles volume vol.
func recycler(phase corev1.PodPhase) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "any", Name: "recycler-for-vol"}}
	p.Spec.Volumes = []corev1.Volume{{Name: "vol", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/shelf"}}}}
	p.Status.Phase = phase
	return p
}

// attached is a VolumeAttachment of the volume to node n; nil stands for an inline volume,
// without PersistentVolume.
func attached(vol *string) *storagev1.VolumeAttachment {
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a-" + ptr.Deref(vol, "inline")}}
	a.Spec.Attacher, a.Spec.NodeName, a.Spec.Source.PersistentVolumeName = "driver", "n", vol
	return a
}

// staged is the stage of a volume on node n.
func staged(vol string) *tarnv1.PavStage {
	return &tarnv1.PavStage{ObjectMeta: metav1.ObjectMeta{Name: "s-" + vol}, Spec: tarnv1.PavStageSpec{VolumeName: vol, NodeName: "n"}}
}

func TestWhatUsesAVolumeThatPointsAtAClaimThatIsGone(t *testing.T) {
	hostPath := view(func(v *View) {
		v.Volume.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/shelf"}}
	}).Volume
	scrub, elsewhere := volume.ScrubClaim(hostPath), recycler(corev1.PodRunning)
	elsewhere.Spec.Volumes[0].HostPath.Path = "/shelf/other"
	before, after := metav1.NewTime(noon.Add(-time.Minute)), metav1.NewTime(noon.Add(time.Minute))
	for _, c := range []struct {
		name    string
		objects []client.Object
		want    []string
	}{
		{"nothing", nil, nil},
		{"a pod of that claim", []client.Object{runs("default", "data", before)}, []string{"pod default/p"}},
		{"a claim that had it before the claimRef was rewritten, and its pod", []client.Object{claimNaming("a", "data", corev1.ClaimLost), runs("a", "data", after)},
			[]string{"claim a/data", "pod a/p"}},
		{"the same, before a binder has seen it", []client.Object{claimNaming("a", "data", corev1.ClaimBound), runs("a", "data", after)},
			[]string{"claim a/data", "pod a/p"}},
		{"a claim that had it, and no pod", []client.Object{claimNaming("a", "data", corev1.ClaimLost)}, []string{"claim a/data"}},
		{"a claim that waits for it to be scrubbed", []client.Object{claimNaming("a", "data", corev1.ClaimPending), runs("a", "data", after)}, nil},
		{"a pod of a claim that was removed by force, and waits for it anew", []client.Object{claimNaming("a", "data", corev1.ClaimPending), runs("a", "data", before)},
			[]string{"pod a/p"}},
		{"Kubernetes' recycler, which has no node yet", []client.Object{recycler(corev1.PodPending)}, []string{"Kubernetes' recycler, pod any/recycler-for-vol"}},
		{"Kubernetes' recycler, which has ended", []client.Object{recycler(corev1.PodSucceeded)}, nil},
		{"a pod of that name with another folder", []client.Object{elsewhere}, nil},
		{"an attachment, though nobody's pod is left", []client.Object{attached(ptr.To("vol"))}, []string{"an attachment to node n"}},
		{"attachments of something else", []client.Object{attached(ptr.To("other")), attached(nil)}, nil},
		{"a stage, though nobody's pod is left", []client.Object{staged("vol")}, []string{"stage s-vol on node n"}},
		{"a volume that is being made from it", []client.Object{copying("vol", tarnv1.VolumeCreating)}, []string{"volume pvc-u1, which is being made from it"}},
		{"a volume that was made from it", []client.Object{copying("vol", tarnv1.VolumeCreated)}, nil},
		{"a volume that is being made from another", []client.Object{copying("other", tarnv1.VolumeCreating)}, nil},
		{"a stage of another volume", []client.Object{staged("other")}, nil},
		{"its own scrub claim", []client.Object{claimNaming(testNamespace, scrub, corev1.ClaimPending), runs(testNamespace, scrub, after)}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := testkit.Store(c.objects...).WithObjects(hostPath.DeepCopy()).WithIndex(&corev1.PersistentVolume{}, indexClaim, claimOf).
				WithIndex(&corev1.Pod{}, metav1.ObjectNameField, func(o client.Object) []string { return []string{o.GetName()} }).Build()
			r := &reconciler{client: store, reader: store, claims: kube.Claims{Cached: store, Live: store}, namespace: testNamespace, image: testImage, ownBinder: true}
			v, err := r.gatherLive(t.Context(), "vol")
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(v.Users, c.want) {
				t.Errorf("used by %q, want %q", v.Users, c.want)
			}
			if waits := words(v, plan(v, noon)) == eventFailed; waits != (c.want != nil) {
				t.Errorf("the plan is %q", words(v, plan(v, noon)))
			}
			if len(c.objects) == 0 {
				return
			}
			if woken := r.mapUser(t.Context(), recycler(corev1.PodSucceeded)); len(woken) != 1 || woken[0].Name != "vol" {
				t.Errorf("the end of Kubernetes' recycler wakes %v", woken)
			}
			if woken := r.mapUser(t.Context(), runs("a", "data", after)); c.objects[0].GetNamespace() == "a" && len(woken) == 0 {
				t.Error("the end of the pod wakes nobody")
			}
		})
	}
}

func TestTheEndOfAnAttachmentOrAStageWakesItsVolume(t *testing.T) {
	for _, c := range []struct {
		name  string
		woken []reconcile.Request
		want  string
	}{
		{"an attachment", mapAttachment(t.Context(), attached(ptr.To("vol"))), "vol"},
		{"an attachment of no PersistentVolume", mapAttachment(t.Context(), attached(nil)), ""},
		{"a stage", mapStage(t.Context(), staged("vol")), "vol"},
	} {
		if !slices.Equal(c.woken, named(c.want)) {
			t.Errorf("%s wakes %v, want %q", c.name, c.woken, c.want)
		}
	}
}

func TestARecyclerIsKnownByTheSourceOfTheVolume(t *testing.T) {
	hostPath := func(path string) corev1.VolumeSource {
		return corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}
	}
	nfs := func(server, path string) corev1.VolumeSource {
		return corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: server, Path: path}}
	}
	folder := &corev1.PersistentVolumeSource{HostPath: hostPath("/a").HostPath}
	export := &corev1.PersistentVolumeSource{NFS: nfs("s", "/a").NFS}
	for _, c := range []struct {
		name   string
		pod    []corev1.VolumeSource
		source *corev1.PersistentVolumeSource
		want   bool
	}{
		{"the folder", []corev1.VolumeSource{nfs("s", "/a"), hostPath("/a")}, folder, true},
		{"another folder", []corev1.VolumeSource{hostPath("/b")}, folder, false},
		{"the export", []corev1.VolumeSource{nfs("s", "/a")}, export, true},
		{"that of another server", []corev1.VolumeSource{nfs("t", "/a")}, export, false},
		{"another of the server", []corev1.VolumeSource{nfs("s", "/b")}, export, false},
		{"a folder of the path of an export", []corev1.VolumeSource{hostPath("/a")}, export, false},
		{"nothing", nil, folder, false},
	} {
		pod := &corev1.Pod{}
		for _, source := range c.pod {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{VolumeSource: source})
		}
		if got := mounts(pod, c.source); got != c.want {
			t.Errorf("%s: got %t, want %t", c.name, got, c.want)
		}
	}
}

// copying is a record whose volume is made from a storage.
func copying(storage string, phase tarnv1.VolumePhase) *tarnv1.PavVolume {
	return testkit.Record(testkit.Claim("default", "copy", "u1", "prov"), "prov", phase, func(r *tarnv1.PavVolume) {
		r.Spec.Source = &tarnv1.PavVolumeSource{Storage: storage}
	})
}
