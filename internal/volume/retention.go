package volume

import (
	"fmt"
	"regexp"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// Retention is how long a volume is kept after its release, as the annotation or class says it.
type Retention struct {
	// Text is the setting as written; empty if there is none.
	Text string
	Time time.Duration
	// Unknown says that no setting was found, and that the class, which may have one, was deleted.
	Unknown bool
	// Wrong says why the text cannot be parsed, and where it is set.
	Wrong string
}

// Wanted says whether the volume must be kept, even if only until a wrong text is corrected.
func (r Retention) Wanted() bool { return r.Wrong != "" || r.Time > 0 }

// RetentionOf reads the setting from the volume, the sets that select it, and its class, in this
// order. The class may be nil. Of several sets the longest retention counts.
func RetentionOf(v *corev1.PersistentVolume, sets []tarnv1.PersistentVolumeSet, class *storagev1.StorageClass) Retention {
	if text := v.Annotations[tarnv1.AnnotationRetention]; text != "" {
		return readRetention("annotation of the PersistentVolume", text)
	}
	var longest Retention
	for i := range sets {
		text := sets[i].Annotations[tarnv1.AnnotationRetention]
		if text == "" || !Selects(&sets[i], v) {
			continue
		}
		said := readRetention("annotation of PersistentVolumeSet "+sets[i].Name, text)
		if said.Wrong != "" {
			return said
		}
		if longest.Text == "" || said.Time > longest.Time {
			longest = said
		}
	}
	if longest.Text != "" {
		return longest
	}
	if class == nil {
		return Retention{Unknown: true}
	}
	if text := RetentionOfClass(class.Annotations, class.Parameters); text != "" {
		return readRetention("annotation or parameter of StorageClass "+class.Name, text)
	}
	return Retention{}
}

func readRetention(where, text string) Retention {
	d, err := ParseRetention(text)
	if err != nil {
		return Retention{Text: text, Wrong: fmt.Sprintf("%s %s: %v; until then the volume is kept", tarnv1.AnnotationRetention, where, err)}
	}
	return Retention{Text: text, Time: d}
}

// KeptBy says why the data of a volume whose claim was deleted must not be destroyed yet, and until
// when. An empty why means that nothing keeps the data. A zero until means that a person must act
// first.
//
// It is for volumes released before the trash controller held them, or in a cluster that does not
// run it. A volume that was in the trash once has had its retention.
func KeptBy(v *corev1.PersistentVolume, r Retention, namespace string, now time.Time) (why string, until time.Time) {
	_, noted := v.Annotations[tarnv1.AnnotationTrashedUntil]
	if ref := v.Spec.ClaimRef; noted || !r.Wanted() || ref == nil || ref.UID == "" || Passing(v, namespace) {
		return "", time.Time{}
	}
	if r.Wrong != "" {
		return r.Wrong, time.Time{}
	}
	since := now // without a transition time, as if it was released now
	if at := v.Status.LastPhaseTransitionTime; at != nil {
		since = at.Time
	}
	if until = since.Add(r.Time); !now.Before(until) {
		return "", time.Time{}
	}
	return fmt.Sprintf("claim %s/%s is gone, and retention %s keeps its data until %s; to delete the data now: kubectl annotate persistentvolume %s %s=0s --overwrite",
		v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name, r.Text, until.UTC().Format(time.RFC3339), v.Name, tarnv1.AnnotationRetention), until
}

// longestRetention is within the range of time.Duration, with room for an addition.
const longestRetention = 100 * 365 * 24 * time.Hour

var leadingDays = regexp.MustCompile(`^([0-9]{1,6})d`)

// ParseRetention reads how long a released volume is kept. The text is a Go duration, and a whole
// number of days may stand before it, as in 72h, 30d or 1d12h. 0s means no retention.
func ParseRetention(text string) (time.Duration, error) {
	var total time.Duration
	rest := text
	if days := leadingDays.FindStringSubmatch(text); days != nil {
		n, err := strconv.Atoi(days[1])
		if err != nil {
			return 0, fmt.Errorf("retention %q: %w", text, err)
		}
		if n > int(longestRetention/(24*time.Hour)) {
			return 0, fmt.Errorf("retention %q is longer than 100 years; to keep volumes for ever set reclaim policy Retain", text)
		}
		total, rest = time.Duration(n)*24*time.Hour, text[len(days[0]):]
	}
	if rest != "" || text == "" {
		d, err := time.ParseDuration(rest)
		if err != nil || d < 0 {
			return 0, fmt.Errorf("retention %q is not a duration; write it like 72h, 30d or 1d12h, and 0s for none", text)
		}
		total += d
	}
	if total > longestRetention {
		return 0, fmt.Errorf("retention %q is longer than 100 years; to keep volumes for ever set reclaim policy Retain", text)
	}
	return total, nil
}

// RetentionOfClass is the retention that a class sets, by annotation or otherwise by parameter. It
// is empty if the class sets none.
func RetentionOfClass(annotations, parameters map[string]string) string {
	if text := annotations[tarnv1.AnnotationRetention]; text != "" {
		return text
	}
	return parameters[tarnv1.AnnotationRetention]
}

// Held says whether the reclaim policy of a volume is postponed until its retention is over.
func Held(v *corev1.PersistentVolume) bool {
	return v.Annotations[tarnv1.AnnotationReclaimPolicy] != ""
}

// Hold postpones the reclaim policy of a volume. A volume that is already held keeps the noted
// policy, unless its policy is no longer Retain: then the new one is noted.
func Hold(v *corev1.PersistentVolume, retention string) {
	if !Held(v) || v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		metav1.SetMetaDataAnnotation(&v.ObjectMeta, tarnv1.AnnotationReclaimPolicy, string(v.Spec.PersistentVolumeReclaimPolicy))
	}
	v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	metav1.SetMetaDataAnnotation(&v.ObjectMeta, tarnv1.AnnotationHeldFor, retention)
}

// LetGo gives a held volume its own reclaim policy. A volume that is not held, or whose policy was
// changed since, keeps its present policy.
func LetGo(v *corev1.PersistentVolume) {
	if own := v.Annotations[tarnv1.AnnotationReclaimPolicy]; own != "" && v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain {
		v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimPolicy(own)
	}
	delete(v.Annotations, tarnv1.AnnotationReclaimPolicy)
	delete(v.Annotations, tarnv1.AnnotationHeldFor)
	delete(v.Labels, tarnv1.LabelTrashedUntil)
}

// OwnPolicy is the reclaim policy a volume has once its retention is over.
func OwnPolicy(v *corev1.PersistentVolume) corev1.PersistentVolumeReclaimPolicy {
	if own := v.Annotations[tarnv1.AnnotationReclaimPolicy]; own != "" && v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain {
		return corev1.PersistentVolumeReclaimPolicy(own)
	}
	return v.Spec.PersistentVolumeReclaimPolicy
}

// labelTime is RFC 3339 in the characters a label may have.
const labelTime = "2006-01-02T15.04.05Z"

// Trash records until when a released volume is kept. Times are to the second.
func Trash(v *corev1.PersistentVolume, until time.Time) {
	metav1.SetMetaDataAnnotation(&v.ObjectMeta, tarnv1.AnnotationTrashedUntil, until.UTC().Format(time.RFC3339))
	ShowTrashed(v, until)
}

// ShowTrashed sets the label that kubectl users see to the recorded time.
func ShowTrashed(v *corev1.PersistentVolume, until time.Time) {
	metav1.SetMetaDataLabel(&v.ObjectMeta, tarnv1.LabelTrashedUntil, until.UTC().Format(labelTime))
}

// Untrash removes the record of until when a volume is kept, but not the hold.
func Untrash(v *corev1.PersistentVolume) {
	delete(v.Annotations, tarnv1.AnnotationTrashedUntil)
	delete(v.Labels, tarnv1.LabelTrashedUntil)
}

// TrashedUntil is until when a volume is kept; known is false if nothing is recorded.
func TrashedUntil(v *corev1.PersistentVolume) (until time.Time, known bool, err error) {
	text, known := v.Annotations[tarnv1.AnnotationTrashedUntil]
	if !known {
		return time.Time{}, false, nil
	}
	until, err = time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, true, fmt.Errorf("annotation %s is %q, which is not a time; write it like 2026-11-23T14:00:00Z", tarnv1.AnnotationTrashedUntil, text)
	}
	return until, true, nil
}

// ReleasedFrom says whether the claim of a volume was deleted: the volume is Released, and no later
// claim is to have it.
func ReleasedFrom(v *corev1.PersistentVolume) bool {
	return v.Status.Phase == corev1.VolumeReleased && v.Spec.ClaimRef != nil && v.Spec.ClaimRef.UID != ""
}

// DeletionProtected says whether an object has the label against deletion. The API server then
// rejects its deletion, and its storage must not be destroyed either.
func DeletionProtected(o metav1.Object) bool {
	return o.GetLabels()[tarnv1.LabelDeletionProtection] == "true"
}
