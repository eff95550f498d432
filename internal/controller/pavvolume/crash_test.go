//go:build integration

package pavvolume

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

// moment is when the claim of a life is deleted; never is empty.
type moment string

const (
	whileValidating moment = "the validation pod runs"
	whileCreating   moment = "the creation pod runs"
	onceCreated     moment = "the record is Created, and no volume is there"
	onceWritten     moment = "the volume is there and not bound"
)

// end is how a volume of policy Retain ends once it is released.
type end string

const (
	byItsVolume  end = "a user deletes the PersistentVolume"
	byForgetting end = "an administrator gives up the record"
)

// life is what happens to one claim and its volume under a controller that may be killed.
type life struct {
	testkit.Span

	// validates says that there is a validation pod, waits that the scheduler selects the node.
	validates, waits bool
	// failures is how many creation pods fail. If the scheduler selects the node, those on the
	// first node fail. resists is how many deletion pods fail.
	failures, resists int
	deleted           moment
	// kept says that the policy is Retain, so that the storage outlives the volume.
	kept end
	// again says that the provisioner chooses the handle, and that a volume that is being deleted
	// still has it.
	again bool
	// backed says that the volume lies over a claim that is made for it.
	backed bool
	// copied says that the volume is copied from that of another claim, which is deleted meanwhile.
	copied bool
	// least and most limit how many creation pods run.
	least, most int
}

var lives = []life{
	{Span: testkit.Span{Name: "failed"}, failures: 1, least: 2, most: 2},
	{Span: testkit.Span{Name: "validated", From: 2, To: 6}, validates: true, least: 1, most: 1},
	// If it is killed between the writes of record and claim, it forgets that the node failed, and
	// tries it again.
	{Span: testkit.Span{Name: "rescheduled", From: 7, To: 12}, waits: true, least: 2, most: 3},
	{Span: testkit.Span{Name: "gone-while-validating", From: 3}, validates: true, deleted: whileValidating},
	{Span: testkit.Span{Name: "gone-while-creating", From: 3}, deleted: whileCreating, least: 1, most: 1},
	{Span: testkit.Span{Name: "gone-while-failing", From: 4}, deleted: whileCreating, failures: 1, least: 1, most: 1},
	{Span: testkit.Span{Name: "gone-when-created", From: 4, To: 5}, deleted: onceCreated, least: 1, most: 1},
	{Span: testkit.Span{Name: "gone-when-written", From: 5}, deleted: onceWritten, resists: 1, least: 1, most: 1},
	{Span: testkit.Span{Name: "retained", From: 7}, deleted: onceWritten, kept: byItsVolume, least: 1, most: 1},
	{Span: testkit.Span{Name: "forgotten", From: 7}, deleted: onceWritten, kept: byForgetting, least: 1, most: 1},
	{Span: testkit.Span{Name: "after-another", From: 2}, again: true, least: 1, most: 1},
	{Span: testkit.Span{Name: "backed", From: 2}, backed: true, failures: 1, least: 2, most: 2},
	{Span: testkit.Span{Name: "copied", From: 1}, copied: true, least: 1, most: 1},
	{Span: testkit.Span{Name: "gone-with-its-claim", From: 7}, backed: true, deleted: onceWritten, least: 1, most: 1},
}

func TestAVolumeIsMadeOnceAndEndsOnceWhereverTheControllerIsKilled(t *testing.T) {
	testkit.AtTheirWrites(t, spans(), beginLife)
}

func TestAVolumeIsMadeAndEndsThoughSomebodyElseWritesFirstEachTime(t *testing.T) {
	testkit.Forestalled(t, spans(), beginLife)
}

func spans() (spans []testkit.Span) {
	for _, l := range lives {
		spans = append(spans, l.Span)
	}
	return spans
}

func beginLife(t *testing.T, server *rest.Config, span int, name string) (testkit.Life, *rest.Config) {
	c := newCluster(t, server, name, lives[span])
	return c, c.Config
}

// Live waits until the claim has its volume, or nothing of it is left.
func (c *cluster) Live() {
	c.T.Helper()
	if c.life.deleted == "" {
		c.Eventually("the claim to have its volume", c.served)
	} else {
		c.Eventually("nothing to be left", c.nothing)
	}
}

func (c *cluster) served() string {
	s, err := c.see()
	switch {
	case err != nil:
		return err.Error()
	case s.claim == nil || s.record == nil || s.volume == nil:
		return fmt.Sprintf("claim %v, record %v, volume %v", s.claim != nil, s.record, s.volume != nil)
	case s.claim.Status.Phase != corev1.ClaimBound || !handedOver(s.record):
		return fmt.Sprintf("the claim is %s, the record %+v", s.claim.Status.Phase, s.record.Status)
	case len(s.pods) > 0:
		return "pod " + s.pods[0].Name + " is left"
	case s.source != nil:
		return fmt.Sprintf("the source is there: %+v", s.source.Status)
	case c.life.backed && (len(s.made) != 1 || s.made[0].DeletionTimestamp != nil || s.made[0].Labels[tarnv1.LabelDeletionProtection] != "true"):
		return fmt.Sprintf("it lies over the claims %v", s.made)
	}
	return ""
}

func (c *cluster) nothing() string {
	s, err := c.see()
	switch {
	case err != nil:
		return err.Error()
	case s.claim != nil:
		return "the claim is there"
	case s.record != nil:
		return fmt.Sprintf("the record is there: %+v", s.record.Status)
	case s.volume != nil:
		return fmt.Sprintf("the volume is there, %s, with finalizers %q", s.volume.Status.Phase, s.volume.Finalizers)
	case len(s.pods) > 0:
		return "pod " + s.pods[0].Name + " is there"
	case len(s.made) > 0:
		return "claim " + s.made[0].Name + " is there"
	}
	return ""
}

// Check checks that the life ended as it should, with no more pods than expected: each creation is
// undone or its volume deleted once, unless the volume is used or kept.
func (c *cluster) Check() {
	c.T.Helper()
	created := c.kubelet.Ran(tarnv1.StepCreation)
	if len(created) < c.life.least || len(created) > c.life.most {
		c.T.Errorf("creation pods %q have run, want %d to %d", created, c.life.least, c.life.most)
	}
	if ran := c.kubelet.Ran(tarnv1.StepValidation); c.life.validates != (len(ran) == 1) {
		c.T.Errorf("validation pods %q have run", ran)
	}
	stays := c.life.deleted == "" || c.life.kept != ""
	want := len(created) + c.life.resists
	if stays {
		want--
	}
	if c.life.again || c.life.copied {
		want++ // that of the other volume
	}
	if ran := c.kubelet.Ran(tarnv1.StepDeletion); len(ran) != want {
		c.T.Errorf("deletion pods %q have run, want %d", ran, want)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stored != stays {
		c.T.Errorf("there is storage: %v", c.stored)
	}
	if len(c.wrong) > 0 {
		c.T.Errorf("%q", c.wrong)
	}
	if c.heldAtCreated && c.written {
		c.T.Error("a PersistentVolume was written for a claim that was gone before")
	}
	s, err := c.see()
	c.Must(err)
	if c.life.waits && (s.volume.Spec.NodeAffinity == nil || s.volume.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0] != secondNode) {
		c.T.Errorf("the volume is made on %s and is for %+v", secondNode, s.volume.Spec.NodeAffinity)
	}
	if c.life.backed && len(c.made) != len(created) {
		c.T.Errorf("claims %v were made for %d attempts", c.made, len(created))
	}
	if c.life.backed && c.life.deleted == "" && (s.volume.Spec.NodeAffinity == nil || !reflect.DeepEqual(s.volume.Spec.NodeAffinity, affinityTo(secondNode))) {
		c.T.Errorf("the volume of its claim is on %s, and it is for %+v", secondNode, s.volume.Spec.NodeAffinity)
	}
	if c.life.deleted == "" {
		return
	}
	left := &tarnv1.PavVolumeList{}
	c.Must(c.Client.List(c.Ctx, left, client.MatchingLabels{tarnv1.LabelProvisioner: c.name}))
	if wrong := c.nothing(); wrong != "" || len(left.Items) > 0 {
		c.T.Errorf("after its end: %s, %d records", wrong, len(left.Items))
	}
}

// provisioner builds the provisioner of a life.
func (l life) provisioner(name string) *pavv1.PavProvisioner {
	return testkit.Provisioner(name, func(p *pavv1.PavProvisioner) {
		p.UID = ""
		if l.validates {
			p.Spec.VolumeValidation = testkit.PodSection()
		}
		if l.again {
			p.Spec.VolumeCreation = testkit.Section(`{"handle": "shared", ` + strings.TrimPrefix(string(p.Spec.VolumeCreation.Raw), "{"))
		}
		if l.copied {
			p.Spec.VolumeCreation = testkit.Section(`{"podTemplate": {"spec": {"containers": [{"name": "c", "image": "busybox:1.36", "args": ["{{ source.handle }}"]}]}}}`)
		}
		if l.waits {
			p.Spec.Topology = pavv1.TopologyNode
		}
		if l.backed {
			p.Spec.Topology = pavv1.TopologyClaims
			p.Spec.Claims = []pavv1.VolumeClaim{{Name: "backing", Template: testkit.Section(`{"spec": {"storageClassName": "none"}}`)}}
			mounts := testkit.Section(`{"podTemplate": {"spec": {"containers": [{"name": "c", "image": "busybox:1.36"}],
				"volumes": [{"name": "b", "persistentVolumeClaim": {"claimName": "{{ claims.backing }}"}}]}}}`)
			p.Spec.VolumeCreation, p.Spec.VolumeDeletion = mounts, mounts
		}
	})
}
