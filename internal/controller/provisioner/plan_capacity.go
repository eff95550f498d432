package provisioner

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
)

// room is one CSIStorageCapacity object to have: a class on a node, with what its node agent is to
// measure.
type room struct {
	class, node, hostname string
	path, reserve         string
	// problem says why there is nothing to measure; empty if there is.
	problem string
}

// measureKeys are the annotations that tell a node agent what to measure. Others may be anyone's.
var measureKeys = []string{tarnv1.AnnotationNode, tarnv1.AnnotationCapacityPath, tarnv1.AnnotationCapacityReserve}

func sameMeasure(a, b *storagev1.CSIStorageCapacity) bool {
	return !slices.ContainsFunc(measureKeys, func(key string) bool { return a.Annotations[key] != b.Annotations[key] })
}

// planRooms creates missing CSIStorageCapacity objects, and corrects what their node agents
// measure. An object begins with an unlimited capacity, so that a node is avoided only after its
// agent has measured it.
func planRooms(v View) []action.Action {
	if nameTaken(v) {
		return nil
	}
	existing := byName(v.Capacities)
	problems := map[string]string{}
	var actions []action.Action
	for _, r := range v.Rooms {
		want := r.object(v.Provisioner)
		have := existing[want.Name]
		if have != nil && sameMeasure(have, want) {
			continue
		}
		if r.problem != "" {
			problems[r.class] = r.problem
		}
		if have == nil {
			actions = append(actions, action.Create{Object: want})
			continue
		}
		mended := have.DeepCopy()
		if mended.Annotations == nil {
			mended.Annotations = map[string]string{}
		}
		for _, key := range measureKeys {
			delete(mended.Annotations, key)
		}
		maps.Copy(mended.Annotations, want.Annotations)
		mended.Capacity = want.Capacity
		actions = append(actions, action.Patch{From: have, To: mended})
	}
	for _, class := range slices.Sorted(maps.Keys(problems)) {
		actions = append(actions, action.Emit{About: v.Provisioner, Type: corev1.EventTypeWarning, Reason: ReasonCapacityInvalid, Doing: eventAction,
			Note: fmt.Sprintf("StorageClass %s: %s; no node is avoided for it", class, problems[class])})
	}
	return actions
}

// planSurplus deletes CSIStorageCapacity objects of classes and nodes that are gone, and of an
// earlier provisioner of the name. While the provisioner is not valid, only its classes are known.
// An object of a class that was made again for another driver would answer for that driver.
func planSurplus(v View) []action.Action {
	wanted := map[string]bool{}
	for _, r := range v.Rooms {
		wanted[r.name(v.Provisioner)] = true
	}
	var actions []action.Action
	for i := range v.Capacities {
		c := &v.Capacities[i]
		keep := wanted[c.Name] && ownedBy(c, v.Provisioner)
		if len(v.Problems) > 0 {
			keep = slices.Contains(v.Classes, c.StorageClassName)
		}
		if !keep || nameTaken(v) {
			actions = append(actions, action.Delete{Object: c})
		}
	}
	return actions
}

func byName(capacities []storagev1.CSIStorageCapacity) map[string]*storagev1.CSIStorageCapacity {
	found := make(map[string]*storagev1.CSIStorageCapacity, len(capacities))
	for i := range capacities {
		found[capacities[i].Name] = &capacities[i]
	}
	return found
}

// name depends on all that cannot change in an object.
func (r room) name(p *pavv1.PavProvisioner) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{p.Name, r.class, r.node, r.hostname}, "\x00")))
	return "capacity-" + hex.EncodeToString(sum[:16])
}

func (r room) object(p *pavv1.PavProvisioner) *storagev1.CSIStorageCapacity {
	annotations := map[string]string{tarnv1.AnnotationNode: r.node}
	if r.problem == "" {
		annotations[tarnv1.AnnotationCapacityPath] = r.path
	}
	if r.problem == "" && r.reserve != "" {
		annotations[tarnv1.AnnotationCapacityReserve] = r.reserve
	}
	return &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: tarnv1.SystemNamespace, Name: r.name(p), Annotations: annotations,
			Labels:          map[string]string{tarnv1.LabelProvisioner: p.Name, tarnv1.LabelCapacityNode: tarnv1.VolumeLabel(r.node)},
			OwnerReferences: []metav1.OwnerReference{ownerOf(p)},
		},
		NodeTopology:     &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: r.hostname}},
		StorageClassName: r.class,
		Capacity:         resource.NewQuantity(math.MaxInt64, resource.BinarySI),
	}
}
