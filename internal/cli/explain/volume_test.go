package explain

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// expecting asks about a volume of some age that is reserved for a claim which does not exist yet.
func expecting(age time.Duration) *world {
	return with(newWorld().bound().askedVolume(), func(w *world) {
		w.volume.Status.Phase, w.volume.Spec.ClaimRef.UID, w.volumeView.Claim = corev1.VolumePending, "", nil
		w.volume.CreationTimestamp = metav1.NewTime(now.Add(-age))
	})
}

func TestAVolumeSaysWhyItIsStillThere(t *testing.T) {
	released := func(policy corev1.PersistentVolumeReclaimPolicy, change func(*world)) *world {
		return with(newWorld().bound().askedVolume(), func(w *world) {
			w.volume.Status.Phase, w.volume.Spec.PersistentVolumeReclaimPolicy, w.volumeView.Claim = corev1.VolumeReleased, policy, nil
			change(w)
		})
	}
	nothing := func(*world) {}
	told := func(reason, message string) func(*world) {
		return func(w *world) {
			w.volumeView.Events = []corev1.Event{{Reason: reason, Message: message, LastTimestamp: began}}
		}
	}
	guarded := func(w *world) { w.volume.Labels = map[string]string{tarnv1.LabelDeletionProtection: "true"} }
	terminating := func(phase corev1.PersistentVolumePhase) *world {
		return released(corev1.PersistentVolumeReclaimDelete, func(w *world) {
			w.volume.DeletionTimestamp, w.volume.Finalizers, w.volume.Status.Phase, w.volumeView.Record = &began, []string{volumeProtection}, phase, nil
		})
	}
	deleting := func(change func(*world)) *world {
		return released(corev1.PersistentVolumeReclaimDelete, func(w *world) { w.record.Status.Phase = tarnv1.VolumeDeleting; change(w) })
	}
	for _, c := range []answer{
		{"kept by policy", released(corev1.PersistentVolumeReclaimRetain, nothing), "is Released: claim shop/data is gone, and policy Retain keeps the volume", "when an administrator decides", `kubectl patch pv pvc-claim-uid --type=json -p '[{"op":"test","path":"/spec/claimRef/uid","value":"claim-uid"},{"op":"remove","path":"/spec/claimRef"}]'`},
		{"recycled as its class has it", released(corev1.PersistentVolumeReclaimRetain, func(w *world) {
			w.volumeView.Class = &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{tarnv1.AnnotationRecycle: "Zero"}}}
		}), "is Released: claim shop/data is gone, and the volume is being recycled", "", ""},
		{"kept by policy, of a class nobody may read", released(corev1.PersistentVolumeReclaimRetain, func(w *world) {
			w.view.Unread = []unread{{Object: Object{Kind: storageClass, Name: "gold"}}}
		}), "is Released: claim shop/data is gone, and policy Retain keeps the volume and its data", "or when it is recycled, if its class has annotation tarn.dev/recycle", ""},
		{"in the trash", released(corev1.PersistentVolumeReclaimDelete, func(w *world) { volume.Hold(w.volume, "1h"); volume.Trash(w.volume, ahead(3600e9).Time) }),
			"is Released: claim shop/data is gone, and its data is kept in the trash until ", "by its own reclaim policy Delete; the command restores the claim", "tarn undelete volume pvc-claim-uid"},
		{"in the trash with no end", released(corev1.PersistentVolumeReclaimDelete, func(w *world) {
			volume.Hold(w.volume, "1h")
			w.volume.Annotations[tarnv1.AnnotationTrashedUntil] = "tomorrow"
		}), `kept without an end: annotation tarn.dev/trashed-until is "tomorrow"`, "when an administrator decides", "tarn undelete volume pvc-claim-uid"},
		{"kept by the retention of its class", released(corev1.PersistentVolumeReclaimDelete, func(w *world) {
			w.record.Status.Conditions = append(w.record.Status.Conditions, metav1.Condition{Type: tarnv1.ConditionDeletable, Status: metav1.ConditionFalse, Reason: "Retained", Message: "its class keeps it for a day", LastTransitionTime: began})
		}), "is gone, and its storage is not destroyed yet: its class keeps it for a day", "when that is no longer true", ""},
		{"to be destroyed, and nobody begins", released(corev1.PersistentVolumeReclaimDelete, func(w *world) { w.view.Controller = nil }), "has to be destroyed, but has not started; no lease shows whether a tarn controller runs", "when tarn controller runs", ""},
		{"to be destroyed by somebody else", released(corev1.PersistentVolumeReclaimDelete, func(w *world) {
			w.volumeView.Record, w.volumeView.Provisioner, w.volume.Annotations[volume.AnnProvisionedBy] = nil, nil, "csi.example.org"
			delete(w.volume.Annotations, tarnv1.AnnotationRecord)
		}), "csi.example.org has not destroyed the storage yet", "when it is destroyed by csi.example.org", ""},
		{"left by an earlier Tarn", released(corev1.PersistentVolumeReclaimDelete, func(w *world) {
			w.volumeView.Record, w.volume.Annotations[tarnv1.AnnotationRecord] = nil, "record-uid"
		}), "its PavVolume is gone, which says how its storage was made, so no provisioner destroys it", "when an administrator removes the storage by hand", "kubectl delete pv pvc-claim-uid"},
		{"deletion fails", deleting(func(w *world) { w.failed(tarnv1.StepDeletion, "still busy") }), "its storage could not be removed: still busy (attempt 3)", "attempt 4 in 30s", "kubectl edit pavprovisioner gold"},
		{"deletion runs", deleting(func(w *world) { w.step(tarnv1.StepDeletion, runs, deadline(7200)) }), "the deletion pod default/pav-deletion has been running", "when it ends", ""},
		{"still staged", deleting(func(w *world) {
			w.record.Status.Conditions = append(w.record.Status.Conditions, metav1.Condition{Type: tarnv1.ConditionDeletable, Status: metav1.ConditionFalse, Message: "still staged"})
			w.staged(func(g *tarnv1.PavStage) {})
		}), "is still staged on node n1", "when the kubelet has unmounted it", ""},
		{"staged ahead of a pod that is about to ask", deleting(func(w *world) {
			w.record.Status.Conditions = append(w.record.Status.Conditions, metav1.Condition{Type: tarnv1.ConditionDeletable, Status: metav1.ConditionFalse, Message: "still staged"})
			w.staged(func(g *tarnv1.PavStage) {
				g.Spec.AheadFor = &tarnv1.StageConsumer{Namespace: "shop", Name: "web", UID: "pod-uid"}
			})
		}), "is staged ahead on node n1", "when its kubelet has mounted and unmounted it, or when that pod is gone", ""},
		{"cannot be unstaged", deleting(func(w *world) {
			w.record.Status.Conditions = append(w.record.Status.Conditions, metav1.Condition{Type: tarnv1.ConditionDeletable, Status: metav1.ConditionFalse, Message: "still staged"})
			w.staged(func(g *tarnv1.PavStage) {
				g.DeletionTimestamp = &began
				g.Status.Pod = tarnv1.PavStagePodStatus{Phase: tarnv1.StagePodUnstaging, UnstageAttempts: 2, Message: "busy", NextAttemptTime: ahead(40e9)}
			})
		}), "cannot be unstaged on node n1, attempt 2: busy", "unstaging attempt 3 in 40s", ""},
		{"its provisioner is gone", deleting(func(w *world) { w.volumeView.Provisioner = nil }), "PavProvisioner gold, which made it, is gone", "when you have removed the storage by hand", "kubectl delete pavvolume pvc-claim-uid"},
		{"failed", with(newWorld().bound().askedVolume(), func(w *world) {
			w.volume.Status.Phase, w.volume.Status.Message = corev1.VolumeFailed, "no deleter"
		}), "is Failed: no deleter", "", ""},
		{"no binder has seen it", with(newWorld().bound().askedVolume(), func(w *world) { w.volume.Status.Phase = corev1.VolumePending }), "no binder has reconciled it yet", "when a binder reconciles it", ""},
		{"its claim is yet to come, and no binder has seen it for long", expecting(2 * time.Minute), "no binder has reconciled it yet", "when a binder reconciles it", ""},
		{"bound to a claim that is gone", with(newWorld().bound().askedVolume(), func(w *world) { w.volumeView.Claim = nil }), "its claim shop/data is gone, and no binder has reconciled it since", "when a binder reconciles it", ""},
		{"deleted while bound", with(newWorld().bound().askedVolume(), func(w *world) { w.volume.DeletionTimestamp, w.volume.Finalizers = &began, []string{volumeProtection} }),
			"is Terminating: claim shop/data uses it", "when the claim is gone", "kubectl -n shop delete pvc data"},
		{"deleted before it was bound", with(terminating(corev1.VolumeAvailable), func(w *world) { w.claim.Spec.VolumeName, w.volumeView.Claim = "", w.claim }),
			"is Terminating: claim shop/data was to get it and no longer can", "if it is created again, it gets another volume", "kubectl -n shop delete pvc data"},
		{"deleted while bound, and its claim is gone", with(terminating(corev1.VolumeBound), nothing), "is Terminating: its claim shop/data is gone, and no binder has reconciled it since", "when a binder reconciles it", ""},
		{"deleted while bound, and names no claim", with(terminating(corev1.VolumeBound), func(w *world) { w.volume.Spec.ClaimRef = nil }), "is Terminating: it names no claim; a binder corrects that", "", ""},
		{"deleted, and who asks may not read claims", with(terminating(corev1.VolumeReleased), func(w *world) {
			w.view.Unread = []unread{{Object{Claim, "shop", "data"}, needs + " to get persistentvolumeclaims"}}
		}), "finalizer kubernetes.io/pv-protection keeps it; it belongs to Kubernetes' protection, until no claim is bound to the volume", "when its owner removes it", ""},
		{"deleted, and nobody lets it go", terminating(corev1.VolumeReleased), "no claim is bound to it, but its protection controller does not remove the finalizer", "when the controller runs", ""},
		{"deleted, and its claim has another by now", with(terminating(corev1.VolumeReleased), func(w *world) {
			w.claim.Spec.VolumeName, w.volumeView.Claim = "other", w.claim
		}), "no claim is bound to it, but its protection controller does not remove the finalizer", "when the controller runs", ""},
		{"deleted, and free a moment ago", with(terminating(corev1.VolumeReleased), func(w *world) { w.volume.Status.LastPhaseTransitionTime = ahead(-time.Second) }),
			"no claim is bound to it, so it is deleted within moments", "within moments", ""},
		{"deleted, and a claim it was to be bound to is gone", with(terminating(corev1.VolumeAvailable), func(w *world) { w.view.Twice = false }),
			"no claim is bound to it, so it is deleted within moments", "within moments", ""},
		{"being recycled", released(corev1.PersistentVolumeReclaimRecycle, nothing), "claim shop/data is gone, and the volume is being recycled", "", ""},
		{"to be destroyed, and protected by its label", released(corev1.PersistentVolumeReclaimDelete, guarded),
			"claim shop/data is gone, and its storage is not destroyed, as the volume's label tarn.dev/deletion-protection protects it", "when the label is gone", "kubectl label pv pvc-claim-uid tarn.dev/deletion-protection-"},
		{"to be recycled by its annotation", released(corev1.PersistentVolumeReclaimRetain, func(w *world) { w.volume.Annotations[tarnv1.AnnotationRecycle] = "Files" }), "claim shop/data is gone, and the volume is being recycled", "", ""},
		{"to be recycled, and protected by its label", released(corev1.PersistentVolumeReclaimRecycle, guarded),
			"the volume is not recycled, as its label tarn.dev/deletion-protection protects it", "when the label is gone", "kubectl label pv pvc-claim-uid tarn.dev/deletion-protection-"},
		{"recycling has failed", released(corev1.PersistentVolumeReclaimRecycle, told("VolumeFailedRecycle", "no room")), "it could not be recycled: no room", "when it is retried; last tried 60m ago", ""},
		{"its storage could not be destroyed", released(corev1.PersistentVolumeReclaimDelete, told("VolumeFailedDelete", "still busy")), "its storage could not be destroyed: still busy", "when its provisioner retries; last tried 60m ago", ""},
		{"failed at that, by Event", with(newWorld().bound().askedVolume(), func(w *world) {
			w.volume.Status.Phase, w.volume.Status.Message = corev1.VolumeFailed, "no deleter"
			told("VolumeFailedDelete", "no such folder")(w)
		}), "is Failed: no deleter", "when its provisioner retries; last tried 60m ago", ""},
		{"removed by force", with(newWorld().bound().askedVolume(), func(w *world) { w.volumeView.Volume, w.volumeView.Claim = nil, nil }), "it was removed by force, and its storage still exists", "when an administrator decides", "kubectl delete pavvolume pvc-claim-uid"},
	} {
		t.Run(c.name, c.check)
	}
}

func TestACommandThatDecidesAboutDataSaysSoInItsLink(t *testing.T) {
	for policy, want := range map[corev1.PersistentVolumeReclaimPolicy]string{
		corev1.PersistentVolumeReclaimDelete: "the command deletes the claim, and its data is deleted too, by policy Delete; to keep it, first: kubectl patch pv pvc-claim-uid -p '{\"spec\":{\"persistentVolumeReclaimPolicy\":\"Retain\"}}'",
		corev1.PersistentVolumeReclaimRetain: "the command deletes the claim, and its storage stays, by policy Retain",
	} {
		w := newWorld().bound().askedVolume()
		w.volume.DeletionTimestamp, w.volume.Finalizers, w.volume.Spec.PersistentVolumeReclaimPolicy = &began, []string{volumeProtection}, policy
		e := chain(w.view)
		if !slices.ContainsFunc(e.Links, func(l Link) bool {
			return l.Command == "kubectl -n shop delete pvc data" && strings.Contains(l.Message, want)
		}) {
			t.Errorf("policy %s: no link says %q: %+v", policy, want, e.Links)
		}
	}
}

func TestAPoolSaysWhySparesAreMissing(t *testing.T) {
	pool := func(reason, message string, change func(*tarnv1.PersistentVolumeSet)) *world {
		set := &tarnv1.PersistentVolumeSet{ObjectMeta: metav1.ObjectMeta{Name: "spares", CreationTimestamp: began}}
		set.Spec.MinimumReplicas, set.Spec.MaximumReplicas = 2, 3
		set.Status = tarnv1.PersistentVolumeSetStatus{BoundReplicas: 1, CreatingReplicas: 1, Conditions: []metav1.Condition{
			{Type: tarnv1.ConditionReady, Status: metav1.ConditionFalse, Reason: reason, Message: message},
		}}
		change(set)
		return with(newWorld(), func(w *world) { w.view.Asked, w.view.Claim, w.view.Set = Object{Kind: Set, Name: "spares"}, nil, set })
	}
	nothing := func(*tarnv1.PersistentVolumeSet) {}
	for _, c := range []answer{
		{"a filler claim cannot be served", with(pool("Failing", "1 is being made", nothing), func(w *world) {
			w.recorded(tarnv1.VolumePending).failed(tarnv1.StepCreation, "no disk")
			w.view.Claims = []*claimView{w.claimView}
		}), "pvset spares is not Ready: claim shop/data: its volume could not be made, attempt 3: no disk", "attempt 4 in 30s", "kubectl delete pavvolume"},
		{"its provisioner is not accepted", with(pool("ProvisionerNotReady", "PavProvisioner is not accepted", nothing), func(w *world) {
			w.provisioner.Status.Conditions[0] = metav1.Condition{Type: pavv1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: "TemplateInvalid", Message: "line 1, column 3", LastTransitionTime: began}
			w.view.Maker = w.provisioner
		}), "pvset spares is not Ready: PavProvisioner gold is not accepted: line 1, column 3", "when the PavProvisioner is corrected", "kubectl edit pavprovisioner gold"},
		{"the maximum is reached", pool("AtMaximum", "there are 3, the most there may be", func(s *tarnv1.PersistentVolumeSet) { s.Status.BoundReplicas, s.Status.CreatingReplicas = 3, 0 }),
			"there are 3, the most there may be", "when a volume in use is released", `kubectl patch pvset spares --type=merge -p '{"spec":{"maximumReplicas":5}}'`},
		{"nobody looks at it", with(pool("", "", func(s *tarnv1.PersistentVolumeSet) { s.Generation = 2 }), func(w *world) { w.view.Controller.Spec.HolderIdentity = nil }),
			"it has to be reconciled, but no tarn controller runs", "when tarn controller runs", ""},
		{"it is to go", pool("Deleting", "2 spare volumes are being deleted", func(s *tarnv1.PersistentVolumeSet) {
			s.DeletionTimestamp, s.Finalizers = &began, []string{tarnv1.FinalizerPool, "example.org/audit"}
		}),
			"is Terminating: 2 spare volumes are being deleted", "when its spare volumes are being deleted", ""},
		{"somebody else keeps it", pool("Deleting", "2 spare volumes are being deleted", func(s *tarnv1.PersistentVolumeSet) {
			s.DeletionTimestamp, s.Finalizers = &began, []string{"example.org/audit"}
		}),
			"is Terminating: finalizer example.org/audit keeps it; it belongs to the owner of the name example.org", "when its owner removes it", "kubectl patch pvset spares"},
	} {
		t.Run(c.name, c.check)
	}
	w := pool("Filled", "", func(s *tarnv1.PersistentVolumeSet) { s.Status.Conditions[0].Status = metav1.ConditionTrue })
	if e := chain(w.view); !e.Healthy || !strings.HasPrefix(e.Verdict, "pvset spares is Ready: 0 of at least 2 spare volumes, 1 in use") {
		t.Errorf("healthy %t: %s", e.Healthy, e.Verdict)
	}
}

func TestWhatIsFineIsSaidInOneLine(t *testing.T) {
	for name, c := range map[string]struct {
		of   *world
		want string
	}{
		"claim": {with(newWorld().bound().staged(func(*tarnv1.PavStage) {}), func(w *world) { w.claimView.Users = []user{{Pod: somePod("shop", "web", runs)}} }),
			"claim shop/data is Bound: volume pvc-claim-uid, 1Gi, class gold, PavProvisioner gold; staged on node n1; used by pod web"},
		"volume": {newWorld().bound().askedVolume(), "volume pvc-claim-uid is Bound: claim shop/data uses it, class gold, PavProvisioner gold"},
		"free": {with(newWorld().bound().askedVolume(), func(w *world) { w.volume.Status.Phase, w.volume.Spec.ClaimRef = corev1.VolumeAvailable, nil }),
			"volume pvc-claim-uid is Available: free for any claim that it fits, class gold, PavProvisioner gold"},
		"expecting": {expecting(time.Second), "volume pvc-claim-uid is Pending: reserved for claim shop/data, class gold, PavProvisioner gold"},
		"pod": {newWorld().bound().askedPod(runs).staged(func(*tarnv1.PavStage) {}),
			"pod shop/web is running: on node n1; claim shop/data from volume pvc-claim-uid, 1Gi, class gold, PavProvisioner gold; staged on node n1"},
	} {
		t.Run(name, func(t *testing.T) {
			e := chain(c.of.view)
			var out bytes.Buffer
			if err := e.Print(&out, now); err != nil || out.String() != c.want+"\n" || !e.Healthy {
				t.Errorf("got %q, %v, healthy %t; want %q", out.String(), err, e.Healthy, c.want)
			}
		})
	}
}

func TestWhatCannotBeReadIsSaidAndNothingIsConcludedFromIt(t *testing.T) {
	w := withoutClass(newWorld(), ptr.To("gold"))
	w.view.Unread = []unread{{Object{Kind: storageClass}, needs + " to list storageclasses.storage.k8s.io"}, {Object{Kind: Volume}, "the server is on fire"}, {Object{lease, "a", "b"}, needs}}
	e := chain(w.view)
	var out bytes.Buffer
	if err := e.Print(&out, now); err != nil {
		t.Fatal(err)
	}
	if e.Healthy || strings.Contains(e.Verdict, "does not exist") {
		t.Errorf("a class that could not be read is taken for one that does not exist: %s", e.Verdict)
	}
	for _, want := range []string{"cannot read each StorageClass: needs permission to list storageclasses.storage.k8s.io\n", "cannot read each PersistentVolume: the server is on fire\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("not said: %q in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "Lease") {
		t.Errorf("the lease does not matter here:\n%s", out.String())
	}
	if e := chain(w.event(corev1.EventTypeNormal, "ExternalProvisioning", "waiting for a volume").view); !strings.Contains(e.Verdict, "waiting for a volume") {
		t.Errorf("the claim's Event is not told: %s", e.Verdict)
	}
}

// A binder repeats its Event while it waits, so that Event is always the newest. A binder may also
// post it late.
func TestWhatWasSaidSinceABinderBeganToWaitIsToldBeforeThat(t *testing.T) {
	for name, c := range map[string]struct {
		said time.Duration // after the binder began to wait
		by   string
		want string
	}{
		"what the provisioner has failed with":               {time.Minute, "shelves", "shelf 7 is full"},
		"what it failed with before a busy binder said that": {-time.Minute, "shelves", "shelf 7 is full"},
		"what the provisioner failed with long before":       {-2 * time.Minute, "shelves", "waiting for a volume"},
		"what the binder said before does not hold any more": {-time.Second, kube.ControllerName, "waiting for a volume"},
	} {
		w := withoutClass(newWorld(), ptr.To("gold"))
		w.view.Unread = []unread{{Object{Kind: storageClass}, needs}}
		w.claimView.Events = []corev1.Event{
			{Reason: "ProvisioningFailed", Message: "shelf 7 is full", LastTimestamp: metav1.NewTime(began.Add(c.said)), ReportingController: c.by},
			{Reason: binderWaits, Message: "waiting for a volume", ObjectMeta: metav1.ObjectMeta{CreationTimestamp: began}, LastTimestamp: metav1.NewTime(now)},
		}
		if e := chain(w.view); !strings.HasSuffix(e.Verdict, "is Pending: "+c.want) {
			t.Errorf("%s: %q, want %q", name, e.Verdict, c.want)
		}
	}
}

func TestTheAnswerComesFirstThenTheChainThenTheCommand(t *testing.T) {
	var out bytes.Buffer
	w := newWorld().recorded(tarnv1.VolumePending).failed(tarnv1.StepValidation, "shelf 7 is full").step(tarnv1.StepValidation, stops, func(p *corev1.Pod) {
		end := p.Status.ContainerStatuses[0].State.Terminated
		end.ExitCode, end.Reason, end.FinishedAt = 1, "Error", began
	})
	if err := chain(w.view).Print(&out, now); err != nil {
		t.Fatal(err)
	}
	want := `claim shop/data is Pending: PavProvisioner gold rejects it, attempt 3: shelf 7 is full
next: attempt 4 in 30s, at 03:04:35Z; at once if the PavProvisioner is changed

- claim shop/data: Pending, since 60m (2030-01-02T02:04:05Z)
    asks for 1Gi RWO Filesystem, class gold
- PavVolume pvc-claim-uid: Pending, since 60m (2030-01-02T02:04:05Z), PodFailed
    shelf 7 is full
    next: attempt 4 in 30s, at 03:04:35Z; at once if the PavProvisioner is changed
- pod default/pav-validation: failed on node n1, since 60m (2030-01-02T02:04:05Z), Failed
    container c exited with 1
    | the last line

to fix it:
  kubectl delete pavvolume pvc-claim-uid
`
	if out.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", out.String(), want)
	}
}

func TestNamesAndCommandsAreSafeToType(t *testing.T) {
	if got := kubectl("a b", "patch", "it's"); got != `kubectl -n 'a b' patch 'it'\''s'` {
		t.Errorf("got %s", got)
	}
	if got := printable("a\x1b[31mb\tc\x07\r\n"); got != "a[31mb c" {
		t.Errorf("a terminal would act on %q", got)
	}
}
