package stages

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	words "tarn.dev/tarn/internal/volume"
)

var now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func stage(changes ...func(*tarnv1.PavStage)) *tarnv1.PavStage {
	s := &tarnv1.PavStage{}
	s.Finalizers = []string{tarnv1.FinalizerStagePod, tarnv1.FinalizerStageNode}
	s.Status.Node = tarnv1.PavStageNodeStatus{Phase: tarnv1.StageWaiting, Targets: []string{"/target"}}
	for _, change := range changes {
		change(s)
	}
	return s
}

func node(p tarnv1.StageNodePhase) func(*tarnv1.PavStage) {
	return func(s *tarnv1.PavStage) { s.Status.Node.Phase = p }
}

func pod(p tarnv1.StagePodPhase) func(*tarnv1.PavStage) {
	return func(s *tarnv1.PavStage) { s.Status.Pod.Phase = p }
}

func ending(ago time.Duration) func(*tarnv1.PavStage) {
	return func(s *tarnv1.PavStage) { s.DeletionTimestamp = &metav1.Time{Time: now.Add(-ago)} }
}

func finalizers(list ...string) func(*tarnv1.PavStage) {
	return func(s *tarnv1.PavStage) { s.Finalizers = list }
}

func lost(attempt, cleared int32) func(*tarnv1.PavStage) {
	return func(s *tarnv1.PavStage) {
		s.Status.Node.Phase, s.Status.Node.Loss = tarnv1.StageLost, &tarnv1.StageLoss{Number: 1, Attempt: attempt, Cleared: cleared}
	}
}

func spent(attempt int32) func(*tarnv1.PavStage) {
	return func(s *tarnv1.PavStage) { s.Status.Node.Loss.Failed = attempt }
}

func second(s *tarnv1.PavStage) { s.Status.Pod.Attempt = 2 }
func told(s *tarnv1.PavStage)   { s.Status.Pod.Recovery = tarnv1.RecoveryNone }

func unused(s *tarnv1.PavStage) { s.Status.Node.Targets = nil }
func ahead(s *tarnv1.PavStage)  { s.Spec.AheadFor = &tarnv1.StageConsumer{Name: "pod"} }
func taken(s *tarnv1.PavStage)  { s.Status.Node.Taken = true }
func inUse(s *tarnv1.PavStage)  { s.Status.Node.InUse = ptr.To(true) }

func TestTheNextStepOfAStageIs(t *testing.T) {
	ended := []verb{ignoreReady, requestEnd}
	failed := []verb{ignoreReady, markFailed, requestEnd}
	for name, test := range map[string]struct {
		view View
		want []verb
	}{
		"nothing when it is gone":                            {View{}, nil},
		"to wait for the call that makes its folder":         {View{Stage: stage(node("")), Publishing: true}, nil},
		"a watch when it is new":                             {View{Stage: stage(node("")), Publishing: true, Folder: true}, []verb{watchReady}},
		"a watch when the folder is there":                   {View{Stage: stage(pod(tarnv1.StagePodRunning)), Folder: true}, []verb{watchReady}},
		"the same before the controller has seen it":         {View{Stage: stage(pod("")), Folder: true}, []verb{watchReady}},
		"its end when nobody uses it any more":               {View{Stage: stage(unused), Folder: true}, ended},
		"its end when a staged one has lost its last target": {View{Stage: stage(unused, node(tarnv1.StageStaged))}, ended},
		"its folder, its word and a watch when begun ahead":  {View{Stage: stage(unused, node(""), ahead)}, []verb{makeFolder, markWaiting, watchReady}},
		"a watch when that is said":                          {View{Stage: stage(unused, ahead), Folder: true}, []verb{watchReady}},
		"Staged ahead when the volume is right":              {View{Stage: stage(unused, ahead, pod(tarnv1.StagePodSucceeded)), Folder: true, Found: &record{}}, []verb{ignoreReady, markStaged}},
		"to wait for the call when it is staged ahead":       {View{Stage: stage(unused, ahead, node(tarnv1.StageStaged))}, []verb{ignoreReady}},
		"its end when what was begun ahead has failed":       {View{Stage: stage(unused, ahead, node(tarnv1.StageFailed))}, ended},
		"its end when it was begun ahead and used":           {View{Stage: stage(unused, ahead, taken, node(tarnv1.StageStaged))}, ended},
		"to wait while a publish call is about to use it":    {View{Stage: stage(unused), Publishing: true, Folder: true}, []verb{watchReady}},
		"Staged when the volume is right":                    {View{Stage: stage(pod(tarnv1.StagePodSucceeded)), Folder: true, Found: &record{}}, []verb{ignoreReady, markStaged}},
		"failure when the volume is wrong":                   {View{Stage: stage(pod(tarnv1.StagePodSucceeded)), Folder: true, Wrong: "no"}, failed},
		"failure when the pod has failed":                    {View{Stage: stage(pod(tarnv1.StagePodFailed)), Folder: true, PodError: "no"}, failed},
		"failure even if the pod had become ready":           {View{Stage: stage(pod(tarnv1.StagePodFailed)), Folder: true, Found: &record{}}, failed},
		"nothing more when it is staged":                     {View{Stage: stage(node(tarnv1.StageStaged)), Folder: true}, []verb{ignoreReady}},
		"failure when what was staged is lost":               {View{Stage: stage(node(tarnv1.StageStaged)), Lost: &loss{rebooted, "gone"}}, failed},
		"a loss told when the mount is gone":                 {View{Stage: stage(node(tarnv1.StageStaged)), Lost: &loss{tarnv1.ReasonMountGone, "gone"}}, []verb{ignoreReady, markLost}},
		"what has taken its place bound at once":             {View{Stage: stage(node(tarnv1.StageStaged)), Lost: &loss{tarnv1.ReasonMountReplaced, "other"}, Found: &record{}}, []verb{ignoreReady, markRebound}},
		"only told of where that is all that is wanted":      {View{Stage: stage(node(tarnv1.StageStaged), told), Lost: &loss{tarnv1.ReasonMountReplaced, "other"}, Found: &record{}}, []verb{ignoreReady, markLost}},
		"nothing more where that is all that is wanted":      {View{Stage: stage(lost(1, 0), told, pod(tarnv1.StagePodGone))}, []verb{ignoreReady}},
		"to wait until the lost one's pod is gone":           {View{Stage: stage(lost(1, 0), pod(tarnv1.StagePodRunning))}, []verb{ignoreReady}},
		"its folder cleared when the pod is gone":            {View{Stage: stage(lost(1, 0), pod(tarnv1.StagePodGone))}, []verb{ignoreReady, clearFolder}},
		"to wait for the next pod when it is clear":          {View{Stage: stage(lost(1, 1), pod(tarnv1.StagePodGone))}, []verb{ignoreReady}},
		"a watch when the next pod runs":                     {View{Stage: stage(lost(1, 1), second, pod(tarnv1.StagePodRunning))}, []verb{watchReady}},
		"bound anew when the next pod has made it":           {View{Stage: stage(lost(1, 1), second, pod(tarnv1.StagePodRunning)), Found: &record{}}, []verb{ignoreReady, markRebound}},
		"the failure of the next pod counted":                {View{Stage: stage(lost(1, 1), second, pod(tarnv1.StagePodFailed)), PodError: "no"}, []verb{ignoreReady, markRestageFailed}},
		"a wrong volume of the next pod counted":             {View{Stage: stage(lost(1, 1), second, pod(tarnv1.StagePodSucceeded)), Wrong: "no"}, []verb{ignoreReady, markRestageFailed}},
		"to wait for the end of the next pod after that":     {View{Stage: stage(lost(1, 1), second, spent(2), pod(tarnv1.StagePodFailed))}, []verb{ignoreReady}},
		"its folder cleared after the next pod":              {View{Stage: stage(lost(1, 1), second, spent(2), pod(tarnv1.StagePodGone))}, []verb{ignoreReady, clearFolder}},
		"its folder cleared after one that vanished":         {View{Stage: stage(lost(1, 1), second, pod(tarnv1.StagePodGone))}, []verb{ignoreReady, clearFolder}},
		"its end when a lost one has lost its last target":   {View{Stage: stage(lost(1, 0), unused)}, ended},
		"its end after a crash between failure and end":      {View{Stage: stage(node(tarnv1.StageFailed))}, ended},
		"to wait for the staging pod when it ends":           {View{Stage: stage(ending(0), pod(tarnv1.StagePodRunning))}, []verb{ignoreReady}},
		"its use told when somebody has deleted it":          {View{Stage: stage(ending(0), pod(tarnv1.StagePodRunning)), InUse: ptr.To(true)}, []verb{ignoreReady, reportUse}},
		"its use told when that is over":                     {View{Stage: stage(ending(0), pod(tarnv1.StagePodRunning), inUse), InUse: ptr.To(false)}, []verb{ignoreReady, reportUse}},
		"nothing more when its use is told":                  {View{Stage: stage(ending(0), pod(tarnv1.StagePodRunning), inUse), InUse: ptr.To(true)}, []verb{ignoreReady}},
		"unmounted when the staging pod is gone":             {View{Stage: stage(ending(0), pod(tarnv1.StagePodStopped), node(tarnv1.StageStaged)), Folder: true}, []verb{ignoreReady, unmount, markUnmounted}},
		"unmounted though unstaging has begun":               {View{Stage: stage(ending(0), pod(tarnv1.StagePodUnstaging), node(tarnv1.StageFailed)), Folder: true}, []verb{ignoreReady, unmount, markUnmounted}},
		"to wait while the unstaging pod runs":               {View{Stage: stage(ending(0), pod(tarnv1.StagePodUnstaging), node(tarnv1.StageUnmounted)), Folder: true}, []verb{ignoreReady}},
		"its folder, which the unstaging pod needs":          {View{Stage: stage(ending(0), pod(tarnv1.StagePodStopped))}, []verb{ignoreReady, unmount, makeFolder, markUnmounted}},
		"its folder even when it is late":                    {View{Stage: stage(ending(0), pod(tarnv1.StagePodUnstaging), node(tarnv1.StageUnmounted))}, []verb{ignoreReady, makeFolder}},
		"gone when unstaging is done":                        {View{Stage: stage(ending(0), pod(tarnv1.StagePodUnstaged), node(tarnv1.StageUnmounted))}, []verb{ignoreReady, unmount, removeFolder, removeFinalizer}},
		"gone when the controller has let it go":             {View{Stage: stage(ending(0), finalizers(tarnv1.FinalizerStageNode))}, []verb{ignoreReady, unmount, removeFolder, removeFinalizer}},
		"nothing when the agent has let it go":               {View{Stage: stage(ending(0), finalizers(tarnv1.FinalizerStagePod), pod(tarnv1.StagePodUnstaged))}, []verb{ignoreReady}},
		"unmounted however long it was held":                 {View{Stage: stage(ending(time.Hour), pod(tarnv1.StagePodStopped)), Folder: true}, []verb{ignoreReady, unmount, markUnmounted}},
		"unmounted again when a mount is busy":               {View{Stage: stage(ending(time.Hour), pod(tarnv1.StagePodStopped)), Folder: true, BusySince: now.Add(time.Second - detachAfter)}, []verb{ignoreReady, unmount, markUnmounted}},
		"detached when a mount stays busy":                   {View{Stage: stage(ending(detachAfter), pod(tarnv1.StagePodStopped)), Folder: true, BusySince: now.Add(-detachAfter)}, []verb{ignoreReady, detach, markUnmounted}},
	} {
		t.Run(name, func(t *testing.T) {
			test.view.Now = now
			var got []verb
			for _, a := range plan(test.view) {
				got = append(got, a.verb)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("plan: %v, want %v", got, test.want)
			}
		})
	}
}

func TestAFailureTellsAllThatIsKnown(t *testing.T) {
	for want, v := range map[string]View{
		"Staging pod failed: no bucket (exit code 3)":                         {Stage: failedPod("exit code 3"), PodError: "no bucket"},
		"Staging pod failed: no bucket":                                       {Stage: failedPod(""), PodError: "no bucket"},
		"Staging pod failed: image missing":                                   {Stage: failedPod("image missing")},
		"Staging pod failed: it wrote nothing to /pav/error":                  {Stage: failedPod("")},
		"PavProvisioner p is going":                                           {Stage: stage(pod(tarnv1.StagePodFailed), func(s *tarnv1.PavStage) { s.Status.Pod.Message = "PavProvisioner p is going" })},
		"Staging failed: /pav/volume does not exist":                          {Stage: stage(), Wrong: "/pav/volume does not exist"},
		"the staged volume is lost: the node was started; it is staged again": {Stage: stage(node(tarnv1.StageStaged)), Lost: &loss{rebooted, "the node was started"}},
	} {
		actions := plan(v)
		if len(actions) != 3 || actions[1].message != want {
			t.Errorf("plan: %+v, want message %q", actions, want)
		}
	}
}

func failedPod(message string) *tarnv1.PavStage {
	return stage(pod(tarnv1.StagePodFailed), func(s *tarnv1.PavStage) { s.Status.Pod.Message, s.Status.Pod.Staged = message, true })
}

func TestTheVolumesNameIsReadFromTheTarget(t *testing.T) {
	for target, want := range map[string]string{
		"/var/lib/kubelet/pods/1-2/volumes/kubernetes.io~csi/pvc-7/mount":            "pvc-7",
		"/data/k/pods/1-2/volumes/kubernetes.io~csi/a.b/mount/":                      "a.b",
		"/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-7/1-2": "pvc-7",
		"/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/staging/pvc-7/1-2": "",
		"/var/lib/kubelet/pods/1-2/volumes/kubernetes.io~nfs/pvc-7/mount":            "",
		"/tmp/csi-mount/target": "",
		"mount":                 "",
	} {
		name, found := volumeNameOf(target)
		if name != want || found != (want != "") {
			t.Errorf("%s: %q, want %q", target, name, want)
		}
	}
}

func TestTheWordOfAnUnstagingPodIsHandedOnWhenItHasFailed(t *testing.T) {
	attempt := func(s *tarnv1.PavStage) {
		s.Status.Pod.Namespace, s.Status.Pod.Name, s.Status.Pod.UID = "ns", "pav-unstaging-7-2", "7"
		s.Status.Pod.NextAttemptTime = &metav1.Time{Time: now}
	}
	said := func(pod, text string) func(*tarnv1.PavStage) {
		return func(s *tarnv1.PavStage) {
			s.Status.Node.Message = words.UnstagingWord(tarnv1.PavStagePodStatus{Namespace: "ns", Name: pod}, text)
		}
	}
	for name, test := range map[string]struct {
		changes []func(*tarnv1.PavStage)
		text    string
		want    string // of what is written
		writes  bool
	}{
		"it is told":                        {nil, "held", "unstaging pod ns/pav-unstaging-7-2 failed: held", true},
		"once":                              {[]func(*tarnv1.PavStage){said("pav-unstaging-7-2", "held")}, "held", "", false},
		"a pod that writes nothing":         {nil, "", "", false},
		"after one that wrote something":    {[]func(*tarnv1.PavStage){said("pav-unstaging-7-1", "held")}, "", "", true},
		"one that runs":                     {[]func(*tarnv1.PavStage){func(s *tarnv1.PavStage) { s.Status.Pod.NextAttemptTime = nil }}, "held", "", false},
		"one that was refused":              {[]func(*tarnv1.PavStage){func(s *tarnv1.PavStage) { s.Status.Pod.Name, s.Status.Pod.UID = "", "" }}, "held", "", false},
		"one of somebody else":              {[]func(*tarnv1.PavStage){func(s *tarnv1.PavStage) { s.Status.Pod.UID = "" }}, "held", "", false},
		"what was said of staging is kept":  {[]func(*tarnv1.PavStage){func(s *tarnv1.PavStage) { s.Status.Node.Message = "Staging pod failed: no bucket" }}, "", "", false},
		"and gives way to what comes later": {[]func(*tarnv1.PavStage){func(s *tarnv1.PavStage) { s.Status.Node.Message = "Staging pod failed: no bucket" }}, "held", "unstaging pod ns/pav-unstaging-7-2 failed: held", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := stage(append([]func(*tarnv1.PavStage){node(tarnv1.StageUnmounted), pod(tarnv1.StagePodUnstaging), ending(time.Second), attempt}, test.changes...)...)
			got, writes := "", false
			for _, a := range plan(View{Stage: s, Folder: true, PodError: test.text, Now: now}) {
				if a.verb == reportUnstaging {
					got, writes = a.message, true
				}
			}
			if got != test.want || writes != test.writes {
				t.Errorf("writes %q (%t), want %q (%t)", got, writes, test.want, test.writes)
			}
		})
	}
}
