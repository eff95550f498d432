//go:build integration

package expand

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

// growth is how a claim of 1Gi grows under a controller that may be killed.
type growth struct {
	testkit.Span

	// onNodes says that nodes have a part in it.
	onNodes bool
	// backed says that the volume lies over a claim, which grows first.
	backed bool
	// asks are the sizes that the claim requests, each after the previous one failed.
	asks []string
	// failures is how many pods for the first size fail. tooMuch is a size that no node reaches.
	failures int
	tooMuch  string
	// want is the claim's final size, made the volume's.
	want, made string
	// least and most limit how many expansion pods run.
	least, most int
}

const always = 99

var growths = []growth{
	{Span: testkit.Span{Name: "grown"}, asks: []string{"2Gi"}, want: "2Gi", made: "2Gi", least: 1, most: 1},
	{Span: testkit.Span{Name: "backed", To: 5}, backed: true, asks: []string{"2Gi"}, want: "2Gi", made: "2Gi", least: 1, most: 1},
	{Span: testkit.Span{Name: "at-second-go", From: 4, To: 9}, asks: []string{"2Gi"}, failures: 1, want: "2Gi", made: "2Gi", least: 2, most: 2},
	// The number of failures depends on how soon the claim requests less.
	{Span: testkit.Span{Name: "less", From: 6}, asks: []string{"4Gi", "2Gi"}, failures: always, want: "2Gi", made: "2Gi", least: 2, most: always},
	{Span: testkit.Span{Name: "on-nodes", From: 4}, onNodes: true, asks: []string{"2Gi"}, want: "2Gi", made: "2Gi", least: 1, most: 1},
	{Span: testkit.Span{Name: "less-on-nodes", From: 8}, onNodes: true, asks: []string{"4Gi", "2Gi"}, tooMuch: "4Gi", want: "2Gi", made: "4Gi", least: 1, most: 1},
}

func TestAVolumeGrowsOnceWhereverTheControllerIsKilled(t *testing.T) {
	testkit.AtTheirWrites(t, spans(), beginLife)
}

func TestAVolumeGrowsThoughSomebodyElseWritesFirstEachTime(t *testing.T) {
	testkit.Forestalled(t, spans(), beginLife)
}

func spans() (spans []testkit.Span) {
	for _, g := range growths {
		spans = append(spans, g.Span)
	}
	return spans
}

func beginLife(t *testing.T, server *rest.Config, span int, name string) (testkit.Life, *rest.Config) {
	c := newCluster(t, server, name, growths[span])
	return c, c.Config
}

// Live requests one size after the other, and waits for the last.
func (c *cluster) Live() {
	c.T.Helper()
	for i, size := range c.growth.asks {
		if i > 0 {
			c.Eventually("the growth to fail", c.failed)
		}
		c.ask(size)
	}
	c.Eventually("the claim to have what it asks for", c.grown)
}

// failed is empty if the controller or the kubelet has reported an error in the claim.
func (c *cluster) failed() string {
	s, err := c.see()
	if err != nil {
		return err.Error()
	}
	for _, told := range s.claim.Status.Conditions {
		if told.Type == corev1.PersistentVolumeClaimControllerResizeError || told.Type == corev1.PersistentVolumeClaimNodeResizeError {
			return ""
		}
	}
	return fmt.Sprintf("the claim says %+v", s.claim.Status)
}

func (c *cluster) grown() string {
	s, err := c.see()
	if err != nil {
		return err.Error()
	}
	has, made := s.claim.Status.Capacity[corev1.ResourceStorage], s.volume.Spec.Capacity[corev1.ResourceStorage]
	journal := s.record.Status.Expansion
	switch {
	case has.String() != c.growth.want || len(s.claim.Status.Conditions) > 0 || statusOf(s.claim) != "":
		return fmt.Sprintf("the claim says %+v", s.claim.Status)
	case made.String() != c.growth.made || s.record.Status.Capacity != made.Value():
		return fmt.Sprintf("the volume has %s, the record %d", made.String(), s.record.Status.Capacity)
	case journal == nil || journal.TargetCapacity != 0 || journal.NextAttemptTime != nil:
		return fmt.Sprintf("the journal says %+v", journal)
	case len(s.pods) > 0:
		return "pod " + s.pods[0].Name + " is left"
	}
	return ""
}

// Check checks that no more expansion pods ran than needed, and that the result still holds.
func (c *cluster) Check() {
	c.T.Helper()
	if ran := c.kubelet.Ran(tarnv1.StepExpansion); len(ran) < c.growth.least || len(ran) > c.growth.most {
		c.T.Errorf("expansion pods %q have run, want %d to %d", ran, c.growth.least, c.growth.most)
	}
	if wrong := c.grown(); wrong != "" {
		c.T.Error("after it had grown: " + wrong)
	}
}
