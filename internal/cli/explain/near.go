package explain

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// mostNames is how many names a text lists.
const mostNames = 3

// mostSteps is how far apart names may be that are like each other.
const mostSteps = 3

// near gives the names that are most like one, the likest first; none where none is
// like it.
func near(name string, names []string) []string {
	type candidate struct {
		name  string
		steps int
	}
	var like []candidate
	for _, n := range names {
		if d := distance(name, n); d <= min(mostSteps, max(1, len(name)/3)) {
			like = append(like, candidate{n, d})
		}
	}
	slices.SortFunc(like, func(a, b candidate) int { return cmp.Or(cmp.Compare(a.steps, b.steps), cmp.Compare(a.name, b.name)) })
	var found []string
	for _, c := range like[:min(len(like), mostNames)] {
		found = append(found, c.name)
	}
	return found
}

// distance is how many letters have to be put in, taken out or replaced to make one
// word the other.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			above := row[j+1]
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			row[j+1] = min(replaced, above+1, row[j]+1)
			diagonal = above
		}
	}
	return row[len(b)]
}

// objectsOf gives the objects of a list of any kind.
func objectsOf(list client.ObjectList) []client.Object {
	var found []client.Object
	_ = meta.EachListItem(list, func(item runtime.Object) error {
		if o, ok := item.(client.Object); ok {
			found = append(found, o)
		}
		return nil
	})
	return found
}
