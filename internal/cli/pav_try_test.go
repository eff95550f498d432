package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
)

// prepared reads what a test of a provisioner would create.
func prepared(t *testing.T, try *pavTry, text string) error {
	t.Helper()
	cmd := newPavTestCommand()
	cmd.SetIn(strings.NewReader(text))
	try.prefix, try.image = "pav-test-", "busybox"
	return try.prepare(cmd, standardInput)
}

func TestATestUsesThrowAwayNamesAlone(t *testing.T) {
	long := strings.Repeat("long-", 12) + "end"
	try := &pavTry{claimFile: testFile("claim.yaml"), classFile: testFile("claim.yaml")}
	text := strings.NewReplacer("name: right", "name: "+long, "[Static]", "[Dynamic]").Replace(provisioner)
	if err := prepared(t, try, text); err != nil {
		t.Fatal(err)
	}
	name := try.provisioner.GetName()
	if name == long || !strings.HasPrefix(name, "long-long") || len(validation.IsDNS1123Label(name)) > 0 {
		t.Errorf("the provisioner is called %q", name)
	}
	if try.class.Name != name || try.class.Provisioner != name || try.class.Parameters["region"] != "eu" {
		t.Errorf("the class is %+v", try.class)
	}
	claim := try.claim
	if *claim.Spec.StorageClassName != name || claim.Namespace != try.namespace || claim.UID != "" || claim.Annotations["example.org/source"] != "base" {
		t.Errorf("the claim is %+v", claim)
	}
	for _, pod := range []*corev1.Pod{try.writer, try.reader} {
		if pod.Namespace != try.namespace || pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName != claim.Name {
			t.Errorf("the pod is %+v", pod)
		}
	}
	if len(validation.IsDNS1123Label(try.namespace)) > 0 {
		t.Errorf("the namespace is called %q", try.namespace)
	}
}

func TestABlockVolumeIsTriedAsADevice(t *testing.T) {
	claim := sampleClaim()
	block := corev1.PersistentVolumeBlock
	claim.Spec.VolumeMode = &block
	writer, reader := tryPods(claim, "busybox", "token")
	for _, c := range []corev1.Container{writer.Spec.InitContainers[0], writer.Spec.Containers[0], reader.Spec.Containers[0]} {
		if len(c.VolumeMounts) > 0 || len(c.VolumeDevices) != 1 {
			t.Errorf("container %s has mounts %v and devices %v", c.Name, c.VolumeMounts, c.VolumeDevices)
		}
	}
	if script := reader.Spec.Containers[0].Command[2]; !strings.Contains(script, "count=5 ") {
		t.Errorf("the reader runs %s", script)
	}
}

func TestACreationIsMadeToFailBeforeItDoesAnything(t *testing.T) {
	pod := func(spec any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"volumeCreation": map[string]any{"podTemplate": map[string]any{"spec": spec}}}}}
	}
	own := map[string]any{"name": "own"}
	p := pod(map[string]any{"restartPolicy": "OnFailure", "initContainers": []any{own}, "containers": []any{own}})
	spoilt, why := spoil(p, "busybox")
	if why != "" {
		t.Fatal(why)
	}
	spec, _, _ := unstructured.NestedMap(spoilt.Object, "spec", "volumeCreation", "podTemplate", "spec")
	list, _, _ := unstructured.NestedSlice(spec, "initContainers")
	if first, _ := list[0].(map[string]any); len(list) != 2 || first["image"] != "busybox" || spec["restartPolicy"] != "Never" {
		t.Errorf("the creation pod is %v", spec)
	}
	if list, _, _ := unstructured.NestedSlice(p.Object, "spec", "volumeCreation", "podTemplate", "spec", "initContainers"); len(list) != 1 {
		t.Errorf("the provisioner itself was changed: %v", list)
	}
	for want, p := range map[string]*unstructured.Unstructured{
		"is a template as a whole":      pod("{{ all }}"),
		"initContainers are a template": pod(map[string]any{"initContainers": "{{ some }}"}),
		"there is no creation pod":      {Object: map[string]any{"spec": map[string]any{}}},
	} {
		if _, why := spoil(p, "busybox"); !strings.Contains(why, want) {
			t.Errorf("got %q, want %q", why, want)
		}
	}
}

func TestATestRefusesWhatItCannotTry(t *testing.T) {
	dynamic := strings.Replace(provisioner, "[Static]", "[Dynamic]", 1)
	const volume = "kind: PersistentVolume\nmetadata: {name: a}\nspec: {csi: {driver: right, volumeHandle: h}"
	byHand := writeFile(t, "volume.yaml", volume+"}\n")
	used := writeFile(t, "used.yaml", volume+"}\nstatus: {phase: Bound}\n")
	unnamed := writeFile(t, "unnamed.yaml", "apiVersion: v1\nkind: Secret\n")
	device := writeFile(t, "device.yaml", "kind: PersistentVolumeClaim\nmetadata: {name: a}\nspec: {volumeMode: Block, accessModes: [ReadWriteOnce]}\n")
	block := writeFile(t, "block.yaml", volume+", volumeMode: Block}\n")
	bare := writeFile(t, "bare.yaml", "kind: PersistentVolume\nmetadata: {name: a}\nspec: {hostPath: {path: /a}}\n")
	bound := writeFile(t, "claim.yaml", "kind: PersistentVolumeClaim\nmetadata: {name: a}\nspec: {volumeName: pv-7}\n")
	for want, c := range map[string]struct {
		try  pavTry
		text string
	}{
		"does not stage volumes written by hand":                    {pavTry{volumeFile: byHand}, dynamic},
		"--volume: PersistentVolume a has no spec.csi.volumeHandle": {pavTry{volumeFile: bare}, provisioner},
		"would overwrite the first bytes of a device":               {pavTry{volumeFile: block}, provisioner},
		"has status.phase Bound":                                    {pavTry{volumeFile: used}, provisioner},
		"document 1 needs apiVersion, kind and metadata.name":       {pavTry{withFiles: []string{unnamed}}, dynamic},
		`--namespace "A" is not a valid namespace name`:             {pavTry{fixed: "A"}, dynamic},
		"is tested only with volumeMode Filesystem":                 {pavTry{claimFile: device}, provisioner},
		"--class: a volume written by hand has no class":            {pavTry{classFile: testFile("claim.yaml")}, provisioner},
		`--claim: spec.volumeName "pv-7"`:                           {pavTry{claimFile: bound}, dynamic},
		"has no StorageClass":                                       {pavTry{classFile: bound}, dynamic},
	} {
		if err := prepared(t, &c.try, c.text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestAVolumeThatCanOnlyBeReadIsNotWritten(t *testing.T) {
	const volume = "kind: PersistentVolume\nmetadata: {name: a}\nspec: {csi: {driver: right, volumeHandle: h"
	for name, c := range map[string]struct {
		try  pavTry
		text string
		want string
	}{
		"by its source":    {pavTry{volumeFile: writeFile(t, "a.yaml", volume+", readOnly: true}}\n")}, provisioner, "ls -A /volume"},
		"by its modes":     {pavTry{volumeFile: writeFile(t, "b.yaml", volume+"}, accessModes: [ReadOnlyMany]}\n")}, provisioner, "ls -A /volume"},
		"a block device":   {pavTry{volumeFile: writeFile(t, "c.yaml", volume+"}, accessModes: [ReadOnlyMany], volumeMode: Block}\n")}, provisioner, "of=/dev/null"},
		"made for a claim": {pavTry{claimFile: writeFile(t, "d.yaml", "kind: PersistentVolumeClaim\nmetadata: {name: a}\nspec: {accessModes: [ReadOnlyMany]}\n")}, strings.Replace(provisioner, "[Static]", "[Dynamic]", 1), "ls -A /volume"},
		"but others are":   {pavTry{volumeFile: writeFile(t, "e.yaml", volume+"}, accessModes: [ReadOnlyMany, ReadWriteOnce]}\n")}, provisioner, "> /volume/tarn-pav-test"},
	} {
		if err := prepared(t, &c.try, c.text); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		reads := c.want != "> /volume/tarn-pav-test"
		first, second := c.try.writer.Spec.InitContainers[0], c.try.reader.Spec.Containers[0]
		if script := first.Command[2]; !strings.Contains(script, c.want) || reads && second.Command[2] != script {
			t.Errorf("%s: the pods run %q and %q", name, script, second.Command[2])
		}
		for _, pod := range []*corev1.Pod{c.try.writer, c.try.reader} {
			if pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly != reads || reads && strings.Contains(pod.Spec.Containers[0].Command[2], "tarn-pav-test") {
				t.Errorf("%s: the pod is %+v", name, pod.Spec)
			}
		}
	}
}

func TestATestTakesItsCompanionsAndItsNamespace(t *testing.T) {
	file := writeFile(t, "with.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: key}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: b}\n")
	try := &pavTry{withFiles: []string{file}, fixed: "mine"}
	if err := prepared(t, try, provisioner); err != nil {
		t.Fatal(err)
	}
	if try.namespace != "mine" || try.claim.Namespace != "mine" || try.writer.Namespace != "mine" || try.report.Namespace != "mine" {
		t.Errorf("the namespaces are %q, %q, %q", try.namespace, try.claim.Namespace, try.writer.Namespace)
	}
	if list := try.companions; len(list) != 2 || list[0].GetKind() != "Secret" || list[1].GetNamespace() != "b" {
		t.Errorf("the companions are %v", list)
	}
	there := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b", UID: "theirs"}}
	live := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(there).
		WithRESTMapper(testrestmapper.TestOnlyStaticRESTMapper(kube.Scheme())).Build()
	try.world = &tryWorld{live: live}
	secret := &corev1.Secret{}
	if err := try.makeCompanions(t.Context()); err == nil || !strings.Contains(err.Error(), "--with: ConfigMap a exists") {
		t.Errorf("got %v, want that the ConfigMap exists", err)
	}
	if err := live.Get(t.Context(), client.ObjectKey{Namespace: "mine", Name: "key"}, secret); err != nil {
		t.Errorf("an object without a namespace is not in that of the test: %v", err)
	}
	if err := try.discardCompanions(t.Context()); err != nil {
		t.Error(err)
	}
	if err := live.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); !apierrors.IsNotFound(err) {
		t.Errorf("the Secret is left: %v", err)
	}
	if err := live.Get(t.Context(), client.ObjectKeyFromObject(there), there); err != nil {
		t.Errorf("an object that was there before is gone: %v", err)
	}
}

func TestATestLeavesANamespaceThatIsThereAlone(t *testing.T) {
	live := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}).Build()
	try := &pavTry{namespace: "mine", timeout: time.Minute, world: &tryWorld{live: live}, out: io.Discard}
	if err := try.makeNamespace(t.Context()); err == nil || !strings.Contains(err.Error(), "namespace mine exists") {
		t.Errorf("got %v", err)
	}
	try.end(t.Context())
	if err := live.Get(t.Context(), client.ObjectKey{Name: "mine"}, &corev1.Namespace{}); err != nil {
		t.Errorf("it is gone: %v", err)
	}
}

func TestAPodThatCannotStartEndsATest(t *testing.T) {
	now := time.Now()
	pod := func(step tarnv1.Step, waits, message string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "p", CreationTimestamp: metav1.NewTime(now.Add(-time.Minute))}}
		p.Spec.NodeName = "n"
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: waits, Message: message}}}}
		if step != "" {
			p.Labels = map[string]string{tarnv1.LabelStep: string(step)}
			p.OwnerReferences = []metav1.OwnerReference{{UID: "o", Controller: ptr.To(true)}}
		}
		return p
	}
	going := pod(tarnv1.StepCreation, "ErrImagePull", "no")
	going.DeletionTimestamp = &metav1.Time{Time: now}
	young := pod(tarnv1.StepCreation, "ContainerCreating", "")
	young.CreationTimestamp = metav1.NewTime(now)
	unscheduled := pod(tarnv1.StepCreation, "", "")
	unscheduled.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "no node"}}
	for _, c := range []struct {
		name string
		pod  *corev1.Pod
		want string
	}{
		{"an image that is not there", pod(tarnv1.StepCreation, "ErrImagePull", "not found"), "container c: ErrImagePull: not found"},
		{"the pause after it", pod(tarnv1.StepStaging, "ImagePullBackOff", "back-off"), "container c: ImagePullBackOff: back-off"},
		{"that of a consumer", pod("", "ErrImagePull", "not found"), "container c: ErrImagePull: not found"},
		{"a Secret for the environment", pod(tarnv1.StepStaging, "CreateContainerConfigError", `secret "key" not found`), `container c: CreateContainerConfigError: secret "key" not found`},
		{"a Secret to be mounted", pod(tarnv1.StepStaging, "ContainerCreating", ""), `FailedMount: secret "key" not found`},
		{"a consumer whose volume is not staged yet", pod("", "ContainerCreating", ""), ""},
		{"a pod in its first seconds", young, ""},
		{"a crash, of which its owner tells", pod(tarnv1.StepCreation, "CrashLoopBackOff", "back-off"), ""},
		{"no node, which may come", unscheduled, ""},
		{"a pod that is being deleted", going, ""},
	} {
		steps := &steppod.Steps{EventsOf: func(context.Context, client.Object) ([]corev1.Event, error) {
			return []corev1.Event{{Reason: failedMount, Message: `secret "key" not found`, LastTimestamp: metav1.NewTime(now)}}, nil
		}}
		if got := neverStarts(t.Context(), steps, c.pod, now); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestAVolumeWrittenByHandIsTriedUnderAThrowAwayName(t *testing.T) {
	file := writeFile(t, "volume.yaml", `kind: PersistentVolume
metadata:
  name: mine
  uid: abc
  labels: {a: b, tarn.dev/deletion-protection: "true"}
  annotations: {a: b, tarn.dev/recycle: Zero, apps.tarn.dev/x: z, pv.kubernetes.io/provisioned-by: right}
spec:
  capacity: {storage: 3Gi}
  accessModes: [ReadWriteMany]
  mountOptions: [noatime]
  storageClassName: fast
  persistentVolumeReclaimPolicy: Delete
  claimRef: {namespace: prod, name: data, uid: def}
  csi: {driver: right, volumeHandle: disk-7, volumeAttributes: {region: eu}}
status: {phase: Released}
`)
	try := &pavTry{volumeFile: file}
	if err := prepared(t, try, provisioner); err != nil {
		t.Fatal(err)
	}
	v, c := try.volume, try.claim
	if v.Name != try.provisionerName || v.UID != "" || len(v.Labels) > 0 || len(v.Annotations) != 1 || v.Annotations["a"] != "b" || v.Status.Phase != "" || v.Spec.CSI.Driver != try.provisionerName ||
		v.Spec.CSI.VolumeHandle != "disk-7" || v.Spec.CSI.VolumeAttributes["region"] != "eu" || v.Spec.MountOptions[0] != "noatime" {
		t.Errorf("the volume is %+v", v)
	}
	if v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || v.Spec.ClaimRef.Namespace != try.namespace || v.Spec.ClaimRef.UID != "" {
		t.Errorf("the volume is %+v", v.Spec)
	}
	if size := c.Spec.Resources.Requests[corev1.ResourceStorage]; c.Spec.VolumeName != v.Name || *c.Spec.StorageClassName != "" || v.Spec.StorageClassName != "" ||
		size.String() != "3Gi" || c.Spec.AccessModes[0] != corev1.ReadWriteMany {
		t.Errorf("the claim is %+v", c.Spec)
	}
	if script := try.writer.Spec.Containers[0].Command[2]; !strings.Contains(script, "rm -f /volume/tarn-pav-test") {
		t.Errorf("what was written stays: %s", script)
	}
	alone := &pavTry{}
	if err := prepared(t, alone, provisioner); err != nil || alone.volume == nil || alone.volume.Spec.CSI.VolumeHandle != alone.provisionerName {
		t.Errorf("of a provisioner with Static alone %+v is tried, %v; want a made-up handle", alone.volume, err)
	}
}

func TestAProvisionerIsTriedByAMethodThatItDoes(t *testing.T) {
	for section, want := range map[string]string{
		"":                                 "",
		`{}`:                               "Files",
		`{"methods": ["Discard"]}`:         "Discard",
		`{"methods": ["Discard", "Zero"]}`: "Zero",
		`{"methods": "{{ params.m }}"}`:    "Files",
	} {
		p := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{}}}
		if section != "" {
			var fields map[string]any
			if err := json.Unmarshal([]byte(section), &fields); err != nil {
				t.Fatal(err)
			}
			p.Object["spec"] = map[string]any{"volumeRecycling": fields}
		}
		if got := (&pavTry{provisioner: p}).recycleMethod(); string(got) != want {
			t.Errorf("%s: tried by %q, want %q", section, got, want)
		}
	}
}

func TestAPhaseIsDatedByItsFirstWordOfEachAttempt(t *testing.T) {
	w, start := &tryWorld{}, time.Unix(1000, 0)
	for i, seen := range []struct {
		phase   tarnv1.VolumePhase
		attempt int32
	}{
		{"", 0}, {tarnv1.VolumeValidating, 1}, {tarnv1.VolumeValidating, 1}, {tarnv1.VolumeCreating, 1}, {tarnv1.VolumeUndoing, 1}, {tarnv1.VolumePending, 1},
		{tarnv1.VolumeValidating, 2}, {tarnv1.VolumeCreating, 2}, {tarnv1.VolumeCreating, 2}, {tarnv1.VolumeCreated, 2}, {tarnv1.VolumeCreated, 2},
	} {
		w.note(&tarnv1.PavVolume{Status: tarnv1.PavVolumeStatus{Phase: seen.phase, Attempts: seen.attempt}}, start.Add(time.Duration(i)*time.Second))
		w.note(&tarnv1.PavStage{}, start)
	}
	for _, c := range []struct {
		phase   tarnv1.VolumePhase
		attempt int32
		want    int
	}{
		{tarnv1.VolumeValidating, 1, 1}, {tarnv1.VolumeCreating, 1, 3}, {tarnv1.VolumeValidating, 2, 6}, {tarnv1.VolumeCreating, 2, 7}, {tarnv1.VolumeCreated, 2, 9},
	} {
		if got := w.since(c.phase, c.attempt); !got.Equal(start.Add(time.Duration(c.want) * time.Second)) {
			t.Errorf("%s of attempt %d: %v, want second %d", c.phase, c.attempt, got, c.want)
		}
	}
	if at := w.since(tarnv1.VolumeCreated, 1); !at.IsZero() {
		t.Errorf("attempt 1 was never Created, but at %v", at)
	}
}

func TestAStepHasTheTimeThatObjectsTell(t *testing.T) {
	out := &bytes.Buffer{}
	try := &pavTry{out: out}
	told := func(context.Context) (string, error) { try.took = 90 * time.Second; return "by its pod", nil }
	own := func(context.Context) (string, error) { return "", errors.New("no") }
	if try.step(t.Context(), "created", told) != nil || try.step(t.Context(), "bound", own) == nil {
		t.Error("steps do not end as they are told")
	}
	if s := try.report.Steps; s[0].Seconds != 90 || s[1].Seconds >= 90 || !strings.Contains(out.String(), "ok     created       90.00 s  by its pod\nFAILED bound") {
		t.Errorf("got %+v:\n%s", s, out)
	}
}

func TestOnlyAFailureOfTheProvisionerAsItStandsEndsATest(t *testing.T) {
	try := &pavTry{generation: 3}
	for generation, want := range map[int64]bool{2: false, 3: true} {
		record := &tarnv1.PavVolume{Status: tarnv1.PavVolumeStatus{LastError: &tarnv1.PavVolumeError{
			Step: tarnv1.StepValidation, Reason: "ClaimRefused", Message: "too large", ProvisionerGeneration: generation,
		}}}
		if err := try.failure(record); (err != nil) != want {
			t.Errorf("generation %d: %v", generation, err)
		}
	}
	if err := try.failure(&tarnv1.PavVolume{}); err != nil {
		t.Error(err)
	}
}
