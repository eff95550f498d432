package volume

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

func TestARetentionIsADurationWithDays(t *testing.T) {
	day := 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"72h": 72 * time.Hour, "30d": 30 * day, "1d12h": 36 * time.Hour, "0s": 0, "0": 0, "90m30s": 90*time.Minute + 30*time.Second, "36500d": 36500 * day,
	} {
		if got, err := ParseRetention(text); err != nil || got != want {
			t.Errorf("%q: got %s, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "soon", "-1h", "1h2d", "d", "1.5d", "1dd", "2d-1h", "30", "36501d", "36500d1h", "9999999d", "2000000h", "1d "} {
		if got, err := ParseRetention(text); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%q: got %s, %v, want an error that names the text", text, got, err)
		}
	}
}

func TestAHeldVolumeGetsItsPolicyBack(t *testing.T) {
	for _, own := range []corev1.PersistentVolumeReclaimPolicy{corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRecycle, corev1.PersistentVolumeReclaimRetain} {
		v := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{PersistentVolumeReclaimPolicy: own}}
		Hold(v, "1h")
		Hold(v, "2h") // a second time must not take Retain for the policy
		if v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || OwnPolicy(v) != own {
			t.Errorf("%s: held it has %s, own %s", own, v.Spec.PersistentVolumeReclaimPolicy, OwnPolicy(v))
		}
		LetGo(v)
		if v.Spec.PersistentVolumeReclaimPolicy != own || Held(v) {
			t.Errorf("%s: let go it has %s, held %v", own, v.Spec.PersistentVolumeReclaimPolicy, Held(v))
		}
	}
}

func TestTheTimeInTheTrashIsReadAsItWasWritten(t *testing.T) {
	v := &corev1.PersistentVolume{}
	want := time.Date(2026, 11, 23, 14, 0, 5, 0, time.FixedZone("", 3600))
	Trash(v, want)
	if got, known, err := TrashedUntil(v); err != nil || !known || !got.Equal(want) {
		t.Errorf("got %s, %v, %v, want %s", got, known, err, want)
	}
	if got := v.Labels[tarnv1.LabelTrashedUntil]; got != "2026-11-23T13.00.05Z" {
		t.Errorf("shown as %q", got)
	}
	v.Annotations[tarnv1.AnnotationTrashedUntil] = "tomorrow"
	if _, _, err := TrashedUntil(v); err == nil || !strings.Contains(err.Error(), `"tomorrow"`) {
		t.Errorf("got %v, want an error that names the text", err)
	}
}

func TestAClaimIsRememberedWithoutWhatBindersNote(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: "data", UID: "u", CreationTimestamp: metav1.Unix(0, 0), Finalizers: []string{"f"}, Labels: map[string]string{"app": "shop"},
			Annotations: map[string]string{
				AnnBindCompleted: AnnYes, AnnBoundByController: AnnYes, AnnProvisioner: "p", AnnBetaProvisioner: "p", AnnSelectedNode: "n",
				tarnv1.AnnotationPlugin: "p", tarnv1.AnnotationMadeFor: "u", "kubectl.kubernetes.io/last-applied-configuration": "{}",
				corev1.BetaStorageClassAnnotation: "fast", "example.com/owner": "me",
			},
		},
		Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pvc-u"},
	}
	text, err := RememberClaim(claim)
	if want := `{"labels":{"app":"shop"},"annotations":{"example.com/owner":"me","volume.beta.kubernetes.io/storage-class":"fast"},"spec":{"resources":{}},"created":"1970-01-01T00:00:00Z"}`; err != nil || text != want {
		t.Errorf("got %s, %v\nwant %s", text, err, want)
	}
	if len(claim.Annotations) != 10 || claim.Spec.VolumeName == "" {
		t.Error("the claim was changed, which is the cache's")
	}
	claim.Annotations["large"] = strings.Repeat("x", memoryBytes)
	if text, err = RememberClaim(claim); err != nil || len(text) > memoryBytes {
		t.Errorf("%d bytes, %v, want at most %d", len(text), err, memoryBytes)
	}
	memory, err := RememberedClaim(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{tarnv1.AnnotationClaim: text}}})
	if err != nil || !memory.Cut || memory.Annotations[corev1.BetaStorageClassAnnotation] != "fast" {
		t.Errorf("got %+v, %v, want it to say that it was cut, and the class", memory, err)
	}
}

func TestClaimsAreRememberedAlikeThatDifferInWhatBindersNote(t *testing.T) {
	claim := func(change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "shop"}, Annotations: map[string]string{"owner": "me"}}}
		c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
		change(c)
		return c
	}
	plain := claim(func(*corev1.PersistentVolumeClaim) {})
	for name, c := range map[string]struct {
		change func(*corev1.PersistentVolumeClaim)
		want   bool
	}{
		"nothing": {func(*corev1.PersistentVolumeClaim) {}, true},
		"the binder's work": {func(c *corev1.PersistentVolumeClaim) {
			c.Spec.VolumeName, c.Annotations[AnnBindCompleted] = "v", AnnYes
		}, true},
		"a size beyond all": {func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1e30000000")}
		}, false},
		"a status":                {func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimBound }, true},
		"a label":                 {func(c *corev1.PersistentVolumeClaim) { c.Labels["app"] = "store" }, false},
		"an annotation":           {func(c *corev1.PersistentVolumeClaim) { c.Annotations["owner"] = "you" }, false},
		"an annotation removed":   {func(c *corev1.PersistentVolumeClaim) { delete(c.Annotations, "owner") }, false},
		"an annotation added":     {func(c *corev1.PersistentVolumeClaim) { c.Annotations["more"] = "" }, false},
		"the class by annotation": {func(c *corev1.PersistentVolumeClaim) { c.Annotations[corev1.BetaStorageClassAnnotation] = "fast" }, false},
		"the class":               {func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = new(string) }, false},
	} {
		changed := claim(c.change)
		if got := SameMemory(plain, changed); got != c.want || SameMemory(changed, plain) != c.want {
			t.Errorf("%s: remembered alike: %v, want %v", name, got, c.want)
		}
		one, err := RememberClaim(plain)
		if err != nil {
			t.Fatal(err)
		}
		if other, err := RememberClaim(changed); err != nil || (one == other) != c.want {
			t.Errorf("%s: remembered as %s, %v, and %s", name, other, err, one)
		}
	}
}

func says(text string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: "x", Annotations: map[string]string{tarnv1.AnnotationRetention: text}}
}

func TestARetentionIsThatOfWhoeverSaysItFirst(t *testing.T) {
	set := func(text, pool string) tarnv1.PersistentVolumeSet {
		return tarnv1.PersistentVolumeSet{ObjectMeta: says(text), Spec: tarnv1.PersistentVolumeSetSpec{Selector: map[string]string{"pool": pool}}}
	}
	class := &storagev1.StorageClass{ObjectMeta: says("3h")}
	for _, c := range []struct {
		name  string
		own   string
		sets  []tarnv1.PersistentVolumeSet
		class *storagev1.StorageClass
		want  string
		wrong string
	}{
		{name: "the volume", own: "1h", sets: []tarnv1.PersistentVolumeSet{set("2h", "a")}, class: class, want: "1h"},
		{name: "the volume, which says none", own: "0s", class: class, want: "0s"},
		{name: "of its sets the one that says most", sets: []tarnv1.PersistentVolumeSet{set("2h", "a"), set("4h", "a"), set("1h", "a")}, class: class, want: "4h"},
		{name: "not a set that does not select it", sets: []tarnv1.PersistentVolumeSet{set("2h", "b")}, class: class, want: "3h"},
		{name: "the class", class: class, want: "3h"},
		{name: "a parameter of the class", class: &storagev1.StorageClass{Parameters: map[string]string{tarnv1.AnnotationRetention: "5h"}}, want: "5h"},
		{name: "nobody", class: &storagev1.StorageClass{}},
		{name: "a set that cannot be understood", sets: []tarnv1.PersistentVolumeSet{set("9h", "a"), set("soon", "a")}, class: class, want: "soon", wrong: "PersistentVolumeSet x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"pool": "a"}}}
			if c.own != "" {
				v.Annotations = says(c.own).Annotations
			}
			got := RetentionOf(v, c.sets, c.class)
			if got.Text != c.want || got.Unknown || (got.Wrong == "") != (c.wrong == "") || !strings.Contains(got.Wrong, c.wrong) {
				t.Errorf("got %+v, want %q", got, c.want)
			}
		})
	}
	if got := RetentionOf(&corev1.PersistentVolume{}, nil, nil); !got.Unknown || got.Wanted() {
		t.Errorf("of a class that is gone: got %+v, want it unknown", got)
	}
}

func TestAReleasedVolumeIsKeptAsLongAsItsRetentionSays(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	hour := Retention{Text: "1h", Time: time.Hour}
	for _, c := range []struct {
		name   string
		r      Retention
		change func(*corev1.PersistentVolume)
		// want is until when the volume is kept. Zero means that it is not kept, always that it is
		// kept for ever.
		want   time.Time
		always bool
	}{
		{name: "counted from its release", r: hour, want: now.Add(30 * time.Minute)},
		{name: "not longer", r: Retention{Text: "30m", Time: 30 * time.Minute}},
		{name: "counted from now where it does not tell", r: hour, change: func(v *corev1.PersistentVolume) { v.Status.LastPhaseTransitionTime = nil }, want: now.Add(time.Hour)},
		{name: "for ever where it cannot be understood", r: Retention{Wrong: "soon is no time"}, always: true},
		{name: "not where nobody says anything", r: Retention{Unknown: true}},
		{name: "not after it was in the trash", r: hour, change: func(v *corev1.PersistentVolume) { Trash(v, now) }},
		{name: "not where it points at no claim", r: hour, change: func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil }},
		{name: "not where it points at a claim yet to come", r: hour, change: func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.UID = "" }},
		{name: "not where it was a claim's of Tarn's own", r: hour, change: func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.Namespace = "tarn-system" }},
		{name: "not where it is being added to a pool", r: hour, change: func(v *corev1.PersistentVolume) {
			v.Annotations = map[string]string{tarnv1.AnnotationPoolFilling: "u"}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "vol"}}
			v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "shop", Name: "data", UID: "u"}
			v.Status.LastPhaseTransitionTime = &metav1.Time{Time: now.Add(-30 * time.Minute)}
			if c.change != nil {
				c.change(v)
			}
			why, until := KeptBy(v, c.r, "tarn-system", now)
			if (why != "") != (c.always || !c.want.IsZero()) || !until.Equal(c.want) {
				t.Errorf("kept until %s, %q; want %s", until, why, c.want)
			}
		})
	}
}
