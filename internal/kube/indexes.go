package kube

import (
	"context"
	"fmt"
	"hash/fnv"
	"reflect"
	"strconv"
	"sync"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// buckets is the most values that an index by a unique field holds. Each value costs a set of
// names, some 300 bytes and twice that for claims, whether the set has one name or eight. For ten
// thousand claims by UID the index took 6 MiB, and takes 1 MiB with buckets.
const buckets = 2048

// bucket is the index value for a field's value. A few other objects share the bucket: the reader
// of the index must filter them out.
func bucket(value string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(value)) // never fails
	return strconv.FormatUint(uint64(h.Sum32()%buckets), 36)
}

func addIndex(ctx context.Context, mgr ctrl.Manager, o client.Object, name string, values client.IndexerFunc) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, o, name, values); err != nil {
		return fmt.Errorf("adding index %s of %s: %w", name, reflect.TypeOf(o).Elem().Name(), err)
	}
	return nil
}

// Shared gives a manager whose controllers share the indexes ClaimsByVolume, VolumesByHandle and
// RecordsByHandleAwaited. Each controller may add them, and they exist once.
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
