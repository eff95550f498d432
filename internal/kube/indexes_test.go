package kube

import (
	"context"
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// indexing is a manager that accepts each index only once, like a real one.
type indexing struct {
	ctrl.Manager
	added []string
	fails bool
}

func (m *indexing) GetFieldIndexer() client.FieldIndexer { return m }

func (m *indexing) IndexField(_ context.Context, _ client.Object, field string, _ client.IndexerFunc) error {
	if m.fails || slices.Contains(m.added, field) {
		return errors.New("indexer conflict: " + field)
	}
	m.added = append(m.added, field)
	return nil
}

func TestControllersOfOneManagerShareTheirIndexes(t *testing.T) {
	m := &indexing{fails: true}
	mgr := Shared(m)
	if IndexClaims(t.Context(), mgr) == nil {
		t.Error("an index that could not be added was taken for one that is there")
	}
	m.fails = false
	for range 3 {
		if err := errors.Join(IndexClaims(t.Context(), mgr), IndexHandles(t.Context(), mgr)); err != nil {
			t.Error(err)
		}
	}
	if want := []string{ClaimsByVolume, VolumesByHandle}; !slices.Equal(m.added, want) {
		t.Errorf("added %q, want %q", m.added, want)
	}
	own := func() error { return mgr.GetFieldIndexer().IndexField(t.Context(), &corev1.Pod{}, "own", nil) }
	if err := own(); err != nil {
		t.Error(err)
	}
	if own() == nil {
		t.Error("two controllers with an index of one name of their own were not told")
	}
}
