package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// storyTime is how long the test may collect what the cluster says about a failure.
const storyTime = 15 * time.Second

// explain prints what the cluster says about a failure, before the objects are removed.
func (t *pavTry) explain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, storyTime)
	defer cancel()
	tell := func(format string, args ...any) {
		line := strings.TrimSpace(fmt.Sprintf(format, args...))
		t.report.Story = append(t.report.Story, line)
		fmt.Fprintln(t.out, "  "+strings.ReplaceAll(line, "\n", "\n    "))
	}
	p := &pavv1.PavProvisioner{}
	if t.world.live.Get(ctx, client.ObjectKey{Name: t.provisionerName}, p) == nil {
		for _, c := range p.Status.Conditions {
			tell("PavProvisioner %s is %s=%s: %s: %s", p.Name, c.Type, c.Status, c.Reason, c.Message)
		}
	}
	ours := client.MatchingLabels{tarnv1.LabelProvisioner: t.provisionerName}
	records, stages, pods := &tarnv1.PavVolumeList{}, &tarnv1.PavStageList{}, &corev1.PodList{}
	_ = t.world.live.List(ctx, records, ours)
	for i := range records.Items {
		s := &records.Items[i].Status
		tell("PavVolume %s is %s, %s", records.Items[i].Name, s.Phase, count(int(s.Attempts), "attempt"))
		if e := s.LastError; e != nil {
			tell("  last error: %s: %s: %s", e.Step, e.Reason, e.Message)
		}
	}
	_ = t.world.live.List(ctx, stages, ours)
	for i := range stages.Items {
		g := &stages.Items[i]
		tell("PavStage of volume %s on node %s: %s", g.Spec.VolumeName, g.Spec.NodeName, stageState(g))
	}
	_ = t.world.live.List(ctx, pods, ours)
	for i := range pods.Items {
		pod := &pods.Items[i]
		tell("pod %s/%s, %s: %s %s", pod.Namespace, pod.Name, pod.Labels[tarnv1.LabelStep], pod.Status.Phase, pod.Status.Message)
		if text := t.world.printed(ctx, pod); text != "" {
			tell("  its log:\n%s", text)
		}
		t.tellEvents(ctx, pod.Namespace, pod.Name, tell)
	}
	t.tellEvents(ctx, t.namespace, "", tell)
}

// tellEvents passes on the Warnings about an object, or about all objects of a namespace.
func (t *pavTry) tellEvents(ctx context.Context, namespace, name string, tell func(string, ...any)) {
	list := &corev1.EventList{}
	if t.world.live.List(ctx, list, client.InNamespace(namespace)) != nil {
		return
	}
	slices.SortStableFunc(list.Items, func(a, b corev1.Event) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	for _, e := range list.Items {
		if e.Type == corev1.EventTypeWarning && (name == "" || e.InvolvedObject.Name == name) {
			tell("Event about %s %s: %s: %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
		}
	}
}

// end removes everything that was created, or prints what was kept.
func (t *pavTry) end(ctx context.Context) {
	if t.foreign {
		return
	}
	t.world.ending = true
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	if t.keep {
		if left := t.left(ctx); len(left) > 0 {
			beside := "storageclass"
			if t.volume != nil {
				beside = "persistentvolume"
			}
			fmt.Fprintf(t.out, "kept %s; remove it with:\n  kubectl delete namespace %s && kubectl delete %s,pavprovisioner %s\n",
				strings.Join(left, ", "), t.namespace, beside, t.provisionerName)
			for _, file := range t.withFiles {
				fmt.Fprintf(t.out, "  kubectl delete --ignore-not-found -f %s\n", file)
			}
		}
		return
	}
	err := t.step(ctx, "cleaned up", func(ctx context.Context) (string, error) {
		if err := t.discard(ctx); err != nil {
			return "", err
		}
		if err := t.discardCompanions(ctx); err != nil {
			return "", err
		}
		return "", t.discardNamespace(ctx)
	})
	if err == nil {
		return
	}
	t.report.Passed = false
	// The deadline of the cleanup may have passed; the list of what is left has its own.
	ctx, cancelLook := context.WithTimeout(context.WithoutCancel(ctx), storyTime)
	defer cancelLook()
	t.report.Left = t.left(ctx)
	for _, what := range t.report.Left {
		fmt.Fprintf(t.out, "left: %s\n", what)
	}
	t.explain(ctx)
}

// discard removes pods, claim, class and provisioner. The order matters: each must be gone before
// the next can be removed. It may be repeated.
func (t *pavTry) discard(ctx context.Context) error {
	// Objects of --with stay for now, because the provisioner's pods may need them to the end.
	for _, o := range []client.Object{t.writer, t.reader, t.claim} {
		if err := t.world.remove(ctx, o); err != nil {
			return err
		}
	}
	err := t.world.await(ctx, "pods, claims, stages and volumes to be gone", func() tryLook {
		left := t.leftOf(ctx, t.world.cached, &corev1.PodList{}, &corev1.PersistentVolumeClaimList{}, &tarnv1.PavStageList{}, &tarnv1.PavVolumeList{})
		return tryLook{done: len(left) == 0, state: strings.Join(left, ", ")}
	})
	if err != nil {
		return err
	}
	if err := t.discardVolume(ctx); err != nil {
		return err
	}
	provisioner := &pavv1.PavProvisioner{ObjectMeta: metav1.ObjectMeta{Name: t.provisionerName}}
	for _, o := range []client.Object{&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: t.class.Name}}, provisioner} {
		if err := t.world.remove(ctx, o); err != nil {
			return err
		}
	}
	return t.world.awaitGone(ctx, "the PavProvisioner", provisioner)
}

func (t *pavTry) discardNamespace(ctx context.Context) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: t.namespace}}
	if err := t.world.remove(ctx, namespace); err != nil {
		return err
	}
	return t.world.awaitGone(ctx, "the namespace", namespace)
}

// left names the created objects that the API server still has, without the namespace itself.
func (t *pavTry) left(ctx context.Context) []string {
	return t.leftOf(ctx, t.world.live, &corev1.PodList{}, &corev1.PersistentVolumeClaimList{}, &tarnv1.PavStageList{}, &tarnv1.PavVolumeList{},
		&corev1.PersistentVolumeList{}, &storagev1.CSIDriverList{}, &pavv1.PavProvisionerList{}, &storagev1.StorageClassList{})
}

func (t *pavTry) leftOf(ctx context.Context, from client.Reader, lists ...client.ObjectList) []string {
	var left []string
	for _, list := range lists {
		if err := from.List(ctx, list); err != nil {
			left = append(left, err.Error())
			continue
		}
		for _, o := range objectsOf(list) {
			if t.isOurs(o) {
				kind := fmt.Sprintf("%T", o)
				left = append(left, kind[strings.LastIndexByte(kind, '.')+1:]+" "+o.GetName())
			}
		}
	}
	return left
}

// isOurs says whether an object was created by or for this run.
func (t *pavTry) isOurs(o client.Object) bool {
	switch o := o.(type) {
	case *corev1.PersistentVolume:
		return o.Spec.CSI != nil && o.Spec.CSI.Driver == t.provisionerName
	case *corev1.Pod, *corev1.PersistentVolumeClaim:
		own := o.GetName() == t.writer.Name || o.GetName() == t.reader.Name || o.GetName() == t.claim.Name
		return own && o.GetNamespace() == t.namespace || o.GetLabels()[tarnv1.LabelProvisioner] == t.provisionerName
	}
	return o.GetName() == t.provisionerName || o.GetLabels()[tarnv1.LabelProvisioner] == t.provisionerName
}
