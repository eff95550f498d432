package provisioner

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
)

// Names of this controller's indexes. They begin with its name, because two controllers of one
// manager cannot add the same index.
const (
	byProvisioner = "accept.provisioner" // PavVolume, PavStage
	byDriver      = "accept.driver"      // CSINode
)

// pageSize is how many objects a live list requests at once.
const pageSize = 500

func addIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	for _, index := range indexes() {
		if err := indexer.IndexField(ctx, index.object, index.field, index.values); err != nil {
			return fmt.Errorf("adding index %s of %T: %w", index.field, index.object, err)
		}
	}
	return nil
}

type index struct {
	object client.Object
	field  string
	values client.IndexerFunc
}

func indexes() []index {
	return []index{
		{&tarnv1.PavVolume{}, byProvisioner, func(o client.Object) []string {
			return []string{o.(*tarnv1.PavVolume).Spec.Provisioner.Name}
		}},
		{&tarnv1.PavStage{}, byProvisioner, func(o client.Object) []string {
			return []string{o.(*tarnv1.PavStage).Spec.Provisioner.Name}
		}},
		{&storagev1.CSINode{}, byDriver, func(o client.Object) []string {
			var names []string
			for _, driver := range o.(*storagev1.CSINode).Spec.Drivers {
				names = append(names, driver.Name)
			}
			return names
		}},
	}
}

// View is all that a decision about one provisioner depends on. Its lists share memory with the
// cache and must not be changed.
type View struct {
	// Provisioner is the object; nil if it is gone.
	Provisioner *pavv1.PavProvisioner
	// Problems are the errors in it that show without evaluating its templates.
	Problems []steppod.Problem
	// Driver is the CSIDriver of the same name, Tarn's or not; nil if none exists.
	Driver *storagev1.CSIDriver
	// Nodes is how many CSINodes list the driver.
	Nodes int32
	// Records and Stages are those of this provisioner, matched by name and UID.
	Records []tarnv1.PavVolume
	Stages  []tarnv1.PavStage
	// Volumes are the PersistentVolumes of Records in phase Created, by name. They are read
	// only while the provisioner is being deleted.
	Volumes map[string]*corev1.PersistentVolume
	// Capacities are the CSIStorageCapacity objects of the provisioner, and Rooms are those that
	// spec.nodeCapacity asks for. Classes are the StorageClasses that the scheduler asks about. A
	// provisioner with Problems has no Rooms; one with neither Problems nor nodeCapacity has no
	// Classes.
	Capacities []storagev1.CSIStorageCapacity
	Rooms      []room
	Classes    []string
	// Live means that Records, Stages and Volumes come from the API server. What is missing
	// there does not exist.
	Live bool
}

// +kubebuilder:rbac:groups=pav.albertofaria.github.io,resources=pavprovisioners,verbs=get;list;watch
// +kubebuilder:rbac:groups=tarn.dev,resources=pavvolumes;pavstages,verbs=get;list;watch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=csidrivers;csinodes,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=get;list;watch

// gather reads from the cache. If the cache shows nothing that keeps a deleted provisioner,
// gather reads again from the API server.
func (r *Reconciler) gather(ctx context.Context, name string) (View, error) {
	p := &pavv1.PavProvisioner{}
	if err := r.client.Get(ctx, client.ObjectKey{Name: name}, p); err != nil {
		return View{}, client.IgnoreNotFound(err)
	}
	v := View{Provisioner: p, Problems: steppod.Check(p, r.namespaces)}
	driver := &storagev1.CSIDriver{}
	switch err := r.client.Get(ctx, client.ObjectKey{Name: name}, driver); {
	case err == nil:
		v.Driver = driver
	case client.IgnoreNotFound(err) != nil:
		return View{}, fmt.Errorf("reading CSIDriver %s: %w", name, err)
	}
	var nodes storagev1.CSINodeList
	if err := r.client.List(ctx, &nodes, client.MatchingFields{byDriver: name}, client.UnsafeDisableDeepCopy); err != nil {
		return View{}, fmt.Errorf("listing CSINodes with driver %s: %w", name, err)
	}
	v.Nodes = int32(len(nodes.Items)) //nolint:gosec // a cluster has no 2^31 nodes
	cached := []client.ListOption{client.MatchingFields{byProvisioner: name}, client.UnsafeDisableDeepCopy}
	if err := readUsers(ctx, r.client, &v, cached...); err != nil {
		return View{}, err
	}
	if err := r.gatherCapacity(ctx, &v); err != nil {
		return View{}, err
	}
	if mayGo(v) {
		v.Live = true
		if err := readUsers(ctx, r.live, &v, client.Limit(pageSize)); err != nil {
			return View{}, err
		}
	}
	return v, nil
}

// readUsers fills in the records, stages and volumes of the provisioner.
func readUsers(ctx context.Context, from client.Reader, v *View, options ...client.ListOption) error {
	p := v.Provisioner
	ours := func(ref tarnv1.ProvisionerReference) bool { return ref.Name == p.Name && ref.UID == p.UID }
	v.Records, v.Stages, v.Volumes = nil, nil, map[string]*corev1.PersistentVolume{}
	err := pages(ctx, from, func() *tarnv1.PavVolumeList { return &tarnv1.PavVolumeList{} }, func(page *tarnv1.PavVolumeList) {
		others := func(r tarnv1.PavVolume) bool { return !ours(r.Spec.Provisioner) }
		v.Records = joined(v.Records, slices.DeleteFunc(page.Items, others))
	}, options...)
	if err != nil {
		return fmt.Errorf("listing PavVolumes of %s: %w", p.Name, err)
	}
	err = pages(ctx, from, func() *tarnv1.PavStageList { return &tarnv1.PavStageList{} }, func(page *tarnv1.PavStageList) {
		others := func(s tarnv1.PavStage) bool { return !ours(s.Spec.Provisioner) || s.Void() }
		v.Stages = joined(v.Stages, slices.DeleteFunc(page.Items, others))
	}, options...)
	if err != nil {
		return fmt.Errorf("listing PavStages of %s: %w", p.Name, err)
	}
	if p.DeletionTimestamp == nil {
		return nil
	}
	for i := range v.Records {
		record := &v.Records[i]
		if record.Status.Phase != tarnv1.VolumeCreated {
			continue
		}
		vol := &corev1.PersistentVolume{}
		switch err := from.Get(ctx, client.ObjectKey{Name: record.Name}, vol); {
		case err == nil:
			v.Volumes[record.Name] = vol
		case client.IgnoreNotFound(err) != nil:
			return fmt.Errorf("reading PersistentVolume %s: %w", record.Name, err)
		}
	}
	return nil
}

// joined appends a page to the pages before it. A cache returns a single page of perhaps ten
// thousand records. That page is not copied: growing a slice to that size would take 14 MiB.
func joined[T any](before, page []T) []T {
	if before == nil {
		return page
	}
	return append(before, page...)
}

// pages lists page by page if the options contain a limit. Otherwise it lists all at once, as
// from a cache, which ignores the continue token but returns one.
//
// Each page is decoded into a new list. Decoding into a used list would overwrite what was kept
// of the page before.
func pages[L client.ObjectList](ctx context.Context, from client.Reader, empty func() L, each func(L), options ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(options)
	for {
		list := empty()
		if err := from.List(ctx, list, &o); err != nil {
			return err
		}
		each(list)
		if o.Continue = list.GetContinue(); o.Continue == "" || o.Limit == 0 {
			return nil
		}
	}
}
