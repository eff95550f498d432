package cli

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// tryPhase is a phase of a record, and when the watch reported it. A step that waits sees only the
// current phase, so phases that are already over are kept.
type tryPhase struct {
	phase   tarnv1.VolumePhase
	attempt int32
	at      time.Time
}

// note keeps the phases of the record.
func (w *tryWorld) note(o any, now time.Time) {
	record, ok := o.(*tarnv1.PavVolume)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	phase, attempt := record.Status.Phase, record.Status.Attempts
	if n := len(w.phases); n == 0 || w.phases[n-1].phase != phase || w.phases[n-1].attempt != attempt {
		w.phases = append(w.phases, tryPhase{phase, attempt, now})
	}
}

// since returns when an attempt first was in a phase, zero if it never was.
func (w *tryWorld) since(phase tarnv1.VolumePhase, attempt int32) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.phases {
		if p.phase == phase && p.attempt == attempt {
			return p.at
		}
	}
	return time.Time{}
}

// validated creates the claim and waits until the creation begins. A creation that was made to fail
// has created the claim already.
func (t *pavTry) validated(ctx context.Context) (string, error) {
	began := time.Now()
	if t.failed == 0 { // else the claim exists already
		if err := t.claimVolume(ctx); err != nil {
			return "", err
		}
	}
	record, err := t.reaches(ctx, "the claim to be validated", tarnv1.VolumeCreating, tarnv1.VolumeCreated)
	if err != nil {
		return "", err
	}
	attempt := record.Status.Attempts
	end, detail := t.world.since(tarnv1.VolumeCreating, attempt), "by its pod"
	if end.IsZero() {
		end = t.world.since(tarnv1.VolumeCreated, attempt)
	}
	if at := t.world.since(tarnv1.VolumeValidating, attempt); !at.IsZero() {
		began = at
	} else if detail = "without a pod"; !t.has("volumeValidation") {
		detail = "there is no spec.volumeValidation"
	}
	t.took = max(end.Sub(began), time.Microsecond)
	return detail, nil
}

// created waits until handle and capacity are known.
func (t *pavTry) created(ctx context.Context) (string, error) {
	record, err := t.reaches(ctx, "the volume to be created", tarnv1.VolumeCreated)
	if err != nil {
		return "", err
	}
	end := t.world.since(tarnv1.VolumeCreated, record.Status.Attempts)
	if began := t.world.since(tarnv1.VolumeCreating, record.Status.Attempts); !began.IsZero() {
		t.took = max(end.Sub(began), time.Microsecond)
		return "by its pod, handle " + record.Status.Handle, nil
	}
	t.took = time.Microsecond
	return "without a pod, handle " + record.Status.Handle, nil
}

// reaches waits until the watch has reported that the record was in one of the phases, and returns
// the record. The cache may have an object before the watch's handler gets it.
func (t *pavTry) reaches(ctx context.Context, what string, phases ...tarnv1.VolumePhase) (*tarnv1.PavVolume, error) {
	var record *tarnv1.PavVolume
	err := t.world.await(ctx, what, func() tryLook {
		var err error
		record, err = t.record(ctx)
		switch {
		case err != nil:
			return still(err.Error())
		case record == nil:
			return still("there is no PavVolume of the claim")
		case t.failed > 0 && record.Status.Attempts <= t.failed:
			return still("the attempt that was made to fail is still the latest")
		}
		for _, phase := range phases {
			if !t.world.since(phase, record.Status.Attempts).IsZero() {
				return done()
			}
		}
		if err := t.failure(record); err != nil {
			return fatal(err)
		}
		return still(fmt.Sprintf("its record is %s", record.Status.Phase))
	})
	return record, err
}

// failure returns the last error of the provisioner as it is now, nil if there is none. Errors of
// an earlier version of it do not count.
func (t *pavTry) failure(record *tarnv1.PavVolume) error {
	e := record.Status.LastError
	if e == nil || e.ProvisionerGeneration < t.generation {
		return nil
	}
	return fmt.Errorf("%s of the volume failed: %s: %s", e.Step, e.Reason, e.Message)
}

// has says whether the provisioner has a section.
func (t *pavTry) has(section string) bool {
	_, found, _ := unstructured.NestedFieldNoCopy(t.provisioner.Object, "spec", section)
	return found
}
