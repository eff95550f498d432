package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// perPod is how many of the volumes one pod uses.
const perPod = 20

// node has volumes staged, reports the memory of the node agent, and removes the volumes.
func (b *bench) node(ctx context.Context, pid, stages int, profiles string) error {
	if pid == 0 {
		return errors.New("give --pid, the process id of the node agent: tarn-cluster status shows it")
	}
	before, err := memoryOf(pid)
	if err != nil {
		return err
	}
	watching, enough := context.WithCancel(ctx)
	most := watchMost(watching, pid)
	began := time.Now()
	err = b.stageAll(ctx, stages)
	took := time.Since(began)
	if err == nil {
		select {
		case <-time.After(afterwards):
		case <-ctx.Done():
		}
	}
	now, memoryErr := memoryOf(pid)
	profileErr := b.keepProfile(ctx, profiles)
	endErr := b.endAll(context.WithoutCancel(ctx), stages)
	enough()
	seen := <-most
	if err := errors.Join(err, memoryErr, profileErr, endErr); err != nil {
		return err
	}
	b.report.add(result{What: "node agent, nothing staged", Asked: nodeLimit << 20, Now: before, Most: before})
	b.report.add(result{What: fmt.Sprintf("node agent, %d stages", stages), Asked: nodeLimit << 20, Now: now, Most: seen, Seconds: took.Seconds()})
	fmt.Printf("  %.0f s until all were staged\n", took.Seconds())
	return nil
}

// stageAll makes claims and pods that use them, and waits until the pods are Ready.
func (b *bench) stageAll(ctx context.Context, stages int) error {
	if _, _, err := b.makeProvisioner(ctx); err != nil {
		return err
	}
	if err := await(ctx, b.client, &pavv1.PavProvisioner{}, &pavv1.PavProvisionerList{}, name, "", func(p *pavv1.PavProvisioner) bool { return p.Status.Nodes > 0 }); err != nil {
		return err
	}
	for i := range stages {
		if err := b.client.Create(ctx, newClaim(claimName(i))); err != nil {
			return err
		}
	}
	var pods []*corev1.Pod
	for first := 0; first < stages; first += perPod {
		pods = append(pods, user(first, min(first+perPod, stages)))
		if err := b.client.Create(ctx, pods[len(pods)-1]); err != nil {
			return err
		}
	}
	for _, p := range pods {
		if err := await(ctx, b.client, &corev1.Pod{}, &corev1.PodList{}, p.Name, name, isReady); err != nil {
			return err
		}
	}
	return nil
}

func claimName(i int) string { return fmt.Sprintf("staged-%03d", i) }

func isReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// user is a pod that uses the claims from first to end.
func user(first, end int) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: fmt.Sprintf("user-%03d", first)},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](0),
			Containers:                    []corev1.Container{{Name: "c", Image: "busybox:1.36", Command: []string{"sleep", "100000"}}},
		},
	}
	for i := first; i < end; i++ {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: claimName(i), VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claimName(i)},
		}})
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: claimName(i), MountPath: "/" + claimName(i)})
	}
	return p
}

// endAll deletes the pods, then the claims. It waits until stages and records are gone.
func (b *bench) endAll(ctx context.Context, stages int) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := errors.Join(
		b.client.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(name), client.GracePeriodSeconds(0)),
		b.client.DeleteAllOf(ctx, &corev1.PersistentVolumeClaim{}, client.InNamespace(name)))
	if err != nil {
		return err
	}
	if err := b.empty(ctx, &tarnv1.PavStage{}, &tarnv1.PavStageList{}); err != nil {
		return err
	}
	if err := b.empty(ctx, &tarnv1.PavVolume{}, &tarnv1.PavVolumeList{}); err != nil {
		return err
	}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, &pavv1.PavProvisioner{ObjectMeta: metav1.ObjectMeta{Name: name}},
	} {
		if err := client.IgnoreNotFound(b.client.Delete(ctx, o)); err != nil {
			return err
		}
	}
	return nil
}
