package explain

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/testkit"
)

// lists is a cluster with claims, volumes and one namespace. It fails a read without a name.
type lists struct {
	t       *testing.T
	claims  []corev1.PersistentVolumeClaim
	volumes []corev1.PersistentVolume
	pods    []corev1.Pod
}

func (l *lists) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if _, isClaim := into.(*corev1.PersistentVolumeClaim); isClaim && key.Namespace == "" || key.Name == "" {
		l.t.Errorf("a %T %q is asked for", into, key)
	}
	switch into := into.(type) {
	case *corev1.Namespace:
		if key.Name == "shop" {
			return nil
		}
	case *corev1.PersistentVolumeClaim:
		if i := slices.IndexFunc(l.claims, func(c corev1.PersistentVolumeClaim) bool { return client.ObjectKeyFromObject(&c) == key }); i >= 0 {
			*into = l.claims[i]
			return nil
		}
	case *corev1.Pod:
		if i := slices.IndexFunc(l.pods, func(p corev1.Pod) bool { return client.ObjectKeyFromObject(&p) == key }); i >= 0 {
			*into = l.pods[i]
			return nil
		}
	case *corev1.PersistentVolume:
		if i := slices.IndexFunc(l.volumes, func(v corev1.PersistentVolume) bool { return v.Name == key.Name }); i >= 0 {
			*into = l.volumes[i]
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

func (l *lists) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	switch into := into.(type) {
	case *corev1.PersistentVolumeClaimList:
		into.Items = l.claims
	case *corev1.PersistentVolumeList:
		into.Items = l.volumes
	}
	return nil
}

// gathered returns the View that is read for an object.
func gathered(t *testing.T, asked Object, cluster *lists) *View {
	t.Helper()
	cluster.t = t
	g := &gatherer{Source: Source{Client: cluster, Namespace: "tarn-system"}, view: &View{Asked: asked, Now: now}}
	if err := g.gather(t.Context()); err != nil {
		t.Fatal(err)
	}
	return g.view
}

func TestOfAPodWithoutANodeTheNodeOfItsLocalVolumeIsRead(t *testing.T) {
	on := func(values ...string) *corev1.VolumeNodeAffinity {
		return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: values}},
		}}}}
	}
	for name, c := range map[string]struct {
		affinity *corev1.VolumeNodeAffinity
		on       string
		want     home
	}{
		"one node":             {on("n1"), "", home{Volume: "vol", Name: "n1", Gone: true}},
		"two nodes":            {on("n1", "n2"), "", home{}},
		"every node":           {nil, "", home{}},
		"a pod that has begun": {on("n1"), "n1", home{}},
	} {
		pod := somePod("shop", "web", func(p *corev1.Pod) {
			p.Spec.NodeName = c.on
			p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
		})
		claim := testkit.Claim("shop", "data", "claim-uid", "gold", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "vol" })
		vol := freeVolume("vol", "1Gi", func(v *corev1.PersistentVolume) { v.Spec.NodeAffinity = c.affinity })
		v := gathered(t, Object{Pod, "shop", "web"}, &lists{pods: []corev1.Pod{*pod}, claims: []corev1.PersistentVolumeClaim{*claim}, volumes: []corev1.PersistentVolume{vol}})
		if v.Pod.Home != c.want {
			t.Errorf("%s: read %+v, want %+v", name, v.Pod.Home, c.want)
		}
	}
}

func TestOfAReservedVolumeItIsReadWhetherItsClaimCanCome(t *testing.T) {
	for name, c := range map[string]struct {
		ref  corev1.ObjectReference
		want bool
	}{
		"a namespace that is there":     {corev1.ObjectReference{Namespace: "shop", Name: "data"}, false},
		"a namespace that is not there": {corev1.ObjectReference{Namespace: "shpo", Name: "data"}, true},
		"no namespace at all":           {corev1.ObjectReference{Name: "data"}, false},
		"nothing":                       {corev1.ObjectReference{}, false},
	} {
		vol := freeVolume("mine", "1Gi", func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = &c.ref })
		v := gathered(t, Object{Volume, "", "mine"}, &lists{volumes: []corev1.PersistentVolume{vol}})
		if v.Volume.NoNamespace != c.want || len(v.Unread) > 0 {
			t.Errorf("%s: missing %t, want %t; not read: %+v", name, v.Volume.NoNamespace, c.want, v.Unread)
		}
	}
}

func TestOfAReleasedVolumeTheClaimsAreReadThatNameIt(t *testing.T) {
	vol := freeVolume("mine", "1Gi", forData("old"))
	vol.Status.Phase = corev1.VolumeReleased
	claims := []corev1.PersistentVolumeClaim{*claimOf("new", "mine", corev1.ClaimPending), *claimOf("x", "other", corev1.ClaimBound), *claimOf("going", "mine", corev1.ClaimPending)}
	claims[1].Name, claims[2].Name, claims[2].DeletionTimestamp = "other", "going", &began
	v := gathered(t, Object{Volume, "", "mine"}, &lists{claims: claims, volumes: []corev1.PersistentVolume{vol}})
	if got := v.Volume.Claimants; len(got) != 1 || got[0].UID != "new" {
		t.Errorf("got %+v, want the one claim that names it and stays", got)
	}
}
