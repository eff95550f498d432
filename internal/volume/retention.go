package volume

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

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
