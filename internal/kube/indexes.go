package kube

import (
	"context"
	"hash/fnv"
	"strconv"
	"sync"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// buckets is how many values an index by what each object has another of holds at most.
// A value is a set of names of its own, some 300 bytes and of a claim twice that, with one
// name in it or with eight: ten thousand claims by uid took 6 MiB, and take 1 in buckets.
const buckets = 2048

// bucket is the value under which such an index has an object. Those few others that it
// has there are left out by whoever reads it.
func bucket(value string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(value)) // never fails
	return strconv.FormatUint(uint64(h.Sum32()%buckets), 36)
}

// Shared gives a manager whose controllers share the indexes ClaimsByVolume,
// VolumesByHandle and RecordsByHandleAwaited: each may add them, and they are there once.
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
	i.added[field] = field == ClaimsByVolume || field == VolumesByHandle || field == RecordsByHandleAwaited
	return nil
}
