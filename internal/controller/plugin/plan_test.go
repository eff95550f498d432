package plugin

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/plugin"
	"tarn.dev/tarn/internal/plugin/plugintest"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

const (
	fakeName = "tarn.dev/fake"
	fakeNode = "node-1"
)

var now = time.Date(2026, 1, 2, 4, 0, 0, 0, time.UTC)

var deletedAt = metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))

// change edits a View.
type change = func(*View)

// claimView is a claim that was assigned to the plugin.
func claimView(changes ...change) *View {
	_, p := plugintest.NewFake(fakeName, fakeNode)
	claim := testkit.Claim("ns", "data", "u1", fakeName)
	class := testkit.Class(fakeName, func(c *storagev1.StorageClass) { c.Parameters = nil })
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fakeNode, Labels: map[string]string{corev1.LabelHostname: "host-1", "rack": "a"}}}
	v := &View{VolumeName: "pvc-u1", Claim: claim, Class: class, Plugin: &p, Node: node}
	for _, c := range changes {
		c(v)
	}
	return v
}

// volumeView is a volume that was made for such a claim, which is gone.
func volumeView(phase corev1.PersistentVolumePhase, policy corev1.PersistentVolumeReclaimPolicy, changes ...change) *View {
	v := claimView()
	v.Class.ReclaimPolicy = &policy
	v.Volume = newVolume(v, plugin.Asset{Source: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/fake/pvc-u1"}}})
	v.Volume.Status.Phase = phase
	v.Claim, v.Class, v.Node = nil, nil, nil
	for _, c := range changes {
		c(v)
	}
	return v
}

func promisedClaim(v *View) {
	v.Claim.Finalizers = append(v.Claim.Finalizers, tarnv1.FinalizerInProcess)
	v.Claim.Annotations[tarnv1.AnnotationPlugin] = fakeName
	v.Claim.Annotations[tarnv1.AnnotationNode] = fakeNode
}

func deletedClaim(v *View)  { v.Claim.DeletionTimestamp = &deletedAt }
func deletedVolume(v *View) { v.Volume.DeletionTimestamp = &deletedAt }
func waitsForPod(v *View) {
	v.Class.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
}

func selected(node string) change {
	return func(v *View) { v.Claim.Annotations[volume.AnnSelectedNode] = node }
}

func boundTo(name string) change {
	return func(v *View) { v.Claim.Spec.VolumeName, v.Claim.Status.Phase = name, corev1.ClaimBound }
}

// withClaim restores the volume's claim, with a promise.
func withClaim(changes ...change) change {
	return func(v *View) {
		v.Claim = claimView(promisedClaim).Claim
		for _, c := range changes {
			c(v)
		}
	}
}

func missing(v *View) { v.Missing = errors.New("the disk is not mounted") }

func asking(size string) change {
	return func(v *View) {
		v.Claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	}
}

func finalizers(names ...string) change { return func(v *View) { v.Volume.Finalizers = names } }

func topology(key string, values ...string) change {
	return func(v *View) {
		v.Class.AllowedTopologies = append(v.Class.AllowedTopologies, corev1.TopologySelectorTerm{
			MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: key, Values: values}},
		})
	}
}

func TestAClaim(t *testing.T) {
	for _, c := range []struct {
		name    string
		changes []change
		want    Act
		// wantWarning is part of the warning for the claim.
		wantWarning string
	}{
		{"case 106: given to the plugin is promised a volume", nil, ActPromise, ""},
		{"case 106: promised one gets it", []change{promisedClaim}, ActMake, ""},
		{"case 114: deleted before anything was begun gets none", []change{deletedClaim}, ActNone, ""},
		{"case 114: deleted while its volume is being made has it undone", []change{promisedClaim, deletedClaim}, ActUndo, ""},
		{"case 115: that got another volume meanwhile has it undone", []change{promisedClaim, boundTo("other")}, ActUndo, ""},
		{"case 117: that names a volume gets none", []change{boundTo("other")}, ActNone, ""},
		{"case 117: whose class is another provisioner's gets none", []change{func(v *View) { v.Class.Provisioner = "other" }}, ActNone, ""},
		{"case 117: whose class has become another's has it undone", []change{promisedClaim, func(v *View) { v.Class.Provisioner = "other" }}, ActUndo, ""},
		{"case 104: whose class is missing waits", []change{func(v *View) { v.Class = nil }}, ActNone, ""},
		{"that was given to another provisioner is not ours", []change{func(v *View) { v.Plugin = nil }}, ActNone, ""},
		{"that is gone needs nothing", []change{func(v *View) { v.Claim = nil }}, ActNone, ""},
		{"case 117: that waits for a pod gets none before the node is selected", []change{waitsForPod}, ActNone, ""},
		{"case 117: that waited for a pod gets it on the node", []change{waitsForPod, selected(fakeNode)}, ActPromise, ""},
		{"case 119: is given back to the scheduler on another node", []change{waitsForPod, selected("node-2")}, ActRefuse, `"node-2"`},
		{"case 119: whose node is given up has it undone", []change{promisedClaim, waitsForPod}, ActUndo, ""},
		{"case 119: whose node was changed has it undone", []change{promisedClaim, waitsForPod, selected("node-2")}, ActUndo, ""},
		{"case 111: whose class has mount options is told", []change{func(v *View) { v.Class.MountOptions = []string{"noatime"} }}, ActRefuse, `mount options; remove mountOptions ["noatime"]`},
		{"case 111: with a data source is told", []change{func(v *View) { v.Claim.Spec.DataSource = &corev1.TypedLocalObjectReference{} }}, ActRefuse, "spec.dataSource"},
		{"with a data source of any kind is told", []change{func(v *View) { v.Claim.Spec.DataSourceRef = &corev1.TypedObjectReference{} }}, ActRefuse, "spec.dataSource"},
		{"that was bound once is Lost and gets no other volume", []change{func(v *View) {
			v.Claim.Annotations["pv.kubernetes.io/bind-completed"] = "yes"
		}}, ActNone, ""},
		{"that a populator serves is left to it", []change{func(v *View) { v.Claim.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "Backup"} }}, ActNone, ""},
		{"with a selector is told", []change{func(v *View) { v.Claim.Spec.Selector = &metav1.LabelSelector{} }}, ActRefuse, "spec.selector"},
		{"with an attributes class is told", []change{func(v *View) { v.Claim.Spec.VolumeAttributesClassName = ptr.To("fast") }}, ActRefuse, `spec.volumeAttributesClassName "fast"`},
		{"that the plugin cannot serve is told", []change{func(v *View) { v.Unserved = errors.New("no blocks") }}, ActRefuse, "no blocks"},
		{"case 107: a refusal undoes what was promised before", []change{promisedClaim, func(v *View) { v.Unserved = errors.New("no blocks") }}, ActUndo, ""},
		{"whose class allows the node gets it", []change{topology("rack", "b"), topology("rack", "a", "c")}, ActPromise, ""},
		{"whose class does not allow the node is told", []change{topology("rack", "b")}, ActRefuse, "allowedTopologies"},
		{"whose class wants a label the node lacks is told", []change{topology("zone", "a")}, ActRefuse, "allowedTopologies"},
		{"is told when the plugin's node is not in the cluster", []change{func(v *View) { v.Node = nil }}, ActRefuse, "--node-name"},
		{"keeps its promise while the plugin's node is not in the cluster", []change{promisedClaim, func(v *View) { v.Node = nil }}, ActRefuse, "--node-name"},
		{"of a plugin of all nodes asks for no node", []change{func(v *View) { v.Plugin.Node, v.Node = "", nil }}, ActPromise, ""},
		{"promised by a plugin that runs no more is told", []change{promisedClaim, deletedClaim, func(v *View) { v.Plugin = nil }}, ActRefuse, fakeName},
		{"promised on a node the controller has left is told", []change{promisedClaim, deletedClaim, func(v *View) { v.Plugin.Node = "node-9" }}, ActRefuse, `"node-9"`},
		{"of a plugin whose storage is not there is told", []change{missing}, ActRefuse, "not mounted"},
		{"keeps its promise while the storage is not there", []change{promisedClaim, missing}, ActRefuse, "not mounted"},
		{"deleted while the storage is not there has nothing undone", []change{promisedClaim, deletedClaim, missing}, ActRefuse, "not mounted"},
		{"that is refused for good has nothing undone while the storage is not there", []change{promisedClaim, asking("1e50"), missing}, ActRefuse, "not mounted"},
		{"that had its volume is let go though the storage is not there", []change{promisedClaim, boundTo("pvc-u1"), missing}, ActFulfil, ""},
		{"that needs another node is given back though the storage is not there", []change{waitsForPod, selected("node-2"), missing}, ActRefuse, `"node-2"`},
		{"of the largest volume there can be gets it", []change{asking("9223372036854775807")}, ActPromise, ""},
		{"of one byte more is told", []change{asking("9223372036854775808")}, ActRefuse, "spec.resources.requests.storage 9223372036854775808"},
		{"of a fraction more is told", []change{asking("9223372036854775807.5")}, ActRefuse, "spec.resources.requests.storage"},
		{"whose size comes out as no bytes is told", []change{asking("20E")}, ActRefuse, "spec.resources.requests.storage 20E is more"},
		{"whose size no volume is compared with is told", []change{asking("1e50")}, ActRefuse, "create the claim again with less"},
		{"whose size nobody can write out is told at once", []change{asking("1e2000000000")}, ActRefuse, "spec.resources.requests.storage"},
		{"that had its volume is let go, and nothing is destroyed", []change{promisedClaim, deletedClaim, boundTo("pvc-u1")}, ActFulfil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := decide(claimView(c.changes...), now)
			if p.Act != c.want || !strings.Contains(p.Warning, c.wantWarning) || (p.Warning == "") != (c.wantWarning == "") {
				t.Errorf("got %+v, want %s with %q", p, c.want, c.wantWarning)
			}
			if (p.Warning == "") != (p.Cause == "") {
				t.Errorf("warning %q has cause %q", p.Warning, p.Cause)
			}
		})
	}
}

func TestOnlyTheWrongNodeGivesTheChoiceBack(t *testing.T) {
	wrong := decide(claimView(waitsForPod, selected("node-2")), now)
	if !wrong.GiveBack || wrong.Retry {
		t.Errorf("another node: got %+v, want the choice given back", wrong)
	}
	for what, why := range map[string]change{
		"mount options": func(v *View) { v.Class.MountOptions = []string{"noatime"} },
		"a selector":    func(v *View) { v.Claim.Spec.Selector = &metav1.LabelSelector{} },
		"the topology":  topology("rack", "b"),
	} {
		if p := decide(claimView(waitsForPod, selected(fakeNode), why), now); p.GiveBack || p.Act != ActRefuse {
			t.Errorf("%s: got %+v; another node would change nothing", what, p)
		}
	}
	for what, why := range map[string][]change{
		"no node":                    {func(v *View) { v.Node = nil }},
		"no storage":                 {missing},
		"no storage, but a promise":  {promisedClaim, missing},
		"no storage for an undoing":  {promisedClaim, deletedClaim, missing},
		"no storage, a node already": {waitsForPod, selected(fakeNode), missing},
	} {
		if p := decide(claimView(why...), now); !p.Retry || p.GiveBack {
			t.Errorf("%s: got %+v; no event tells when it comes", what, p)
		}
	}
}

func TestAVolume(t *testing.T) {
	const (
		bound, released, failed = corev1.VolumeBound, corev1.VolumeReleased, corev1.VolumeFailed
		available, pending      = corev1.VolumeAvailable, corev1.VolumePending
		del, retain             = corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain
		external                = volume.FinalizerExternal
	)
	unclaimed := func(v *View) { v.Volume.Spec.ClaimRef = nil }
	reserved := func(v *View) { v.Volume.Spec.ClaimRef.UID = "" }
	guarded := func(v *View) { v.Volume.Labels = map[string]string{tarnv1.LabelDeletionProtection: "true"} }
	foreign := func(v *View) { v.Plugin = nil }
	kept := func(v *View) { v.Retention = volume.Retention{Text: "1h", Time: time.Hour} }
	over := func(v *View) {
		kept(v)
		v.Volume.Status.LastPhaseTransitionTime = &metav1.Time{Time: now.Add(-time.Hour)}
	}
	misread := func(v *View) { v.Retention = volume.Retention{Text: "soon", Wrong: "soon is no time"} }
	spare := func(v *View) { v.Namespace = v.Volume.Spec.ClaimRef.Namespace }
	notDeleted := func(v *View) { v.Volume.Status.Reason, v.Volume.Status.Message = eventDeleteFailed, "the disk is gone" }
	for _, c := range []struct {
		name string
		view *View
		want Act
	}{
		{"case 125: released and of policy Delete goes", volumeView(released, del), ActDelete},
		{"case 46: restored with the uid of another cluster goes", volumeView(released, del, func(v *View) { v.Volume.Spec.ClaimRef.UID = "foreign" }), ActDelete},
		{"cases 76 and 115: released as a surplus, its claim having another, goes", volumeView(released, del, func(v *View) { v.Claim = claimView(boundTo("other")).Claim }), ActDelete},
		{"that is protected from deletion keeps its storage", volumeView(released, del, guarded), ActKeep},
		{"that was deleted before it was protected keeps its storage", volumeView(released, del, guarded, deletedVolume), ActKeep},
		{"released and of policy Delete stays while its retention lasts", volumeView(released, del, kept), ActRetain},
		{"that was deleted stays while its retention lasts", volumeView(released, del, kept, deletedVolume), ActRetain},
		{"whose retention cannot be read stays", volumeView(released, del, misread), ActRetain},
		{"whose retention is over goes", volumeView(released, del, over), ActDelete},
		{"that Tarn itself has given up goes, whatever its retention", volumeView(released, del, kept, spare), ActDelete},
		{"case 122: bound stays", volumeView(bound, del), ActNone},
		{"case 122: that Kubernetes calls failed stays", volumeView(failed, del), ActNone},
		{"case 126: whose deletion has failed is tried again", volumeView(failed, del, notDeleted), ActDelete},
		{"case 126: that is being deleted, too", volumeView(failed, del, notDeleted, deletedVolume), ActDelete},
		{"case 126: whose policy became Retain stays, and is let go", volumeView(failed, retain, notDeleted, finalizers(external)), ActLetGo},
		{"case 126: whose claimRef was cleared is about to be used again", volumeView(failed, del, notDeleted, unclaimed), ActNone},
		{"case 126: that is bound again stays, though a binder leaves the reason", volumeView(bound, del, notDeleted), ActNone},
		{"case 126: is not tried again while it is protected", volumeView(failed, del, notDeleted, guarded), ActKeep},
		{"case 122: whose scrubbing has failed is given back by who scrubs it", volumeView(failed, del, func(v *View) { v.Volume.Status.Reason = "VolumeFailedRecycle" }), ActNone},
		{"case 122: released and of policy Retain stays", volumeView(released, retain), ActNone},
		{"case 122: of policy Recycle is not deleted", volumeView(released, corev1.PersistentVolumeReclaimRecycle), ActNone},
		{"case 133: of an unknown policy is not deleted", volumeView(released, "Burn"), ActNone},
		{"case 133: whose policy becomes Delete goes", volumeView(released, del, finalizers()), ActDelete},
		{"case 123: bound and of policy Delete is held", volumeView(bound, del, finalizers()), ActHold},
		{"case 123: not yet bound is held, too: a spare of a pool that gets its policy may be deleted by hand", volumeView(available, del, finalizers()), ActHold},
		{"case 123: not yet bound and of policy Retain is not held", volumeView(available, retain, finalizers()), ActNone},
		{"case 123: being deleted takes no new finalizer", volumeView(bound, del, finalizers("a/b"), deletedVolume), ActNone},
		{"case 123: of policy Retain is let go", volumeView(bound, retain, finalizers("a/b", external)), ActLetGo},
		{"case 123: of policy Retain and being deleted is let go, its storage stays", volumeView(released, retain, finalizers(external), deletedVolume), ActLetGo},
		{"case 131: being deleted and released goes", volumeView(released, del, deletedVolume), ActDelete},
		{"case 132: being deleted and bound stays until its claim goes", volumeView(bound, del, deletedVolume), ActNone},
		{"being deleted and failed goes", volumeView(failed, del, deletedVolume), ActDelete},
		{"being deleted and never used goes", volumeView(available, del, unclaimed, deletedVolume), ActDelete},
		{"being deleted without our finalizer is somebody else's to hold", volumeView(released, del, finalizers("a/b"), deletedVolume), ActNone},
		{"case 46: whose claimRef was cleared is about to be used again", volumeView(released, del, unclaimed), ActNone},
		{"case 45: that is reserved by name is about to be used again", volumeView(released, del, reserved), ActNone},
		{"that waits for its claim stays", volumeView(available, del, reserved), ActNone},
		{"case 130: of another provisioner is not touched", volumeView(released, del, foreign), ActNone},
		{"case 140: of another provisioner keeps its finalizers", volumeView(bound, retain, foreign), ActNone},
		{"just written leaves the promise until the claim is bound", volumeView(pending, del, withClaim()), ActNone},
		{"whose claim is bound fulfils the promise", volumeView(bound, del, withClaim(boundTo("pvc-u1"))), ActFulfil},
		{"case 114: whose claim is deleted before it is bound fulfils it too", volumeView(pending, del, withClaim(deletedClaim)), ActFulfil},
		{"case 115: whose claim took another fulfils it too", volumeView(available, retain, withClaim(boundTo("other")), unclaimed), ActFulfil},
		{"that belongs to another claim fulfils none", volumeView(bound, del, withClaim(deletedClaim), foreign, func(v *View) { v.Volume.Spec.ClaimRef.UID = "u2" }), ActNone},
	} {
		t.Run(c.name, func(t *testing.T) {
			if p := decide(c.view, now); p.Act != c.want || (p.Warning == "") != (c.want != ActKeep && c.want != ActRetain) || p.Next.IsZero() != (c.want != ActRetain) {
				t.Errorf("got %+v, want %s", p, c.want)
			}
		})
	}
}

func TestCase121TheVolumeIsWhatTheClaimAsksFor(t *testing.T) {
	v := claimView(waitsForPod, selected(fakeNode))
	v.Claim.Annotations[corev1.BetaStorageClassAnnotation] = "beta"
	v.Claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	vol := newVolume(v, plugin.Asset{Source: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/fake/pvc-u1"}}})
	spec := vol.Spec
	if vol.Name != "pvc-u1" || spec.StorageClassName != "beta" || spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete ||
		*spec.VolumeMode != corev1.PersistentVolumeFilesystem || len(spec.AccessModes) != 1 || spec.AccessModes[0] != corev1.ReadWriteOncePod ||
		spec.Local.Path != "/fake/pvc-u1" || spec.Capacity.Storage().String() != "1Gi" {
		t.Errorf("got %+v", vol)
	}
	if ref := spec.ClaimRef; ref.UID != "u1" || ref.Namespace != "ns" || ref.Name != "data" || ref.Kind != "PersistentVolumeClaim" || ref.APIVersion != "v1" {
		t.Errorf("claimRef is %+v", ref)
	}
	if vol.Annotations[volume.AnnProvisionedBy] != fakeName || vol.Annotations[tarnv1.AnnotationNode] != fakeNode || vol.Annotations[tarnv1.AnnotationPlace] != v.Plugin.Place || vol.Annotations[volume.AnnBoundByController] != "" {
		t.Errorf("annotations are %v", vol.Annotations)
	}
	if len(vol.Finalizers) != 1 || vol.Finalizers[0] != volume.FinalizerExternal || len(vol.Labels) > 0 {
		t.Errorf("finalizers are %q, labels %v", vol.Finalizers, vol.Labels)
	}
	if e := spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0]; e.Key != corev1.LabelHostname || e.Values[0] != "host-1" {
		t.Errorf("the affinity is %+v, want the node's host name", e)
	}

	v.Class.ReclaimPolicy = ptr.To(corev1.PersistentVolumeReclaimRetain)
	delete(v.Node.Labels, corev1.LabelHostname)
	vol = newVolume(v, plugin.Asset{Bytes: 2 << 30})
	if len(vol.Finalizers) > 0 || vol.Spec.Capacity.Storage().Value() != 2<<30 {
		t.Errorf("of policy Retain, and made larger: got %+v", vol)
	}
	if e := vol.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0]; e.Values[0] != fakeNode {
		t.Errorf("the affinity is %+v, want the node's name where it has no host name", e)
	}
	v.Node, v.Plugin.Place = nil, ""
	if vol = newVolume(v, plugin.Asset{}); vol.Spec.NodeAffinity != nil || len(vol.Annotations) != 1 {
		t.Errorf("a volume of all nodes, and of the only place, is tied: %+v", vol)
	}
}

func TestARetentionOfTheClassIsNoParameterOfThePlugin(t *testing.T) {
	v := claimView()
	v.Class.Parameters = map[string]string{tarnv1.AnnotationRetention: "72h", "color": "blue"}
	if got := newRequest(v).Parameters; !maps.Equal(got, map[string]string{"color": "blue"}) {
		t.Errorf("the plugin is given %v", got)
	}
	if v.Class.Parameters[tarnv1.AnnotationRetention] == "" {
		t.Error("the class lost its retention, which shares memory with the cache")
	}
}
