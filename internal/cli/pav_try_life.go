package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// trySteps are the steps of a test, in order.
type trySteps []struct {
	name string
	do   func(context.Context) (string, error)
}

// life takes a volume through all steps, from its claim to its deletion.
func (t *pavTry) life(ctx context.Context) error {
	steps := trySteps{
		{"accepted", t.accepted},
		{"registered", t.registered},
		{"failed", t.fails},
		{"undone", t.undone},
		{"validated", t.validated},
		{"created", t.created},
		{"bound", t.bound},
		{"staged", t.staged},
		{"written", t.written},
		{"ready", t.ready},
		{"expanded", t.expanded},
		{"read", t.read},
		{"unstaged", t.unstaged},
		{"recycled", t.recycled},
		{"deleted", t.deleted},
		{"nothing left", t.nothingLeft},
	}
	if t.volume != nil {
		steps = t.lifeByHand()
	}
	for _, s := range steps {
		if err := t.step(ctx, s.name, s.do); err != nil {
			return err
		}
	}
	return nil
}

func (t *pavTry) accepted(ctx context.Context) (string, error) {
	if err := t.makeNamespace(ctx); err != nil {
		return "", err
	}
	if err := t.makeCompanions(ctx); err != nil {
		return "", err
	}
	strict := client.WithFieldValidation(t.world.live, "Strict")
	if err := strict.Create(ctx, t.provisioner); err != nil {
		return "", fmt.Errorf("creating the PavProvisioner: %w", err)
	}
	return t.condition(ctx, pavv1.ConditionAccepted, true)
}

func (t *pavTry) registered(ctx context.Context) (string, error) {
	return t.condition(ctx, pavv1.ConditionReady, false)
}

// condition waits until a condition of the provisioner is True. final says that False will not
// change, so it fails at once.
func (t *pavTry) condition(ctx context.Context, name string, final bool) (string, error) {
	p := &pavv1.PavProvisioner{}
	err := t.world.await(ctx, "condition "+name, func() tryLook {
		if err := t.world.cached.Get(ctx, client.ObjectKey{Name: t.provisionerName}, p); err != nil {
			return still(err.Error())
		}
		c := meta.FindStatusCondition(p.Status.Conditions, name)
		switch {
		case c == nil, name == pavv1.ConditionAccepted && c.ObservedGeneration < t.generation:
			return still("no controller has validated the provisioner; check that Tarn's controller runs")
		case c.Status == metav1.ConditionTrue:
			return done()
		case final && c.Status == metav1.ConditionFalse:
			return fatal(fmt.Errorf("%s: %s", c.Reason, c.Message))
		}
		return still(c.Message)
	})
	if err != nil || name != pavv1.ConditionReady {
		return "", err
	}
	return "on " + count(int(p.Status.Nodes), "node"), nil
}

func (t *pavTry) bound(ctx context.Context) (string, error) {
	err := t.world.await(ctx, "the claim to be Bound", func() tryLook {
		if err := t.world.cached.Get(ctx, client.ObjectKeyFromObject(t.claim), t.claim); err != nil {
			return still(err.Error())
		}
		if t.claim.Status.Phase == corev1.ClaimBound {
			return done()
		}
		record, err := t.record(ctx)
		if err == nil && record != nil && t.failure(record) != nil {
			return fatal(t.failure(record))
		}
		return still("it is " + string(t.claim.Status.Phase))
	})
	if err != nil {
		return "", err
	}
	size := t.claim.Status.Capacity[corev1.ResourceStorage]
	return fmt.Sprintf("volume %s of %s", t.claim.Spec.VolumeName, size.String()), nil
}

// record returns the PavVolume of the claim, nil if there is none.
func (t *pavTry) record(ctx context.Context) (*tarnv1.PavVolume, error) {
	list := &tarnv1.PavVolumeList{}
	if err := t.world.cached.List(ctx, list); err != nil || len(list.Items) == 0 {
		return nil, err
	}
	return &list.Items[0], nil
}

func (t *pavTry) staged(ctx context.Context) (string, error) {
	if !t.late() {
		if err := t.world.live.Create(ctx, t.writer); err != nil {
			return "", fmt.Errorf("creating pod %s: %w", t.writer.Name, err)
		}
	}
	var node string
	err := t.world.await(ctx, "the volume to be staged", func() tryLook {
		list := &tarnv1.PavStageList{}
		if err := t.world.cached.List(ctx, list); err != nil {
			return still(err.Error())
		}
		if len(list.Items) == 0 {
			return still("no node has started to stage it: " + t.podState(ctx, t.writer))
		}
		g := &list.Items[0]
		node = g.Spec.NodeName
		switch g.Status.Node.Phase {
		case tarnv1.StageStaged:
			return done()
		case tarnv1.StageFailed:
			return fatal(errors.New(g.Status.Node.Message))
		}
		// A failed pod is not yet conclusive: the node agent still adds the text of /pav/error.
		return still("it is not yet: " + stageState(g))
	})
	return "on node " + node, err
}

// stageState words the state of a stage.
func stageState(g *tarnv1.PavStage) string {
	node, pod := g.Status.Node, g.Status.Pod
	var parts []string
	for _, side := range []struct{ name, phase, message string }{
		{"node", string(node.Phase), node.Message}, {"pod", string(pod.Phase), pod.Message},
	} {
		if side.phase != "" {
			parts = append(parts, strings.TrimRight(side.name+" "+side.phase+": "+side.message, ": "))
		}
	}
	return strings.Join(parts, "; ")
}

// podState words the state of a pod.
func (t *pavTry) podState(ctx context.Context, pod *corev1.Pod) string {
	if err := t.world.cached.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
		return err.Error()
	}
	state := fmt.Sprintf("pod %s is %s", pod.Name, pod.Status.Phase)
	for _, c := range pod.Status.Conditions {
		if c.Status == corev1.ConditionFalse && c.Message != "" {
			return state + ": " + c.Message
		}
	}
	return state
}

func (t *pavTry) written(ctx context.Context) (string, error) {
	detail := ""
	if t.readOnly {
		detail = "read, not written: the volume is read-only"
	}
	return detail, t.world.await(ctx, "the first pod to use the volume", func() tryLook {
		state := t.podState(ctx, t.writer)
		for _, c := range t.writer.Status.InitContainerStatuses {
			if ended := c.State.Terminated; ended != nil && ended.ExitCode == 0 {
				return done()
			} else if ended != nil {
				return fatal(fmt.Errorf("the first pod could not use the volume, exit status %d: %s", ended.ExitCode, t.world.printed(ctx, t.writer)))
			}
		}
		return still(state)
	})
}

func (t *pavTry) ready(ctx context.Context) (string, error) {
	return "", t.world.await(ctx, "the first pod to be Ready", func() tryLook {
		state := t.podState(ctx, t.writer)
		for _, c := range t.writer.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				return done()
			}
		}
		return still(state)
	})
}

func (t *pavTry) read(ctx context.Context) (string, error) {
	t.reader.Spec.NodeName = t.writer.Spec.NodeName // the volume may exist on one node only
	if err := t.world.live.Create(ctx, t.reader); err != nil {
		return "", fmt.Errorf("creating pod %s: %w", t.reader.Name, err)
	}
	return "", t.world.await(ctx, "the second pod to read", func() tryLook {
		state := t.podState(ctx, t.reader)
		switch t.reader.Status.Phase {
		case corev1.PodSucceeded:
			return done()
		case corev1.PodFailed:
			return fatal(fmt.Errorf("the second pod does not read what the first wrote: %s", t.world.printed(ctx, t.reader)))
		}
		return still(state)
	})
}

func (t *pavTry) unstaged(ctx context.Context) (string, error) {
	for _, pod := range []*corev1.Pod{t.reader, t.writer} {
		if err := t.world.remove(ctx, pod); err != nil {
			return "", err
		}
	}
	for _, pod := range []*corev1.Pod{t.reader, t.writer} {
		if err := t.world.awaitGone(ctx, "pod "+pod.Name, pod); err != nil {
			return "", err
		}
	}
	return "", t.world.await(ctx, "the volume to be unstaged", func() tryLook {
		list := &tarnv1.PavStageList{}
		if err := t.world.cached.List(ctx, list); err != nil || len(list.Items) == 0 {
			return tryLook{done: err == nil, state: fmt.Sprint(err)}
		}
		return still("it is not yet: " + stageState(&list.Items[0]))
	})
}

func (t *pavTry) deleted(ctx context.Context) (string, error) {
	if err := t.world.remove(ctx, t.claim); err != nil {
		return "", err
	}
	if err := t.world.awaitGone(ctx, "the claim", t.claim); err != nil {
		return "", err
	}
	err := t.world.await(ctx, "the volume to be deleted", func() tryLook {
		record, err := t.record(ctx)
		switch {
		case err != nil:
			return still(err.Error())
		case record == nil:
			return done()
		case record.Status.LastError != nil && record.Status.LastError.Step == tarnv1.StepDeletion:
			return fatal(fmt.Errorf("%s: %s", record.Status.LastError.Reason, record.Status.LastError.Message))
		}
		return still(fmt.Sprintf("its record is %s", record.Status.Phase))
	})
	if err != nil {
		return "", err
	}
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: t.claim.Spec.VolumeName}}
	return "", t.world.awaitGone(ctx, "the PersistentVolume", volume)
}

// nothingLeft deletes the provisioner and fails if any of its objects remain.
func (t *pavTry) nothingLeft(ctx context.Context) (string, error) {
	if err := t.discard(ctx); err != nil {
		return "", err
	}
	if left := t.left(ctx); len(left) > 0 {
		return "", fmt.Errorf("there still is %s", strings.Join(left, ", "))
	}
	return "", nil
}

// tryPods returns two pods. One writes a token into a volume and keeps running; the other reads it.
func tryPods(claim *corev1.PersistentVolumeClaim, image, token string) (writer, reader *corev1.Pod) {
	write := `echo ` + token + ` > /volume/tarn-pav-test && sync && test "$(cat /volume/tarn-pav-test)" = ` + token
	read := `found="$(cat /volume/tarn-pav-test)"; echo "found: $found"; test "$found" = ` + token
	if ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem) == corev1.PersistentVolumeBlock {
		size := fmt.Sprint(len(token))
		from := `dd if=/dev/volume bs=1 count=` + size + ` 2>/dev/null`
		write = `printf %s ` + token + ` | dd of=/dev/volume bs=512 conv=notrunc,sync && sync && test "$(` + from + `)" = ` + token
		read = `found="$(` + from + `)"; echo "found: $found"; test "$found" = ` + token
	}
	writer, reader = tryPod("writer", claim, image), tryPod("reader", claim, image)
	first := writer.Spec.Containers[0]
	first.Name, first.Command = "write", []string{"sh", "-c", write}
	writer.Spec.InitContainers = []corev1.Container{first}
	writer.Spec.Containers[0].Command = []string{"sh", "-c", "trap exit TERM; sleep 86400 & wait"}
	reader.Spec.Containers[0].Command = []string{"sh", "-c", read}
	return writer, reader
}

// onlyReading makes both pods read the volume and write nothing.
func onlyReading(writer, reader *corev1.Pod) {
	first := &writer.Spec.InitContainers[0]
	read := `ls -A /volume && find /volume -type f | head -n 1 | while read -r f; do head -c 1 "$f" > /dev/null || exit 1; done`
	if len(first.VolumeDevices) > 0 {
		read = `dd if=/dev/volume of=/dev/null bs=512 count=1`
	}
	first.Command[2], reader.Spec.Containers[0].Command[2] = read, read
	for _, pod := range []*corev1.Pod{writer, reader} {
		pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	}
}

func tryPod(name string, claim *corev1.PersistentVolumeClaim, image string) *corev1.Pod {
	c := corev1.Container{Name: "main", Image: image}
	if ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem) == corev1.PersistentVolumeBlock {
		c.VolumeDevices = []corev1.VolumeDevice{{Name: "volume", DevicePath: "/dev/volume"}}
	} else {
		c.VolumeMounts = []corev1.VolumeMount{{Name: "volume", MountPath: "/volume"}}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: claim.Namespace},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: ptr.To[int64](1),
			AutomountServiceAccountToken: ptr.To(false),
			Containers:                   []corev1.Container{c},
			Volumes: []corev1.Volume{{Name: "volume", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
			}}},
		},
	}
}

// recycled has the volume released and cleaned by the provisioner's own pod. Then it gives the
// volume up for deletion.
func (t *pavTry) recycled(ctx context.Context) (string, error) {
	method := t.recycleMethod()
	if method == "" {
		return "skipped: there is no spec.volumeRecycling", nil
	}
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: t.claim.Spec.VolumeName}}
	if err := t.patchVolume(ctx, volume, `{"metadata":{"annotations":{"`+tarnv1.AnnotationRecycle+`":"`+string(method)+`"}},"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`); err != nil {
		return "", err
	}
	if err := t.world.remove(ctx, t.claim); err != nil {
		return "", err
	}
	err := t.world.await(ctx, "the volume to be recycled", func() tryLook {
		record, err := t.record(ctx)
		if err != nil || record == nil {
			return still(fmt.Sprintf("its record does not exist (%v)", err))
		}
		if c := meta.FindStatusCondition(record.Status.Conditions, tarnv1.ConditionRecycled); c != nil && c.Status == metav1.ConditionFalse {
			return fatal(fmt.Errorf("%s: %s", c.Reason, c.Message))
		}
		if err := t.world.cached.Get(ctx, client.ObjectKeyFromObject(volume), volume); err != nil {
			return still(err.Error())
		}
		if volume.Status.Phase == corev1.VolumeAvailable && volume.Spec.ClaimRef == nil {
			return done()
		}
		return still(fmt.Sprintf("it is %s; check that Tarn's controller runs with --scrub-image", volume.Status.Phase))
	})
	if err != nil {
		return "", err
	}
	var cert tarnv1.RecycleCertificate
	if err := json.Unmarshal([]byte(volume.Annotations[tarnv1.AnnotationRecycled]), &cert); err != nil || cert.Provisioner != t.provisionerName {
		return "", fmt.Errorf("the certificate is %q, not the provisioner's", volume.Annotations[tarnv1.AnnotationRecycled])
	}
	if err := t.patchVolume(ctx, volume, `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`); err != nil {
		return "", err
	}
	return "by " + string(cert.Method), t.world.remove(ctx, volume)
}

func (t *pavTry) patchVolume(ctx context.Context, volume *corev1.PersistentVolume, patch string) error {
	if err := t.world.live.Patch(ctx, volume, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		return fmt.Errorf("writing PersistentVolume %s: %w", volume.Name, err)
	}
	return nil
}

// recycleMethod returns a method that the provisioner implements itself, by its unevaluated
// section. It is empty where there is none.
func (t *pavTry) recycleMethod() tarnv1.RecycleMethod {
	section, found, _ := unstructured.NestedFieldNoCopy(t.provisioner.Object, "spec", "volumeRecycling")
	if !found {
		return ""
	}
	fields, _ := section.(map[string]any)
	methods, _ := fields["methods"].([]any)
	for _, method := range []tarnv1.RecycleMethod{tarnv1.RecycleFiles, tarnv1.RecycleZero, tarnv1.RecycleDiscard} {
		for _, listed := range methods {
			if listed == string(method) {
				return method
			}
		}
	}
	return tarnv1.RecycleFiles
}
