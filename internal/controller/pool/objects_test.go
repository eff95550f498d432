package pool

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

func TestTheStorageThatStaysIsNamed(t *testing.T) {
	for _, c := range []struct {
		source corev1.PersistentVolumeSource
		node   string
		want   string
	}{
		{corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}}, "", `driver d, handle "h"`},
		{corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/srv/a"}}, "n", "local path /srv/a on node n"},
		{corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv/a"}}, "", "host path /srv/a"},
		{corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/a"}}, "", "NFS export s:/a"},
		{corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{TargetPortal: "p", IQN: "q"}}, "", `source {"iscsi":{"targetPortal":"p","iqn":"q","lun":0}}`},
	} {
		vol := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: c.source}}
		if c.node != "" {
			metav1.SetMetaDataAnnotation(&vol.ObjectMeta, tarnv1.AnnotationNode, c.node)
		}
		if got := storageOf(vol); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestEventsOfVolumesThatAreKeptAreNotMerged(t *testing.T) {
	v := view(set(0, 0))
	if a, b := v.kept("volume %s", "a"), v.kept("volume %s", "b"); a.Doing == b.Doing || a.Doing == eventAction {
		t.Errorf("got %q and %q, want one for each note", a.Doing, b.Doing)
	}
}

// tellsOf is the index of the action that reports kept storage; -1 for none.
func tellsOf(p Plan, storage string) int {
	return slices.IndexFunc(single(p.Actions), func(a action.Action) bool {
		event, is := a.(action.Emit)
		return is && event.Type == corev1.EventTypeWarning && event.Reason == eventKept && strings.Contains(event.Note, storage)
	})
}

func TestTheStorageThatNoProvisionerDestroysIsNamed(t *testing.T) {
	s := set(0, 0)
	p := plan(view(s, volumeOf(s, "a", byHand, givenUpBy(s), in(corev1.VolumeReleased), func(vol *corev1.PersistentVolume) {
		vol.Spec.NFS = &corev1.NFSVolumeSource{Server: "s", Path: "/a"}
	})), testTime)
	if tellsOf(p, "no provisioner deletes it; delete the storage by hand: NFS export s:/a") != 0 || did(p) != "remove a" {
		t.Errorf("it does %s: %+v", did(p), p.Actions)
	}
}

func TestTheStorageOfASpareGoesWithItUnlessThereMayBeData(t *testing.T) {
	const deletes, retains = corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain
	s := set(0, 0)
	// passed frees a volume, makes it Available after a while, and settles it.
	passed := func(after time.Duration, changes ...testkit.With[*corev1.PersistentVolume]) *corev1.PersistentVolume {
		vol := free(volumeOf(s, "a", fillerOf(0)), testTime)
		vol.Annotations[tarnv1.AnnotationPoolPolicy] = "Retain"
		in(corev1.VolumeAvailable)(vol)
		vol.Status.LastPhaseTransitionTime = &metav1.Time{Time: testTime.Add(after)}
		for _, change := range changes {
			change(vol)
		}
		return settle(vol)
	}
	// recycledAt is a volume that was drawn once, and was recycled and freed at a time.
	recycledAt := func(at time.Time, changes ...testkit.With[*corev1.PersistentVolume]) *corev1.PersistentVolume {
		vol := volumeOf(s, "a", retained, annotated(tarnv1.AnnotationPoolUnused, ""))
		certify(vol, "scrub-claim", at)
		for _, change := range changes {
			change(vol)
		}
		return vol
	}
	for _, c := range []struct {
		name string
		vol  *corev1.PersistentVolume
		want corev1.PersistentVolumeReclaimPolicy
	}{
		{"one that nobody has drawn", volumeOf(s, "a", retained), deletes},
		{"one that was Available, then not, then again", volumeOf(s, "a", retained, func(vol *corev1.PersistentVolume) {
			vol.Status.LastPhaseTransitionTime.Time = testTime.Add(time.Minute)
		}), retains},
		{"one that was drawn and cleared in the second in which it was made", volumeOf(s, "a", retained, annotated(volume.AnnBoundByController, "yes")), retains},
		{"one made by hand", volumeOf(s, "a", byHand, retained), retains},
		{"one that was Available as soon as it was freed", passed(time.Second), deletes},
		{"one that became Available long after it was freed", passed(time.Hour), retains},
		{"one that a binder has bound since it was freed", passed(time.Second, annotated(volume.AnnBoundByController, "yes")), retains},
		{"one of which nobody has noted when it was freed", passed(time.Second, annotated(tarnv1.AnnotationPoolUnused, "")), retains},
		{"one that was recycled, and nobody has drawn since", recycledAt(testTime), deletes},
		{"the same, of policy Recycle", recycledAt(testTime, func(vol *corev1.PersistentVolume) {
			vol.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRecycle
		}), deletes},
		{"one that became Available long after it was recycled", recycledAt(testTime.Add(-time.Hour)), retains},
		{"one that was Available long before it was recycled", recycledAt(testTime.Add(time.Hour)), retains},
		{"one that a binder has bound since it was recycled", recycledAt(testTime, annotated(volume.AnnBoundByController, "yes")), retains},
		{"one whose certificate does not say when it was nobody's", recycledAt(testTime, annotated(tarnv1.AnnotationRecycled, `{"method":"Files","claim":"c","time":"`+testTime.Format(time.RFC3339)+`"}`)), retains},
		{"one whose certificate was made by hand", recycledAt(testTime, annotated(tarnv1.AnnotationRecycled, `{"freed":"`+testTime.Format(time.RFC3339)+`"}`)), retains},
		{"one whose certificate cannot be read", recycledAt(testTime, annotated(tarnv1.AnnotationRecycled, "{")), retains},
		{"one whose certificate was taken off", recycledAt(testTime, annotated(tarnv1.AnnotationRecycled, "")), retains},
		{"one that could not be recycled the last time", recycledAt(testTime, annotated(tarnv1.AnnotationRecycleFailure, `{"claim":"d"}`)), retains},
		{"one that does not tell since when it is Available", recycledAt(testTime, func(vol *corev1.PersistentVolume) { vol.Status.LastPhaseTransitionTime = nil }), retains},
		{"one made by hand that was recycled", recycledAt(testTime, annotated(tarnv1.AnnotationPoolUID, "")), retains},
		{"one of a set that is no more", volumeOf(s, "a", retained, ofSet("gone")), retains},
		{"one that is to be deleted anyway", volumeOf(s, "a"), deletes},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.vol.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: "h-1"}
			p := plan(view(s, c.vol), testTime)
			to := single(p.Actions)[0].(action.Patch).To.(*corev1.PersistentVolume)
			if got := to.Spec.PersistentVolumeReclaimPolicy; got != c.want || !volume.GivenUp(to, testNamespace) {
				t.Errorf("got policy %s and claimRef %v, want %s and a claim that never existed", got, to.Spec.ClaimRef, c.want)
			}
			// The plan names what stays before it deletes the object, so that a successor after
			// a kill does too.
			if goes := did(plan(view(s, to), testTime)); c.want == retains {
				if tellsOf(plan(view(s, to), testTime), `driver csi.example.com, handle "h-1"`) != 0 || goes != "remove a" {
					t.Errorf("the storage is not named before its volume goes: it does %s", goes)
				}
			} else if provisionerDeletes(to) != (goes == "") {
				t.Errorf("the provisioner destroys it: %t, and yet it does %q", provisionerDeletes(to), goes)
			}
			if got := did(p); got != "give up a" {
				t.Errorf("it does %s first, want it given up", got)
			}
		})
	}
}

func TestAFillerPodGoesWhereItsVolumeIsWanted(t *testing.T) {
	nodes := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "disk", Operator: corev1.NodeSelectorOpIn, Values: []string{"fast"}}},
	}}}
	s := set(1, 1, func(s *tarnv1.PersistentVolumeSet) {
		s.Spec.Template.TopologyKey = "zone"
		s.Spec.Template.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: nodes}
	})
	v := waitsForConsumer(view(s))
	for _, c := range []struct {
		domain string
		want   []corev1.PreferredSchedulingTerm
	}{
		{"", nil},
		{"x", []corev1.PreferredSchedulingTerm{{Weight: 100, Preference: corev1.NodeSelectorTerm{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"x"}}},
		}}}},
	} {
		affinity := fillerPod(v, fillerClaim(v, 0, c.domain)).Spec.Affinity
		if affinity == nil || affinity.NodeAffinity == nil {
			t.Fatalf("domain %q: the pod has no node affinity", c.domain)
		}
		if got := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; !equality.Semantic.DeepEqual(got, nodes) {
			t.Errorf("domain %q: it must go to %v, want the template's %v", c.domain, got, nodes)
		}
		if got := affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution; !equality.Semantic.DeepEqual(got, c.want) {
			t.Errorf("domain %q: it had better go to %v, want %v", c.domain, got, c.want)
		}
	}
}

func TestTolerationsAreThoseOfFillerPodsAndOfTheTemplate(t *testing.T) {
	one := corev1.Toleration{Key: "for", Operator: corev1.TolerationOpExists, TolerationSeconds: ptr.To[int64](1)}
	plain, tolerant := set(1, 1), set(1, 1, func(s *tarnv1.PersistentVolumeSet) { s.Spec.Template.Tolerations = []corev1.Toleration{one} })
	v := waitsForConsumer(view(tolerant))
	if got := fillerPod(v, fillerClaim(v, 0, "")).Spec.Tolerations; len(got) != 1 || got[0].Key != "for" {
		t.Errorf("the filler pod tolerates %v, want what the template does", got)
	}
	// A pod that cannot be scheduled is replaced when its tolerations are corrected.
	if hashOf(&plain.Spec.Template) == hashOf(&tolerant.Spec.Template) {
		t.Error("tolerations do not tell templates apart")
	}
}

// The hash is stored on existing volumes: another hash replaces every spare.
func TestATemplateIsKnownByWhatMakesItsVolumes(t *testing.T) {
	s := set(1, 1)
	if got, want := hashOf(&s.Spec.Template), "390be258a3c83f0c"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	was := hashOf(&s.Spec.Template)
	s.Spec.Template.Spec.Local = &corev1.LocalVolumeSource{Path: "/"} // has no effect in a pool
	if hashOf(&s.Spec.Template) != was {
		t.Error("a field that makes no difference to volumes makes one to the hash")
	}
	block := corev1.PersistentVolumeBlock
	for name, change := range map[string]func(*tarnv1.PersistentVolumeSetTemplate){
		"labels":      func(t *tarnv1.PersistentVolumeSetTemplate) { t.Metadata.Labels = map[string]string{"pool": testSet} },
		"annotations": func(t *tarnv1.PersistentVolumeSetTemplate) { t.Metadata.Annotations = map[string]string{"a": "b"} },
		"class":       func(t *tarnv1.PersistentVolumeSetTemplate) { t.Spec.StorageClassName = "other" },
		"capacity":    func(t *tarnv1.PersistentVolumeSetTemplate) { t.Spec.Capacity = testkit.Storage("2Gi") },
		"modes": func(t *tarnv1.PersistentVolumeSetTemplate) {
			t.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		},
		"volume mode":      func(t *tarnv1.PersistentVolumeSetTemplate) { t.Spec.VolumeMode = &block },
		"attributes class": func(t *tarnv1.PersistentVolumeSetTemplate) { t.Spec.VolumeAttributesClassName = &t.TopologyKey },
		"policy": func(t *tarnv1.PersistentVolumeSetTemplate) {
			t.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		},
		"mount options": func(t *tarnv1.PersistentVolumeSetTemplate) { t.Spec.MountOptions = []string{"ro"} },
		"nodes":         func(t *tarnv1.PersistentVolumeSetTemplate) { t.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{} },
		"topologyKey":   func(t *tarnv1.PersistentVolumeSetTemplate) { t.TopologyKey = "zone" },
	} {
		changed := s.Spec.Template.DeepCopy()
		change(changed)
		if hashOf(changed) == was {
			t.Errorf("another value of %s makes no other hash", name)
		}
	}
}
