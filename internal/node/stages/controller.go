package stages

import (
	"context"
	"errors"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
)

// workers is how many stages are reconciled at once. A step is short, except for two waits: a
// server that does not answer (ServerAnswer or slowAnswer), and an unmount that writes much data
// back. Enough workers must be left for the other stages then.
const workers = 16

// Register adds the node's part of the PavStage protocol to the manager. The manager's cache must
// contain only the PavStages of this node.
func (s *Stages) Register(m manager.Manager) error {
	for _, run := range []manager.RunnableFunc{s.ready.run, s.reapLoop, s.watchMounts, s.watchServers, s.watchFirsts} {
		if err := m.Add(run); err != nil {
			return err
		}
	}
	return builder.ControllerManagedBy(m).
		Named("node-stages").
		For(&tarnv1.PavStage{}).
		WatchesRawSource(source.Func(s.wakes.start)).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, RateLimiter: kube.RateLimiter()}).
		Complete(reconcile.Func(s.Reconcile))
}

// Reconcile makes the next step on the node's side of a stage.
func (s *Stages) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	view, err := s.gather(ctx, request.Name)
	if err == nil {
		err = s.apply(ctx, view.Stage, plan(view))
	}
	err = errors.Join(err, s.collectOrphans(ctx, request.Name))
	return kube.Outcome(err, time.Time{}, s.Now())
}
