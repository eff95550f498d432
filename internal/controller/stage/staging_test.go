package stage

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/steppod/steppodtest"
	"tarn.dev/tarn/internal/testkit"
)

func validating() tarnv1.PavStagePodStatus {
	return tarnv1.PavStagePodStatus{Phase: tarnv1.StagePodValidating, Namespace: "ns", Name: validation}
}

// toValidate completes a view with the evaluated validation.
func toValidate(v *View) { v.Validation = &steppod.Prepared{Pod: aPod(validation, "")} }

func hasRival(v *View) { v.Rival = `PersistentVolume "other"` }
func sharesHandle(v *View) {
	v.Refused = &steppod.StepError{Reason: steppod.ReasonHandleTaken, Message: "taken"}
}
func failedPod(p *corev1.Pod) {
	p.Annotations = map[string]string{tarnv1.AnnotationResult: `{"error": "shelf 7 is full"}`}
}

func TestPlanOfAVolumeWrittenByHand(t *testing.T) {
	none := tarnv1.PavStagePodStatus{}
	failed := func(status tarnv1.PavStagePodStatus, message string) *tarnv1.PavStagePodStatus {
		status.Phase, status.Message, status.Staged = tarnv1.StagePodFailed, message, false
		return &status
	}
	const both = `PersistentVolume "other": one of them at a time can be staged; give each volume a volumeHandle of its own, or use one claim for both`
	for _, c := range []planCase{
		{
			name: "its validation pod is written down before it is made", view: view(aStage(none), toValidate),
			want: "write, start " + validation, wantStatus: ref(validating()),
		},
		{
			name: "without a validation pod it is staged", view: view(aStage(none), func(v *View) { v.Validation = &steppod.Prepared{} }, prepared(staging)),
			want: "write, confirm, start " + staging, wantStatus: ref(starting()),
		},
		{
			name: "a validation pod that runs is waited for", view: view(aStage(validating()), pod(aPod(validation, corev1.PodRunning))), wantLook: 615e9,
		},
		{
			name: "one that failed fails the stage, and no unstaging is due", view: view(aStage(validating()), pod(aPod(validation, corev1.PodFailed, failedPod))),
			want: "write, post StagingFailed", wantStatus: failed(validating(), "Validation pod failed: shelf 7 is full"), wantNote: "Validation pod failed: shelf 7 is full",
		},
		{
			name: "one that is not ours fails it", view: view(aStage(validating()), pod(aPod(validation, corev1.PodRunning, foreign))), want: "write, post StagingFailed",
			wantStatus: failed(validating(), "pod ns/"+validation+" exists and belongs to something else; delete it to continue"),
			wantNote:   "pod ns/" + validation + " exists and belongs to something else; delete it to continue",
		},
		{
			name: "one that was refused fails it", view: view(aStage(validating()), refused), want: "write, post StagingFailed",
			wantStatus: failed(validating(), "the API server said no"), wantNote: "the API server said no",
		},
		{
			name: "one that vanished is started again", view: view(aStage(validating()), toValidate),
			want: "write, start " + validation, wantStatus: ref(validating()),
		},
		{
			name: "after one that ended well it is staged", view: view(aStage(validating()), pod(aPod(validation, corev1.PodSucceeded)), prepared(staging)),
			want: "write, confirm, start " + staging + ", discard " + validation, wantStatus: ref(starting()),
		},
		{
			name: "a provisioner that is no longer accepted then stages nothing",
			view: view(aStage(validating()), pod(aPod(validation, corev1.PodSucceeded)), by(provisioner(metav1.ConditionFalse))), want: "write, post StagingFailed",
			wantStatus: failed(validating(), `PavProvisioner "slow" is not accepted (Because): of this; correct it`),
			wantNote:   `PavProvisioner "slow" is not accepted (Because): of this; correct it`,
		},
		{
			name: "it is not staged beside a stage of its handle", view: view(aStage(none), hasRival, prepared(staging)),
			want: "write, post StagingFailed", wantStatus: failed(none, both), wantNote: both,
		},
		{
			name: "it gives way to one that began at the same time", view: view(aStage(starting()), sharesHandle),
			want: "write, post StagingFailed", wantStatus: failed(starting(), "taken"), wantNote: "taken",
		},
		{
			name: "it gives way after a crash, too", view: view(aStage(starting()), hasRival),
			want: "write, post StagingFailed", wantStatus: failed(starting(), both), wantNote: both,
		},
		{
			name: "it is not unstaged under a stage of its handle", view: view(unmounted(aStage(stopped(true))), hasRival, prepared(unstaging)),
			want: "write, post UnstagingSkipped, let go " + tarnv1.FinalizerStagePod,
			wantStatus: &tarnv1.PavStagePodStatus{
				Phase: tarnv1.StagePodUnstaged, Namespace: "ns", Staged: true, Message: `PersistentVolume "other": the volume is unstaged when that one is`,
			},
			wantNote: `PersistentVolume "other": the volume is unstaged when that one is`,
		},
		{
			name: "a validation pod that a crash left beside the staging pod goes with that",
			view: view(ending(aStage(starting())), pod(aPod(staging, corev1.PodRunning)), func(v *View) { v.Leftover = aPod(validation, corev1.PodSucceeded) }),
			want: "discard " + validation + ", discard " + staging,
		},
	} {
		t.Run(c.name, c.run)
	}
}

// Two stages whose volumes have the same handle were both recorded before either checked. At
// least one of them notices the other.
func TestTwoStagesOfAHandleThatBeginAtOnceDoNotBothStart(t *testing.T) {
	w := newWorld(t, subjects()...)
	w.Fail = func(n int, made bool) error {
		if n == 1 && made { // the controller's first write is the intent
			w.rival(tarnv1.StagePodStarting)
		}
		return nil
	}
	w.live()
	if len(w.made) > 0 {
		t.Errorf("made %q beside another stage of the same handle", w.made)
	}
}

func TestAVolumeOnItsWayOutIsStagedForNobody(t *testing.T) {
	for _, c := range []struct {
		phase    tarnv1.VolumePhase
		wantMade []string
	}{
		{tarnv1.VolumeDeleting, nil},
		{tarnv1.VolumeUndoing, nil},
		{tarnv1.VolumeCreated, []string{staging, unstaging}},
	} {
		t.Run(string(c.phase), func(t *testing.T) {
			w := newWorld(t, subjects()...)
			knowing := w.r.client
			w.r.client = w.snapshot() // the cache does not have the record yet
			record := &tarnv1.PavVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Status: tarnv1.PavVolumeStatus{Phase: c.phase}}
			w.must(w.store.Create(context.Background(), record))
			w.look()
			w.r.client = knowing
			w.live()
			if !slices.Equal(w.made, c.wantMade) {
				t.Errorf("made %q, want %q", w.made, c.wantMade)
			}
		})
	}
}

func TestALookAtAStagingPodThatRunsAsksTheAPIServerNothing(t *testing.T) {
	w := newWorld(t, subjects()...)
	w.end = func(*corev1.Pod) corev1.PodPhase { return corev1.PodRunning }
	for range 3 {
		w.look()
		w.clock.SetTime(noon) // the deadline of its staging does not come closer
		w.kubelet()
	}
	w.r.live = brokenReader{}
	w.look()
	if phase := w.stage().Status.Pod.Phase; phase != tarnv1.StagePodRunning {
		t.Errorf("the pod is %s, want Running", phase)
	}
}

func TestTheRivalIsNamedToTheUser(t *testing.T) {
	w := newWorld(t, subjects()...)
	w.rival(tarnv1.StagePodSucceeded)
	w.look()
	status := w.stage().Status.Pod
	for _, want := range []string{`PersistentVolume "other"`, `node "n2"`, `driver "slow"`, `volumeHandle "handle-7"`} {
		if status.Phase != tarnv1.StagePodFailed || status.Staged || !strings.Contains(status.Message, want) {
			t.Errorf("the stage is %+v, want it to fail with %s", status, want)
		}
	}
}

func TestTheValidationPodOfACrashIsFoundByItsLabels(t *testing.T) {
	stage := ending(aStage(starting()))
	leftover := aPod(validation, corev1.PodSucceeded)
	leftover.Labels[tarnv1.LabelStage] = stageUID
	another := aPod(validation, corev1.PodSucceeded, foreign)
	another.Name, another.Labels[tarnv1.LabelStage] = "another", stageUID
	w := newWorld(t, append(subjects(), another, leftover)...)
	found, err := w.r.leftover(context.Background(), stage)
	if err != nil || found == nil || client.ObjectKeyFromObject(found) != client.ObjectKeyFromObject(leftover) {
		t.Errorf("got %v, %v, want %s", found, err, leftover.Name)
	}
}

// Whatever a volume says of itself, it was made for a claim only if its record exists, or
// existed until tarn uninstall removed its finalizer.
func TestOnlyAVolumeOfARecordWasMadeForAClaim(t *testing.T) {
	const records, keeps, provisioned = tarnv1.AnnotationRecord, tarnv1.AnnotationKept, "pv.kubernetes.io/provisioned-by"
	for _, c := range []struct {
		name        string
		annotations map[string]string
		recordNamed string
		wantMade    []string
		wantMessage string
	}{
		{"its record is there", map[string]string{records: "uid-of-record", provisioned: "slow"}, "pv", []string{staging}, ""},
		{"its record was let go", map[string]string{records: "uid-of-record", keeps: "uid-of-pv"}, "", []string{staging}, ""},
		{"it says that it was kept and nothing else", map[string]string{keeps: "uid-of-pv"}, "", nil, `"pv" was written by hand`},
		{"it was written by hand", nil, "", nil, `"pv" was written by hand`},
		{"it is of another provisioner", map[string]string{provisioned: "slow"}, "", nil, `"pv" was written by hand`},
		{"it was restored from a backup", map[string]string{records: "uid-of-record", provisioned: "slow"}, "", nil, "restored from a backup"},
		{"it was restored after its record was let go", map[string]string{records: "uid-of-record", keeps: "uid-of-former-pv"}, "", nil, "restored from a backup"},
		{"it was restored with its record", map[string]string{records: "uid-of-former-record"}, "pv", nil, "restored from a backup"},
		{"it is a copy of one that is there", map[string]string{records: "uid-of-record"}, "original", nil, "restored from a backup"},
	} {
		t.Run(c.name, func(t *testing.T) {
			objects := subjects()
			for _, o := range objects {
				switch o := o.(type) {
				case *pavv1.PavProvisioner:
					o.Spec.ProvisioningModes = []pavv1.ProvisioningMode{pavv1.ModeDynamic}
				case *corev1.PersistentVolume:
					o.Annotations = c.annotations
				}
			}
			if c.recordNamed != "" {
				objects = append(objects, &tarnv1.PavVolume{ObjectMeta: metav1.ObjectMeta{Name: c.recordNamed, UID: "uid-of-record"}})
			}
			w := newWorld(t, objects...)
			w.look()
			status := w.stage().Status.Pod
			if !slices.Equal(w.made, c.wantMade) || !strings.Contains(status.Message, c.wantMessage) || (status.Phase == tarnv1.StagePodFailed) != (c.wantMessage != "") {
				t.Errorf("made %q, the stage is %s: %q, want %q, and %q", w.made, status.Phase, status.Message, c.wantMade, c.wantMessage)
			}
		})
	}
}

// A volume that was restored from a backup is validated before it is staged, if it may be
// staged.
func TestARestoredVolumeIsValidated(t *testing.T) {
	objects := subjects()
	for _, o := range objects {
		switch o := o.(type) {
		case *pavv1.PavProvisioner:
			o.Spec.VolumeValidation = testkit.PodSection()
		case *corev1.PersistentVolume:
			o.Annotations = map[string]string{tarnv1.AnnotationRecord: "uid-of-record"}
		}
	}
	w := newWorld(t, objects...)
	w.look()
	if want := []string{validation}; !slices.Equal(w.made, want) {
		t.Errorf("made %q, want %q", w.made, want)
	}
}

// Each kind of pod of a stage is seen while its image cannot be pulled, and then fails at its
// deadline.
func TestAPodOfAStageThatCouldNotBeginIsExplainedByWhatItWaitedFor(t *testing.T) {
	ofVolume := func(stage *tarnv1.PavStage) func(*corev1.Pod) (message string) {
		return func(change *corev1.Pod) string {
			p := plan(view(stage, pod(change)), noon)
			for _, a := range p.Actions {
				if w, ok := a.(WriteStatus); ok {
					stage.Status.Pod = w.Status
				}
			}
			return stage.Status.Pod.Message
		}
	}
	inExpansion := func() func(*corev1.Pod) string {
		e := anExpansion(&tarnv1.StageExpansion{Attempt: 2, Phase: tarnv1.StageExpansionRunning, Namespace: "ns", Name: "new"})
		return func(change *corev1.Pod) string {
			e.Pods = []corev1.Pod{*change}
			for _, a := range planExpansion(e, noon).Actions {
				if w, ok := a.(WriteStatus); ok {
					e.Stage.Status.Pod = w.Status
				}
			}
			return e.Stage.Status.Pod.Expansion.Message
		}
	}
	for _, c := range []struct {
		name string
		pod  *corev1.Pod
		look func(*corev1.Pod) string
	}{
		{"validation", aPod(validation, corev1.PodPending), ofVolume(aStage(validating()))},
		{"staging, with a deadline of its own", aPod(staging, corev1.PodPending), ofVolume(aStage(starting()))},
		{"unstaging", aPod(unstaging, corev1.PodPending), ofVolume(unmounted(aStage(inUnstaging(1))))},
		{"node expansion", growing("new", corev1.PodPending), inExpansion()},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.look(steppodtest.CannotPull(c.pod)); got != steppodtest.NoImage {
				t.Fatalf("while it waits, the stage says %q", got)
			}
			if got := c.look(steppodtest.TimeIsUp(c.pod)); !strings.HasSuffix(got, "has not ended within 5s: "+steppodtest.NoImage) {
				t.Errorf("then the stage says %q", got)
			}
		})
	}
	t.Run("not an earlier pod's", func(t *testing.T) {
		stage := unmounted(aStage(inUnstaging(2)))
		stage.Status.Pod.Message = "busy"
		look := ofVolume(stage)
		if got := look(steppodtest.TimeIsUp(aPod("pav-unstaging-uid-of-stage-2", corev1.PodPending))); strings.Contains(got, "busy") {
			t.Errorf("the stage says %q", got)
		}
	})
}
