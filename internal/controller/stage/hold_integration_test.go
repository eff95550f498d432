//go:build integration

package stage

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

func TestAStageThatIsDeletedUnderAPodEndsWithThePod(t *testing.T) {
	byHand := func(u *inUse) { u.Must(u.Client.Delete(u.Ctx, u.stage)) }
	withItsDefinition := func(u *inUse) {
		definition := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "pavstages.tarn.dev"}}
		u.Must(u.Client.Patch(u.Ctx, definition, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+tarnv1.LabelDeletionProtection+`":null}}}`))))
		u.Must(u.Client.Delete(u.Ctx, definition))
	}
	for name, c := range map[string]struct {
		remove func(*inUse)
		// told means that the node agent reports whether the volume is mounted. An agent of an
		// earlier release does not.
		told bool
	}{
		"by-hand": {byHand, true}, "with-its-definition": {withItsDefinition, true}, "with-an-older-agent": {byHand, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newInUse(t, testkit.OwnAPIServer(t), "held-"+name, tarnv1.RecoveryRebind)
			defer u.run(u.Config)()
			user := u.runs("user")
			user.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
			u.Must(u.Client.Status().Update(u.Ctx, user))
			u.becomes(tarnv1.StagePodRunning, 1)
			u.asAgent(u.stage, func(n *tarnv1.PavStageNodeStatus) {
				n.Phase, n.Targets = tarnv1.StageStaged, []string{target(user.UID)}
			})
			c.remove(u)
			mounted := func(is bool) { u.asAgent(u.stage, func(n *tarnv1.PavStageNodeStatus) { n.InUse = &is }) }
			if c.told {
				mounted(true)
			}
			u.isHeldBy(user.Namespace + "/" + user.Name)
			if c.told { // removed by force, and its containers stop later
				u.Must(u.Client.Delete(u.Ctx, user, client.GracePeriodSeconds(0)))
				u.isHeldBy("whose containers may still be running")
				mounted(false)
			} else { // its containers stop: the controller knows nothing else
				u.Must(u.Client.Get(u.Ctx, client.ObjectKeyFromObject(user), user))
				user.Status.Phase = corev1.PodSucceeded
				u.Must(u.Client.Status().Update(u.Ctx, user))
			}
			u.lives(u.stage, nil)
			u.check(1, 1)
		})
	}
}

// isHeldBy waits until the deleted stage says by whom it is held, and expects its staging pod
// unchanged.
func (u *inUse) isHeldBy(whom string) {
	u.T.Helper()
	u.until(func() string {
		u.look()
		pod := u.stage.Status.Pod
		if u.stage.DeletionTimestamp == nil || pod.Phase != tarnv1.StagePodRunning || !strings.Contains(pod.Message, whom) {
			return "the stage is not held by " + whom + ": it is " + string(pod.Phase) + ", " + pod.Message
		}
		return ""
	})
	if ran := u.kubelet.Ran(tarnv1.StepUnstaging); len(ran) > 0 {
		u.T.Errorf("%q unstage under a pod", ran)
	}
}
