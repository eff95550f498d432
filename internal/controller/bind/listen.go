package bind

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"tarn.dev/tarn/internal/volume"
)

var _ listener = (*reconciler)(nil)

// warnEvery is the shortest time between two warnings of another binder in the log.
const warnEvery = time.Minute

func (r *reconciler) claimSeen(claim *corev1.PersistentVolumeClaim) {
	r.metrics.claimSeen(claim, r.clock.Now())
	if volume.StateOfClaim(claim) == volume.ClaimCompleted && claim.Status.Phase != corev1.ClaimLost {
		r.events.forget(claim.UID)
	}
}

func (r *reconciler) volumeSeen(v *corev1.PersistentVolume) {
	r.metrics.volumeSeen(v, r.clock.Now())
}

func (r *reconciler) gone(uid types.UID) {
	r.metrics.forget(uid)
	r.events.forget(uid)
}

func (r *reconciler) freeVolumes(class string, more int) {
	r.metrics.free.WithLabelValues(class).Add(float64(more))
}

// foreign counts a phase that another binder wrote, and warns of it. A few such writes mean
// nothing: they may come from a binder that has just handed over to this one.
func (r *reconciler) foreign(w foreignWrite) {
	r.metrics.foreign.WithLabelValues(w.what).Inc()
	now := r.clock.Now()
	if now.Sub(r.warnedAt) < warnEvery {
		return
	}
	r.warnedAt = now
	r.log.Info("another binder runs beside this one; nothing is bound twice, but each undoes some of the other's work: "+
		"switch off persistentvolume-binder-controller in kube-controller-manager, or bind in tarn controller",
		"object", w.what, "name", w.name, "phase", w.phase, "resourceVersion", w.version)
}
