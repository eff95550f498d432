package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// prepareWith reads the objects of --with, of any kind.
func (t *pavTry) prepareWith(cmd *cobra.Command) error {
	for _, file := range t.withFiles {
		shown, text, err := readInput(cmd, file)
		if err != nil {
			return fmt.Errorf("--with: %w", err)
		}
		all, wrong := readManifests(shown, text)
		if len(wrong) > 0 {
			return fmt.Errorf("--with: %s", wrong[0])
		}
		for _, m := range all {
			if m.kind() == "" || m.text("apiVersion") == "" || m.name() == "" {
				return fmt.Errorf("--with: %s, document %d needs apiVersion, kind and metadata.name; add them", shown, m.number)
			}
			t.companions = append(t.companions, m.unstructured())
		}
	}
	if t.fixed != "" {
		if wrong := validation.IsDNS1123Label(t.fixed); len(wrong) > 0 {
			return fmt.Errorf("--namespace %q is not a valid namespace name: %s", t.fixed, wrong[0])
		}
		t.namespace = t.fixed
	}
	return nil
}

// makeNamespace creates the namespace of the test. It rejects one that exists, because the test
// deletes the namespace with all its objects.
func (t *pavTry) makeNamespace(ctx context.Context) error {
	err := t.world.live.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: t.namespace}})
	if t.foreign = apierrors.IsAlreadyExists(err); t.foreign {
		return fmt.Errorf("namespace %s exists already, and the test would delete it at the end: give --namespace a name that does not exist", t.namespace)
	}
	if err != nil {
		return fmt.Errorf("creating namespace %s: %w", t.namespace, err)
	}
	return nil
}

// makeCompanions creates the objects of --with, in the order of the files. A namespaced object that
// names no namespace is created in that of the test.
func (t *pavTry) makeCompanions(ctx context.Context) error {
	for _, o := range t.companions {
		what := o.GetKind() + " " + o.GetName()
		namespaced, err := t.world.live.IsObjectNamespaced(o)
		if err != nil {
			return fmt.Errorf("--with: %s: %w", what, err)
		}
		if namespaced && o.GetNamespace() == "" {
			o.SetNamespace(t.namespace)
		}
		err = client.WithFieldValidation(t.world.live, "Strict").Create(ctx, o)
		if apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("--with: %s exists already, and the test would delete it at the end: leave it out, or give it another name", what)
		}
		if err != nil {
			return fmt.Errorf("--with: creating %s: %w", what, err)
		}
		t.made = append(t.made, o)
	}
	return nil
}

// discardCompanions removes the objects of --with, the last one first.
func (t *pavTry) discardCompanions(ctx context.Context) error {
	var left []string
	for _, o := range slices.Backward(t.made) {
		err := t.world.live.Delete(ctx, o, client.Preconditions{UID: ptr.To(o.GetUID())})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			left = append(left, fmt.Sprintf("%s %s: %v", o.GetKind(), o.GetName(), err))
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("removing the objects of --with: %s", strings.Join(left, "; "))
	}
	return nil
}
