package pavvolume

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"

	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

// copier is a provisioner whose creation reads the source.
func copier(changes ...testkit.With[*pavv1.PavProvisioner]) *pavv1.PavProvisioner {
	return testkit.Provisioner("prov", append([]testkit.With[*pavv1.PavProvisioner]{func(p *pavv1.PavProvisioner) {
		p.Spec.VolumeCreation = testkit.Section(`{"podTemplate": {"spec": {"containers": [{"name": "c", "image": "busybox:1.36",
			"args": ["cp", "{{ source.handle if source is defined else 'nothing' }}"]}]}}}`)
	}}, changes...)...)
}

// original is the claim to copy, with its volume and record.
func original() (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, *tarnv1.PavVolume) {
	claim := testkit.Claim("ns", "original", "o1", "prov", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeName, c.Status.Phase = "pvc-o1", corev1.ClaimBound
	})
	record := testkit.Record(claim, "prov", tarnv1.VolumeCreated, func(r *tarnv1.PavVolume) { r.Status.Handle, r.Status.Capacity = "h-o1", 2<<30; handed(r) })
	vol := testkit.Volume(record, func(v *corev1.PersistentVolume) {
		v.Spec.Capacity, v.Spec.CSI.VolumeHandle, v.Spec.CSI.VolumeAttributes = testkit.Storage("2Gi"), "h-o1", map[string]string{"tier": "gold"}
		v.Annotations = map[string]string{tarnv1.AnnotationRecord: string(record.UID)}
	})
	return claim, vol, record
}

// copyOf is a claim that is to be copied from the original.
func copyOf(changes ...testkit.With[*corev1.PersistentVolumeClaim]) *corev1.PersistentVolumeClaim {
	return testkit.Claim("ns", "data", "u1", "prov", append([]testkit.With[*corev1.PersistentVolumeClaim]{func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "original"}
		c.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "original"}
	}}, changes...)...)
}

func TestACloneIsMadeFromWhatTheRecordFroze(t *testing.T) {
	claim, vol, record := original()
	w := newWorld(t, claim, vol, record, copyOf(), copier(), testkit.Class("prov"))
	w.look("u1")
	got := w.record("u1")
	if got == nil || got.Status.Phase != tarnv1.VolumeCreating {
		t.Fatalf("got record %+v, want one in Creating", got)
	}
	want := tarnv1.PavVolumeSource{
		Kind: "PersistentVolumeClaim", Namespace: "ns", Name: "original", UID: "o1", Storage: "pvc-o1", Handle: "h-o1",
		Capacity: 2 << 30, VolumeMode: corev1.PersistentVolumeFilesystem, Parameters: map[string]string{"tier": "gold"},
	}
	if s := got.Spec.Source; s == nil || s.Handle != want.Handle || s.Storage != want.Storage || s.UID != want.UID || s.Capacity != want.Capacity || s.Parameters["tier"] != "gold" {
		t.Errorf("got source %+v, want %+v", s, want)
	}
	if got.Spec.RequestedMinCapacity != 2<<30 {
		t.Errorf("the clone is to have %d bytes, want those of its source", got.Spec.RequestedMinCapacity)
	}
	if pods := w.pods(); len(pods) != 1 || pods[0].Spec.Containers[0].Args[1] != "h-o1" {
		t.Errorf("got pods %+v, want one that copies h-o1", pods)
	}
}

func TestAClaimIsToldWhyItsSourceCannotBeCopied(t *testing.T) {
	deleting := func(o client.Object) {
		now := metav1.Now()
		o.SetDeletionTimestamp(&now)
		o.SetFinalizers([]string{"kubernetes.io/pvc-protection"})
	}
	for _, c := range []struct {
		name   string
		change func(claim, of *corev1.PersistentVolumeClaim, vol *corev1.PersistentVolume, record *tarnv1.PavVolume, p *pavv1.PavProvisioner)
		want   string
	}{
		{"the creation reads no source", func(_, _ *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume, _ *tarnv1.PavVolume, p *pavv1.PavProvisioner) {
			p.Spec.VolumeCreation = testkit.PodSection()
		}, "no template of its spec.volumeCreation reads variable source"},
		{"it is in another namespace", func(claim, _ *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume, _ *tarnv1.PavVolume, _ *pavv1.PavProvisioner) {
			claim.Spec.DataSource, claim.Spec.DataSourceRef.Namespace = nil, ptr.To("other")
		}, "another namespace"},
		{"it is a snapshot", func(claim, _ *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume, _ *tarnv1.PavVolume, _ *pavv1.PavProvisioner) {
			claim.Spec.DataSource, claim.Spec.DataSourceRef = nil, &corev1.TypedObjectReference{APIGroup: ptr.To("snapshot.storage.k8s.io"), Kind: "VolumeSnapshot", Name: "s"}
		}, "from a VolumeSnapshot"},
		{"there is none", func(claim, _ *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume, _ *tarnv1.PavVolume, _ *pavv1.PavProvisioner) {
			claim.Spec.DataSourceRef.Name, claim.Spec.DataSource.Name = "other", "other"
		}, `error getting PVC other (namespace "ns") from api server`},
		{"it is not bound", func(_, of *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume, _ *tarnv1.PavVolume, _ *pavv1.PavProvisioner) {
			of.Status.Phase = corev1.ClaimPending
		}, "the PVC DataSource original must have a status of Bound.  Got Pending"},
		{"it is being deleted", func(_, of *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume, _ *tarnv1.PavVolume, _ *pavv1.PavProvisioner) {
			deleting(of)
		}, "the PVC DataSource original is currently being deleted"},
		{"it has no class", func(_, of *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume, _ *tarnv1.PavVolume, _ *pavv1.PavProvisioner) {
			of.Spec.StorageClassName = nil
		}, "the source PVC (original) storageclass cannot be empty"},
		{"it is larger", func(_, of *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume, _ *tarnv1.PavVolume, _ *pavv1.PavProvisioner) {
			of.Spec.Resources.Requests = testkit.Storage("2Gi")
		}, "requested 1Gi but source is 2Gi"},
		{"its volume is of another driver", func(_, _ *corev1.PersistentVolumeClaim, vol *corev1.PersistentVolume, _ *tarnv1.PavVolume, _ *pavv1.PavProvisioner) {
			vol.Spec.CSI.Driver = "other"
		}, "claim in dataSource not bound or invalid"},
		{"its volume is another claim's", func(_, _ *corev1.PersistentVolumeClaim, vol *corev1.PersistentVolume, _ *tarnv1.PavVolume, _ *pavv1.PavProvisioner) {
			vol.Spec.ClaimRef.UID = "another"
		}, "in dataSource not bound or invalid"},
		{"its mode is another", func(claim, _ *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume, _ *tarnv1.PavVolume, _ *pavv1.PavProvisioner) {
			claim.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		}, "must have the same volume mode for cloning"},
		{"its volume is larger than the limit", func(claim, _ *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume, _ *tarnv1.PavVolume, _ *pavv1.PavProvisioner) {
			claim.Spec.Resources.Limits = testkit.Storage("1Gi")
		}, "with a larger limit"},
		{"its volume is being deleted", func(_, _ *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume, record *tarnv1.PavVolume, _ *pavv1.PavProvisioner) {
			record.Status.Phase = tarnv1.VolumeDeleting
		}, "the volume of the PVC DataSource original is being deleted"},
	} {
		of, vol, record := original()
		claim, p := copyOf(), copier()
		c.change(claim, of, vol, record, p)
		w := newWorld(t, of, vol, record, claim, p, testkit.Class("prov"))
		w.look("u1")
		if w.record("u1") != nil || len(w.pods()) > 0 {
			t.Errorf("%s: a record or a pod was made", c.name)
		}
		select {
		case event := <-w.events.Events:
			if !strings.Contains(event, c.want) || !strings.Contains(event, "Warning ProvisioningFailed") {
				t.Errorf("%s: got event %q, want %q", c.name, event, c.want)
			}
		default:
			t.Errorf("%s: no Event", c.name)
		}
	}
}

func TestASourceThatChangesBeforeThePodIsNotCopied(t *testing.T) {
	of, vol, record := original()
	for name, change := range map[string]func(*world){
		"another claim has its name": func(w *world) {
			w.must(w.store.Delete(t.Context(), of.DeepCopy()))
			other := of.DeepCopy()
			other.UID, other.ResourceVersion = "o2", ""
			w.must(w.store.Create(t.Context(), other))
		},
		"its storage is being deleted": func(w *world) {
			live, err := kube.Get(t.Context(), w.store, client.ObjectKeyFromObject(record), &tarnv1.PavVolume{})
			w.must(err)
			live.Status.Phase = tarnv1.VolumeDeleting
			w.must(w.store.Status().Update(t.Context(), live))
		},
	} {
		w := newWorld(t, of.DeepCopy(), vol.DeepCopy(), record.DeepCopy(), copyOf(), copier(), testkit.Class("prov"))
		pending := testkit.Record(copyOf(), "prov", tarnv1.VolumePending, func(r *tarnv1.PavVolume) {
			r.Spec.Source = volume.ClonedFrom(of, vol, "")
		})
		w.must(w.store.Create(t.Context(), pending.DeepCopy()))
		behind := []client.Object{of.DeepCopy(), vol.DeepCopy(), record.DeepCopy(), copyOf(), copier(), testkit.Class("prov"), w.record("u1")}
		change(w)
		w.remembering(behind...) // the cache has not seen it
		w.look("u1")
		if len(w.pods()) > 0 || w.status().Phase != tarnv1.VolumePending || w.status().LastError == nil || w.status().LastError.Reason != reasonSource {
			t.Errorf("%s: got %d pods and status %+v, want no pod and the reason", name, len(w.pods()), w.status())
		}
		w.through(w.store)
		w.look("u1")
		if w.record("u1") != nil {
			t.Errorf("%s: the record is left, though nothing can come of it", name)
		}
	}
}

func TestStorageThatIsBeingCopiedIsNotDeleted(t *testing.T) {
	of, vol, record := original()
	for phase, held := range map[tarnv1.VolumePhase]bool{
		tarnv1.VolumePending: false, tarnv1.VolumeValidating: true, tarnv1.VolumeCreating: true, tarnv1.VolumeUndoing: true, tarnv1.VolumeCreated: false,
	} {
		released := vol.DeepCopy()
		released.Status.Phase = corev1.VolumeReleased
		copying := testkit.Record(copyOf(), "prov", phase, func(r *tarnv1.PavVolume) { r.Spec.Source = volume.ClonedFrom(of, vol, "") })
		deleting := record.DeepCopy()
		deleting.Status.Phase, deleting.Status.DeletionAttempts = tarnv1.VolumeDeleting, 1
		w := newWorld(t, released, deleting, copying, copier(), testkit.Class("prov"))
		w.look("o1")
		live, err := kube.Get(t.Context(), w.store, client.ObjectKeyFromObject(record), &tarnv1.PavVolume{})
		w.must(err)
		if got := len(w.pods()) == 0; got != held {
			t.Errorf("%s: held %v, want %v", phase, got, held)
		}
		if got := conditionOf(live.Status, tarnv1.ConditionDeletable).Reason == reasonCopied; got != held {
			t.Errorf("%s: got condition %+v", phase, conditionOf(live.Status, tarnv1.ConditionDeletable))
		}
	}
	copying := testkit.Record(copyOf(), "prov", tarnv1.VolumeCreated, func(r *tarnv1.PavVolume) { r.Spec.Source = volume.ClonedFrom(of, vol, "") })
	if got := mapCopied(t.Context(), copying); len(got) != 1 || got[0].Name != "pvc-o1" {
		t.Errorf("the end of a copy enqueues %v, want its source", got)
	}
}

func TestACloneIsMadeOnTheNodeOfItsSource(t *testing.T) {
	node := func(name string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	}
	tiedTo := func(p *pavv1.PavProvisioner) { p.Spec.Topology = pavv1.TopologyNode }
	for name, c := range map[string]struct {
		selected string
		class    *storagev1.StorageClass
		byHand   bool
	}{
		"at once": {"", testkit.Class("prov"), false},
		"though another is selected": {"n2", testkit.Class("prov", func(c *storagev1.StorageClass) {
			c.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
		}), false},
		"of a volume by hand": {"", testkit.Class("prov"), true},
	} {
		of, vol, record := original()
		record.Status.NodeName = "n1"
		vol.Spec.NodeAffinity = affinityTo("n1")
		claim := copyOf(func(c *corev1.PersistentVolumeClaim) {
			if c.Annotations[volume.AnnSelectedNode] = "n2"; name == "at once" {
				delete(c.Annotations, volume.AnnSelectedNode)
			}
		})
		objects := []client.Object{of, vol, claim, copier(tiedTo), c.class, node("n1"), node("n2")}
		if !c.byHand {
			objects = append(objects, record)
		}
		w := newWorld(t, objects...)
		w.look("u1")
		pods := w.pods()
		if len(pods) != 1 || nodeRequired(&pods[0]) != "n1" || w.status().NodeName != "n1" {
			t.Errorf("%s: got %d pods, record %+v, want one pod for n1", name, len(pods), w.status())
		}
	}
}

func TestACloneWhoseNodeTheClassForbidsIsRefused(t *testing.T) {
	of, vol, record := original()
	record.Status.NodeName = "n1"
	class := testkit.Class("prov", func(c *storagev1.StorageClass) {
		c.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: corev1.LabelHostname, Values: []string{"n2"}}}}}
	})
	w := newWorld(t, of, vol, record, copyOf(), copier(func(p *pavv1.PavProvisioner) { p.Spec.Topology = pavv1.TopologyNode }), class,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{corev1.LabelHostname: "n1"}}})
	w.look("u1")
	if e := w.status().LastError; len(w.pods()) > 0 || e == nil || e.Reason != reasonNodeRefused || !strings.Contains(e.Message, `node "n1", on which the data source lies`) {
		t.Errorf("got %d pods, %+v", len(w.pods()), w.status())
	}
}

func nodeRequired(pod *corev1.Pod) string {
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values[0]
	}
	return ""
}

func TestTheEndOfASourceWakesTheClaimsThatCopyIt(t *testing.T) {
	of, vol, record := original()
	w := newWorld(t, of, vol, record, copyOf(), copier(), testkit.Class("prov"))
	for _, o := range []client.Object{of, vol, record} {
		if got := w.r.mapSource(t.Context(), o); len(got) != 1 || got[0].Name != "pvc-u1" {
			t.Errorf("%T enqueues %v, want the claim that copies it", o, got)
		}
	}
}
