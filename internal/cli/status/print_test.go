package status

import (
	"bytes"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// brackets is a Paint with readable marks instead of colours.
type brackets struct{}

func (brackets) Good(text string) string { return "[good " + text + "]" }
func (brackets) Bad(text string) string  { return "[bad " + text + "]" }
func (brackets) Hint(text string) string { return "[hint " + text + "]" }

func TestTheVerdictComesFirstAndWhatIsWrongLast(t *testing.T) {
	v := world()
	v.Claims.Items[0].DeletionTimestamp = &hour
	v.Unread = []Unread{{kindStage, "needs permission to list pavstages.tarn.dev"}}
	spare(v, "soon", inTrash(now.Add(time.Hour)))
	var out bytes.Buffer
	if err := judge(v).Print(&out, brackets{}, now); err != nil {
		t.Fatal(err)
	}
	want := `[bad tarn is not healthy: 1 problem]

controller   host-1 is the leader, renewed 1s ago
node agents  on 1 of 1 nodes
claims       1 Terminating
volumes      1 Bound (1Gi), 1 InTrash (1Gi)
records      1 Created
trash        1, 1Gi; the next expires in 60m

PROVISIONER  ACCEPTED  VOLUMES  FAILING
gold         yes       2        0

POOL  READY  SPARE  MINIMUM  MAKING  IN USE  MAXIMUM
fast  yes    2      2        0       1       5

NAMESPACE  APP  READY  RUNNING  VOLUMES  REASON
shop       web  yes    1/1      1        Ready

problems:
- [bad claim shop/data], since 60m: it is being deleted, and something keeps it
    [hint tarn explain claim shop/data]

cannot read each PavStage: needs permission to list pavstages.tarn.dev
`
	if out.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", out.String(), want)
	}
}

func TestWhatIsWrongIsToldWithoutWhatATerminalWouldActOn(t *testing.T) {
	r := &Report{Problems: []Problem{{Message: "it printed last:\n\x1b[2Jall is well"}}}
	var out bytes.Buffer
	if err := r.Print(&out, brackets{}, now); err != nil || !strings.Contains(out.String(), "it printed last:\n    [2Jall is well") {
		t.Errorf("printed %q, %v", out.String(), err)
	}
}

func TestManyProblemsAreCounted(t *testing.T) {
	v := world()
	lost := v.Claims.Items[0]
	lost.Status.Phase = corev1.ClaimLost
	v.Claims.Items = nil
	for range mostProblems + 3 {
		v.Claims.Items = append(v.Claims.Items, lost)
	}
	var out bytes.Buffer
	if err := judge(v).Print(&out, brackets{}, now); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(out.String(), "tarn explain claim"); got != mostProblems || !strings.Contains(out.String(), "and 3 more; see all with --output json") {
		t.Errorf("%d problems are told:\n%s", got, out.String())
	}
}
