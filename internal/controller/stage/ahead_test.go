package stage

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/action"
)

// takenPod is a pod that uses claim ns/data and that the kubelet of n1 has just accepted.
func takenPod(change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "uid-of-web"}}
	pod.Spec.NodeName = "n1"
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, StartTime: &metav1.Time{Time: noon}}
	for _, c := range change {
		c(pod)
	}
	return pod
}

func TestAPodIsStagedForAheadOnceItsKubeletHasTakenItOn(t *testing.T) {
	assigned := takenPod(func(p *corev1.Pod) { p.Status.StartTime = nil })
	for name, c := range map[string]struct {
		old, current *corev1.Pod
		want         bool
	}{
		"taken on":               {assigned, takenPod(), true},
		"told again":             {takenPod(), takenPod(), false},
		"assigned":               {takenPod(func(p *corev1.Pod) { p.Spec.NodeName, p.Status.StartTime = "", nil }), assigned, false},
		"refused":                {assigned, takenPod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), false},
		"being deleted":          {assigned, takenPod(going), false},
		"without a claim":        {assigned, takenPod(func(p *corev1.Pod) { p.Spec.Volumes = nil }), false},
		"one that runs":          {assigned, takenPod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }), false},
		"another of its name is": {takenPod(func(p *corev1.Pod) { p.UID = "of-another" }), takenPod(), true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := takenOn().Update(event.UpdateEvent{ObjectOld: c.old, ObjectNew: c.current}); got != c.want {
				t.Errorf("passes: %v, want %v", got, c.want)
			}
		})
	}
	if takenOn().Create(event.CreateEvent{Object: takenPod()}) {
		t.Error("pods that were there when the controller started pass")
	}
}

func TestWhatIsBegunAhead(t *testing.T) {
	whole := func() aheadView {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "uid-of-data"}}
		claim.Spec.VolumeName, claim.Status.Phase = "pv", corev1.ClaimBound
		vol := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "uid-of-pv", Annotations: map[string]string{tarnv1.AnnotationRecord: "r"}}}
		vol.Spec.ClaimRef = &corev1.ObjectReference{UID: claim.UID}
		node := &storagev1.CSINode{Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "slow"}}}}
		return aheadView{Pod: takenPod(), Claim: claim, Volume: vol, Provisioner: provisioner(metav1.ConditionTrue), Node: node}
	}
	v := whole()
	v.Volume.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
	v.ReadOnly = true
	stage := planAhead(v)
	if stage == nil {
		t.Fatal("nothing is begun")
	}
	want := tarnv1.PavStageSpec{
		Provisioner: tarnv1.ProvisionerReference{Name: "slow", UID: "uid-of-slow"}, VolumeName: "pv", VolumeUID: "uid-of-pv", NodeName: "n1", ReadOnly: true,
		AheadFor: &tarnv1.StageConsumer{Namespace: "ns", Name: "web", UID: "uid-of-web"},
	}
	if got := stage.Spec; *got.AheadFor != *want.AheadFor || got.Provisioner != want.Provisioner || got.VolumeName != want.VolumeName || got.VolumeUID != want.VolumeUID || got.NodeName != want.NodeName || !got.ReadOnly {
		t.Errorf("begun %+v, want %+v", got, want)
	}
	if stage.Name != tarnv1.StageName("uid-of-pv", "n1", true) || len(stage.Finalizers) != 2 {
		t.Errorf("it is %s with finalizers %q, which is none that the node agent would make", stage.Name, stage.Finalizers)
	}
	for name, change := range map[string]func(*aheadView){
		"without its claim":                func(v *aheadView) { v.Claim = nil },
		"of a claim that is not Bound":     func(v *aheadView) { v.Claim.Status.Phase = corev1.ClaimPending },
		"of a claim that is being deleted": func(v *aheadView) { v.Claim.DeletionTimestamp = &metav1.Time{Time: noon} },
		"of an ephemeral claim of another": func(v *aheadView) {
			v.Pod.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
		},
		"without its volume":                  func(v *aheadView) { v.Volume = nil },
		"of a volume that is another claim's": func(v *aheadView) { v.Volume.Spec.ClaimRef.UID = "of-another" },
		"of a volume that is nobody's":        func(v *aheadView) { v.Volume.Spec.ClaimRef = nil },
		"of a volume that is being deleted":   func(v *aheadView) { v.Volume.DeletionTimestamp = &metav1.Time{Time: noon} },
		"of a volume written by hand":         func(v *aheadView) { v.Volume.Annotations = nil },
		"of another driver":                   func(v *aheadView) { v.Provisioner = nil },
		"of a provisioner nobody has judged":  func(v *aheadView) { v.Provisioner = provisioner("") },
		"of one that is not accepted":         func(v *aheadView) { v.Provisioner = provisioner(metav1.ConditionFalse) },
		"of one that is being deleted":        func(v *aheadView) { v.Provisioner.DeletionTimestamp = &metav1.Time{Time: noon} },
		"on a node nobody knows":              func(v *aheadView) { v.Node = nil },
		"on a node without the node agent":    func(v *aheadView) { v.Node.Spec.Drivers[0].Name = "other" },
		"of a volume with a Secret, which only the kubelet reads": func(v *aheadView) {
			v.Volume.Spec.CSI = &corev1.CSIPersistentVolumeSource{NodePublishSecretRef: &corev1.SecretReference{Name: "key"}}
		},
		"where it is staged":        func(v *aheadView) { v.Staged = true },
		"for a pod that only reads": func(v *aheadView) { v.ReadOnly = true },
	} {
		t.Run(name, func(t *testing.T) {
			v := whole()
			change(&v)
			if stage := planAhead(v); stage != nil {
				t.Errorf("begun: %+v", stage.Spec)
			}
		})
	}
}

// begunAhead is a stage that waits for the kubelet's call.
func begunAhead(age time.Duration, change ...func(*tarnv1.PavStage)) *tarnv1.PavStage {
	s := aStage(tarnv1.PavStagePodStatus{})
	s.Spec.AheadFor = &tarnv1.StageConsumer{Namespace: "ns", Name: "web", UID: "uid-of-web"}
	s.CreationTimestamp = metav1.Time{Time: noon.Add(-age)}
	for _, c := range change {
		c(s)
	}
	return s
}

func takenStage(s *tarnv1.PavStage) { s.Status.Node.Taken = true }

func TestAStageBegunAheadIsForsaken(t *testing.T) {
	for name, c := range map[string]struct {
		stage *tarnv1.PavStage
		pod   *corev1.Pod
		want  bool
	}{
		"not while its pod waits":            {begunAhead(time.Second), takenPod(), false},
		"when its pod is gone":               {begunAhead(time.Second), nil, true},
		"when another has the pod's name":    {begunAhead(time.Second), takenPod(func(p *corev1.Pod) { p.UID = "of-another" }), true},
		"when its pod is being deleted":      {begunAhead(time.Second), takenPod(going, func(p *corev1.Pod) { p.Finalizers = []string{kubeletHolds} }), true},
		"when its pod runs without it":       {begunAhead(time.Second), takenPod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }), true},
		"when its pod was refused":           {begunAhead(time.Second), takenPod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), true},
		"not while the node agent is away":   {begunAhead(time.Hour), takenPod(), false},
		"never once the kubelet has asked":   {begunAhead(time.Hour, takenStage), nil, false},
		"never if it was not begun ahead":    {aStage(tarnv1.PavStagePodStatus{}), nil, false},
		"never twice":                        {ending(begunAhead(time.Second)), nil, false},
		"not where its pod is one of others": {begunAhead(time.Second), takenPod(func(p *corev1.Pod) { p.Labels = map[string]string{"app": "web"} }), false},
	} {
		t.Run(name, func(t *testing.T) {
			var objects []client.Object
			if c.pod != nil {
				objects = append(objects, c.pod)
			}
			got, err := (&Reconciler{pods: build(objects...)}).forsaken(t.Context(), c.stage)
			if got != c.want || err != nil {
				t.Errorf("%v, %v, want %v", got, err, c.want)
			}
		})
	}
	r := &Reconciler{pods: brokenReader{}}
	if got, err := r.forsaken(t.Context(), begunAhead(time.Second)); got || err == nil {
		t.Errorf("of a pod nobody could look for: %v, %v", got, err)
	}
	if got, err := new(Reconciler).forsaken(t.Context(), begunAhead(time.Second)); !got || err != nil {
		t.Errorf("where nothing is begun ahead any more: %v, %v", got, err)
	}
}

func answered(s *tarnv1.PavStage) { s.Status.Node.Phase = tarnv1.StageWaiting }

func TestWhatIsOnOtherNodesDecidesWhetherAStageBegins(t *testing.T) {
	elsewhere := func(s *tarnv1.PavStage) { s.Name, s.UID, s.Spec.NodeName = "stage-2", "uid-of-other", "n2" }
	sent := func(s *tarnv1.PavStage) { s.Status.Pod = starting() }
	unstaged := func(s *tarnv1.PavStage) { sent(s); s.Status.Pod.Phase = tarnv1.StagePodUnstaged }
	old := func(s *tarnv1.PavStage) { s.CreationTimestamp = metav1.Time{Time: noon.Add(-time.Hour)} }
	const waits = "waiting for PavStage stage-2, which was staged ahead for pod ns/web on node n2"
	called := aStage(tarnv1.PavStagePodStatus{})
	for name, c := range map[string]struct {
		stage, other *tarnv1.PavStage
		modes        []corev1.PersistentVolumeAccessMode
		want         string // waits, ends, ends other, or begins
	}{
		"staged ahead there":                      {called, begunAhead(time.Second, elsewhere, sent), nil, waits},
		"staged ahead there an hour ago":          {called, begunAhead(time.Second, elsewhere, sent, old), nil, waits},
		"being unstaged there":                    {called, ending(begunAhead(time.Second, elsewhere, sent)), nil, waits},
		"unstaged there":                          {called, ending(begunAhead(time.Second, elsewhere, unstaged)), nil, "begins"},
		"begun ahead there, no pod sent":          {called, begunAhead(time.Second, elsewhere), nil, "ends other"},
		"ending there, no pod sent":               {called, ending(begunAhead(time.Second, elsewhere)), nil, "begins"},
		"used there":                              {called, begunAhead(time.Second, elsewhere, sent, takenStage), nil, "begins"},
		"used there by an older agent's call":     {called, begunAhead(time.Second, elsewhere, sent, func(s *tarnv1.PavStage) { s.Status.Node.Targets = []string{"/t"} }), nil, "begins"},
		"of another volume":                       {called, begunAhead(time.Second, elsewhere, sent, func(s *tarnv1.PavStage) { s.Spec.VolumeName = "other" }), nil, "begins"},
		"on the same node":                        {called, begunAhead(time.Second, sent, func(s *tarnv1.PavStage) { s.Name, s.Spec.ReadOnly = "stage-2", true }), nil, "begins"},
		"of a volume for many nodes":              {called, begunAhead(time.Second, elsewhere, sent), []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, "begins"},
		"both begun ahead":                        {begunAhead(time.Second), begunAhead(time.Second, elsewhere), nil, "ends"},
		"begun ahead beside one that is used":     {begunAhead(time.Second), func() *tarnv1.PavStage { s := aStage(starting()); elsewhere(s); return s }(), nil, "ends"},
		"begun ahead alone":                       {begunAhead(time.Second), begunAhead(time.Second, elsewhere, func(s *tarnv1.PavStage) { s.Spec.VolumeName = "other" }), nil, "begins"},
		"begun ahead, of a volume for many nodes": {begunAhead(time.Second), begunAhead(time.Second, elsewhere), []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, "begins"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, c.other)
			v := &View{Stage: c.stage, Volume: &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{AccessModes: c.modes}}}
			if err := w.r.elsewhere(t.Context(), v); err != nil {
				t.Fatal(err)
			}
			got := "begins"
			switch {
			case v.Forsaken:
				got = "ends"
			case v.Awaited != "":
				got = v.Awaited
			case len(v.Unsent) > 0:
				got = "ends other"
			}
			if got != c.want {
				t.Errorf("it %s, want %s", got, c.want)
			}
		})
	}
}

func TestAVolumeIsStagedAheadOnlyForItsPodAndIfThatMountsIt(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data"}}
	mounting := func(p *corev1.Pod) {
		p.Spec.Containers = []corev1.Container{{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}}}
	}
	for name, c := range map[string]struct {
		stage *tarnv1.PavStage
		pod   *corev1.Pod
		want  bool
	}{
		"its pod":                  {begunAhead(time.Second), takenPod(mounting), true},
		"its pod's init container": {begunAhead(time.Second), takenPod(mounting, func(p *corev1.Pod) { p.Spec.InitContainers, p.Spec.Containers = p.Spec.Containers, nil }), true},
		"as a device, though it is none": {begunAhead(time.Second), takenPod(func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{VolumeDevices: []corev1.VolumeDevice{{Name: "data"}}}}
		}), false},
		"its pod names it alone":      {begunAhead(time.Second), takenPod(), false},
		"its pod is being deleted":    {begunAhead(time.Second), takenPod(mounting, going, func(p *corev1.Pod) { p.Finalizers = []string{kubeletHolds} }), false},
		"another pod":                 {begunAhead(time.Second), takenPod(mounting, func(p *corev1.Pod) { p.UID = "of-another" }), false},
		"any pod, once it was called": {aStage(tarnv1.PavStagePodStatus{}), takenPod(func(p *corev1.Pod) { p.UID = "of-another" }), true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, c.pod)
			got, err := w.r.usedOn(t.Context(), c.stage, claim)
			if got != c.want || err != nil {
				t.Errorf("%v, %v, want %v", got, err, c.want)
			}
		})
	}
}

func TestAStageThatNoNodeAgentHasAnsweredWaitsWhileItsPodDoes(t *testing.T) {
	w := newWorld(t, begunAhead(time.Second), takenPod(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	w.r.pods = w.store
	for range 3 {
		result, err := w.r.Reconcile(t.Context(), requestFor(stageName))
		if err != nil || result.RequeueAfter != aheadLook {
			t.Fatalf("%+v, %v", result, err)
		}
	}
	if s := w.stage(); s == nil || s.DeletionTimestamp != nil || s.Status.Pod.Phase != "" || len(w.made) > 0 {
		t.Errorf("it has not waited: %+v, pods %q", s, w.made)
	}
}

func TestADeviceIsMountedAsOne(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data"}}
	claim.Spec.VolumeMode = ref(corev1.PersistentVolumeBlock)
	device := corev1.Container{VolumeDevices: []corev1.VolumeDevice{{Name: "data"}}}
	folder := corev1.Container{VolumeMounts: []corev1.VolumeMount{{Name: "data"}}}
	for _, c := range []struct {
		containers []corev1.Container
		want       bool
	}{{[]corev1.Container{device}, true}, {[]corev1.Container{folder}, false}, {[]corev1.Container{device, folder}, false}, {nil, false}} {
		if got := mounts(takenPod(func(p *corev1.Pod) { p.Spec.Containers = c.containers }), claim); got != c.want {
			t.Errorf("by %+v: %v, want %v", c.containers, got, c.want)
		}
	}
}

func TestAStageThatNoNodeAgentHasAnsweredIsLetGo(t *testing.T) {
	w := newWorld(t, begunAhead(time.Second), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	w.r.pods = w.store
	for range 3 {
		if _, err := w.r.Reconcile(t.Context(), requestFor(stageName)); err != nil {
			t.Fatal(err)
		}
	}
	if s := w.stage(); s != nil {
		t.Errorf("it is left: %+v", s)
	}
}

func TestAForsakenStageIsEndedUnlessTheKubeletAsks(t *testing.T) {
	w := newWorld(t, begunAhead(time.Second), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	w.r.pods = w.store
	read := w.stage()
	asked := read.DeepCopy()
	asked.Status.Node.Taken = true
	w.must(w.store.Status().Update(t.Context(), asked))
	if err := w.r.runner.Do(t.Context(), action.Delete{Object: read, Unchanged: true}); err == nil || w.stage().DeletionTimestamp != nil {
		t.Errorf("a stage that the kubelet has asked for since was ended (%v)", err)
	}

	w = newWorld(t, begunAhead(time.Second), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	w.r.pods = w.store
	if _, err := w.r.Reconcile(t.Context(), requestFor(stageName)); err != nil {
		t.Fatal(err)
	}
	if w.stage().DeletionTimestamp == nil {
		t.Error("a stage whose pod is gone goes on")
	}
	if p := podEnding(); !p.Update(event.UpdateEvent{ObjectOld: takenPod(), ObjectNew: takenPod(func(p *corev1.Pod) { p.UID = "of-another" })}) || p.Update(event.UpdateEvent{ObjectOld: takenPod(), ObjectNew: takenPod()}) {
		t.Error("it does not hear that its pod was replaced by another of its name, or hears of any change")
	}
}

func TestStagesOfOtherNodesHearThatAStageIsAwaitedNoMore(t *testing.T) {
	before, after := begunAhead(time.Second), begunAhead(time.Second, takenStage)
	p := awaitedNoMore()
	if !p.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}) || !p.Delete(event.DeleteEvent{Object: before}) {
		t.Error("they do not hear that it is taken, or gone")
	}
	if p.Update(event.UpdateEvent{ObjectOld: after, ObjectNew: after}) || p.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: before}) || p.Create(event.CreateEvent{Object: before}) {
		t.Error("they hear of what changes nothing")
	}
}
