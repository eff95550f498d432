package explain

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// mostNames is how many names a message lists.
const mostNames = 3

// objectsOf returns the objects of a list of any kind.
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
