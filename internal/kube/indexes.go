package kube

import (
	"context"
	"sync"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Shared gives a manager whose controllers share the indexes ClaimsByVolume and
// VolumesByHandle: each may add them, and they are there once. An entry of an index takes
// some 300 bytes, of a claim twice that, and four controllers had one each.
func Shared(mgr ctrl.Manager) ctrl.Manager {
	return shared{Manager: mgr, indexer: &sharedIndexer{FieldIndexer: mgr.GetFieldIndexer(), added: map[string]bool{}}}
}

type shared struct {
	ctrl.Manager
	indexer *sharedIndexer
}

// GetFieldIndexer implements ctrl.Manager.
func (s shared) GetFieldIndexer() client.FieldIndexer { return s.indexer }

type sharedIndexer struct {
	client.FieldIndexer
	mu    sync.Mutex
	added map[string]bool
}

// IndexField implements client.FieldIndexer.
func (i *sharedIndexer) IndexField(ctx context.Context, o client.Object, field string, values client.IndexerFunc) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.added[field] {
		return nil
	}
	if err := i.FieldIndexer.IndexField(ctx, o, field, values); err != nil {
		return err
	}
	i.added[field] = field == ClaimsByVolume || field == VolumesByHandle
	return nil
}
