package status

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"tarn.dev/tarn/internal/cli/explain"
	"tarn.dev/tarn/internal/volume"
)

// counts are Counts by state.
type counts map[string]*Count

func (c counts) add(state string, bytes int64) {
	if c[state] == nil {
		c[state] = &Count{State: state}
	}
	c[state].Count++
	c[state].Bytes += bytes
}

// list returns the counts, the largest first.
func (c counts) list() []Count {
	var all []Count
	for _, count := range c {
		all = append(all, *count)
	}
	slices.SortFunc(all, func(a, b Count) int { return cmp.Or(b.Count-a.Count, cmp.Compare(a.State, b.State)) })
	return all
}

// States of volumes that are not phases.
const (
	stateTerminating = "Terminating"
	// stateTrash: its claim can be restored until the retention is over.
	stateTrash = "InTrash"
	// stateRetained: its claim is gone, and it is kept until an administrator decides.
	stateRetained = "Retained"
)

// stateOf returns the state of a volume.
func stateOf(vol *corev1.PersistentVolume) string {
	_, trashed, _ := volume.TrashedUntil(vol)
	keeps := volume.ReleasedFrom(vol) && vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain
	switch {
	case vol.DeletionTimestamp != nil:
		return stateTerminating
	case keeps && volume.Held(vol) && trashed:
		return stateTrash
	case keeps:
		return stateRetained
	}
	return cmp.Or(string(vol.Status.Phase), string(corev1.VolumePending))
}

func (j *judgement) volumes() {
	states := counts{}
	for i := range j.view.Volumes.Items {
		vol := &j.view.Volumes.Items[i]
		var bytes int64
		if size := volume.Capacity(vol); size != nil {
			bytes = volume.Bytes(*size)
		}
		state := stateOf(vol)
		states.add(state, bytes)
		if state == stateTrash {
			j.trashed(vol, bytes)
		}
		if !j.told[vol.Name] {
			j.volume(vol, state)
		}
	}
	j.Volumes = states.list()
}

func (j *judgement) trashed(vol *corev1.PersistentVolume, bytes int64) {
	if j.Trash == nil {
		j.Trash = &Trash{}
	}
	j.Trash.Volumes++
	j.Trash.Bytes += bytes
	until, known, err := volume.TrashedUntil(vol)
	if known && err == nil && !volume.DeletionProtected(vol) && (j.Trash.Next == nil || until.Before(*j.Trash.Next)) {
		j.Trash.Next = &until
	}
}

// volume judges one volume whose record has no error.
func (j *judgement) volume(vol *corev1.PersistentVolume, state string) {
	o := explain.Object{Kind: explain.Volume, Name: vol.Name}
	since := vol.CreationTimestamp.Time
	if t := vol.Status.LastPhaseTransitionTime; t != nil {
		since = t.Time
	}
	switch state {
	case string(corev1.VolumeFailed):
		j.waits(o, since, "it has failed: %s", cmp.Or(vol.Status.Message, "its Events say why"))
	case string(corev1.VolumeReleased):
		if j.lasting(since) {
			j.waits(o, since, "its claim is gone, and it has not been reclaimed by policy %s", vol.Spec.PersistentVolumeReclaimPolicy)
		}
	case stateTerminating:
		if at := vol.DeletionTimestamp.Time; j.lasting(at) {
			j.waits(o, at, "it is being deleted, and something keeps it")
		}
	case stateTrash:
		if until, known, err := volume.TrashedUntil(vol); err != nil {
			j.wrong(o, time.Time{}, "kubectl describe pv "+vol.Name, "it is in the trash without an end: %v", err)
		} else if known && !volume.DeletionProtected(vol) && j.lasting(until) {
			j.waits(o, until, "its retention has ended, but it has not been deleted")
		}
	}
}
