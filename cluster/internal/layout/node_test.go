package layout

import (
	"slices"
	"strings"
	"testing"
)

func names(s State) []string {
	var all []string
	for _, n := range s.Nodes {
		all = append(all, n.Name+" in "+n.Zone())
	}
	return all
}

func TestNodesGetTheLowestFreeNumberAndItsZone(t *testing.T) {
	s, err := State{Name: "x"}.WithNodes(4)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := names(s), []string{"x-2 in b", "x-3 in c", "x-4 in a"}; !slices.Equal(got, want) {
		t.Errorf("four nodes are the first and %q, want %q", got, want)
	}
	if s, _, err = s.RemoveNode("x-3").AddNode("other"); err != nil {
		t.Fatal(err)
	}
	if got, want := names(s), []string{"x-2 in b", "x-4 in a", "other in c"}; !slices.Equal(got, want) {
		t.Errorf("after a removal and an addition there are %q, want %q", got, want)
	}
	if same, err := s.WithNodes(0); err != nil || !slices.Equal(names(same), names(s)) {
		t.Errorf("without a number of nodes there are %q, %v", names(same), err)
	}
}

func TestNodesThatCannotBeAreRejectedWithTheRemedy(t *testing.T) {
	three, err := State{Name: "x"}.WithNodes(3)
	if err != nil {
		t.Fatal(err)
	}
	five, err := three.WithNodes(MaxNodes)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		do   func() error
		want string
	}{
		"too many":        {func() error { _, err := three.WithNodes(6); return err }, "use 1 to 5"},
		"less than none":  {func() error { _, err := three.WithNodes(-1); return err }, "use 1 to 5"},
		"fewer":           {func() error { _, err := three.WithNodes(2); return err }, "node remove"},
		"where none runs": {func() error { _, err := State{Options: Options{WithoutNode: true}}.WithNodes(2); return err }, "--without-node"},
		"one too many":    {func() error { _, _, err := five.AddNode(""); return err }, "node remove"},
		"a name twice":    {func() error { _, _, err := three.AddNode("x-3"); return err }, "another name"},
		"the first's":     {func() error { _, _, err := three.AddNode("x"); return err }, "another name"},
		"a bad name":      {func() error { _, _, err := three.AddNode("A/b"); return err }, "lower-case"},
	} {
		if err := c.do(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q in it", what, err, c.want)
		}
	}
}
