package steppod

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

func orderOf(step tarnv1.Step) order {
	o := order{step: step, name: "the-name", provisioner: "prov", volume: "pvc-u1", uidLabel: tarnv1.LabelRecord,
		owner: metav1.OwnerReference{Kind: "PavVolume", Name: "pvc-u1", UID: "r1"}}
	if step == tarnv1.StepStaging || step == tarnv1.StepUnstaging {
		o.nodeName, o.folder, o.uidLabel = "n1", "/state/stages/s1", tarnv1.LabelStage
	}
	return o
}

func buildOne(t *testing.T, step tarnv1.Step, change func(*podTemplate)) *corev1.Pod {
	t.Helper()
	template := &podTemplate{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "own", MountPath: "/own"}}}}}}
	if change != nil {
		change(template)
	}
	pod, err := build(orderOf(step), template)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func TestAContainerThatFailsLeavesItsLastWordsUnlessItsAuthorSaysOtherwise(t *testing.T) {
	pod := buildOne(t, tarnv1.StepStaging, func(p *podTemplate) {
		p.Spec.InitContainers = []corev1.Container{{Name: "i"}}
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "own", TerminationMessagePolicy: corev1.TerminationMessageReadFile})
	})
	for _, got := range []corev1.TerminationMessagePolicy{pod.Spec.InitContainers[0].TerminationMessagePolicy, pod.Spec.Containers[0].TerminationMessagePolicy} {
		if got != corev1.TerminationMessageFallbackToLogsOnError {
			t.Errorf("a container that says nothing has policy %q", got)
		}
	}
	if got := pod.Spec.Containers[1].TerminationMessagePolicy; got != corev1.TerminationMessageReadFile {
		t.Errorf("the author's policy has become %q", got)
	}
}

func TestAPodIsNamedLabelledAndOwnedByUsWhateverItsTemplateSays(t *testing.T) {
	pod := buildOne(t, tarnv1.StepCreation, func(p *podTemplate) {
		p.Metadata = metav1.ObjectMeta{Name: "mine", GenerateName: "mine-", Namespace: "tarn-system",
			Labels:          map[string]string{"app": "x", tarnv1.LabelStep: "forged"},
			Annotations:     map[string]string{tarnv1.AnnotationResult: `{"succeeded": true}`, "keep": "1"},
			OwnerReferences: []metav1.OwnerReference{{Name: "forged"}},
			Finalizers:      []string{"a.b/c"}, ResourceVersion: "5", UID: "forged"}
	})
	if pod.Name != "the-name" || pod.GenerateName != "" || pod.Namespace != "tarn-system" {
		t.Errorf("name %q, generateName %q, namespace %q", pod.Name, pod.GenerateName, pod.Namespace)
	}
	if pod.Labels["app"] != "x" || pod.Labels[tarnv1.LabelStep] != "creation" || pod.Labels[tarnv1.LabelRecord] != "r1" {
		t.Errorf("labels = %v", pod.Labels)
	}
	if _, forged := pod.Annotations[tarnv1.AnnotationResult]; forged || pod.Annotations["keep"] != "1" {
		t.Errorf("annotations = %v, want no result and the template's own kept", pod.Annotations)
	}
	if pod.Finalizers != nil || pod.ResourceVersion != "" || pod.UID != "" {
		t.Errorf("finalizers %v, resourceVersion %q, uid %q of the template are kept", pod.Finalizers, pod.ResourceVersion, pod.UID)
	}
	if len(pod.OwnerReferences) != 1 || pod.OwnerReferences[0].UID != "r1" {
		t.Errorf("owners = %v", pod.OwnerReferences)
	}
}

func TestEveryContainerHasPavFirst(t *testing.T) {
	pod := buildOne(t, tarnv1.StepCreation, func(p *podTemplate) {
		p.Spec.InitContainers = []corev1.Container{{Name: "i"}}
		p.Spec.Volumes = []corev1.Volume{{Name: "own"}}
	})
	if v := pod.Spec.Volumes[0]; v.Name != "pav" || v.CSI == nil || v.CSI.Driver != tarnv1.ResultsDriver {
		t.Errorf("first volume = %+v, want pav of %s", v, tarnv1.ResultsDriver)
	}
	for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
		if m := c.VolumeMounts[0]; m.Name != "pav" || m.MountPath != "/pav" || m.MountPropagation != nil {
			t.Errorf("first mount of %s = %+v", c.Name, m)
		}
	}
}

func TestAPodThatRunsToItsEndCanEnd(t *testing.T) {
	pod := buildOne(t, tarnv1.StepCreation, nil)
	if pod.Spec.RestartPolicy != corev1.RestartPolicyNever || ptr.Deref(pod.Spec.ActiveDeadlineSeconds, 0) != 600 {
		t.Errorf("restartPolicy %q, deadline %v, want Never and 600", pod.Spec.RestartPolicy, pod.Spec.ActiveDeadlineSeconds)
	}
	_, err := build(orderOf(tarnv1.StepCreation), &podTemplate{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways}})
	if err == nil || !strings.Contains(err.Error(), "spec.volumeCreation.podTemplate.spec.restartPolicy") {
		t.Errorf("restartPolicy Always: %v, want an error that names the field", err)
	}
}

func TestAStagingPodStaysOnItsNodeWithTheStagesFolder(t *testing.T) {
	pod := buildOne(t, tarnv1.StepStaging, func(p *podTemplate) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "p", SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)}})
	})
	if pod.Spec.NodeName != "n1" || pod.Spec.ActiveDeadlineSeconds != nil || pod.Spec.RestartPolicy != "" {
		t.Errorf("node %q, deadline %v, restartPolicy %q, want n1 and both unset", pod.Spec.NodeName, pod.Spec.ActiveDeadlineSeconds, pod.Spec.RestartPolicy)
	}
	if h := pod.Spec.Volumes[0].HostPath; h == nil || h.Path != "/state/stages/s1/pav" || *h.Type != corev1.HostPathDirectory {
		t.Errorf("/pav = %+v", pod.Spec.Volumes[0])
	}
	if got := pod.Spec.Containers[0].VolumeMounts[0].MountPropagation; got != nil {
		t.Errorf("propagation of an ordinary container = %v, want none", *got)
	}
	if got := pod.Spec.Containers[1].VolumeMounts[0].MountPropagation; got == nil || *got != corev1.MountPropagationBidirectional {
		t.Errorf("propagation of a privileged container = %v, want Bidirectional", got)
	}
}

func TestAStagingPodOutlivesItsConsumersUnlessItsAuthorGaveItAPriority(t *testing.T) {
	named := func(class string) func(*podTemplate) {
		return func(p *podTemplate) { p.Spec.PriorityClassName = class }
	}
	for _, c := range []struct {
		name string
		step tarnv1.Step
		set  func(*podTemplate)
		want string
		// plain says that the pod may be started without the class, if a quota rejects it.
		plain bool
	}{
		{name: "by itself", step: tarnv1.StepStaging, want: criticalClass, plain: true},
		{name: "by its author's class", step: tarnv1.StepStaging, set: named("batch"), want: "batch"},
		{name: "by its author's number", step: tarnv1.StepStaging, set: func(p *podTemplate) { p.Spec.Priority = ptr.To[int32](7) }},
		{name: "not what stages nothing", step: tarnv1.StepCreation},
		{name: "and what undoes it, for which a node under pressure has no room else", step: tarnv1.StepUnstaging, want: criticalClass, plain: true},
		{name: "not what makes it larger", step: tarnv1.StepNodeExpansion},
		{name: "not by a class its author gave another step", step: tarnv1.StepCreation, set: named(criticalClass), want: criticalClass},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := buildOne(t, c.step, c.set)
			if pod.Spec.PriorityClassName != c.want {
				t.Errorf("class %q, want %q", pod.Spec.PriorityClassName, c.want)
			}
			plain := withoutPriority(pod)
			if (plain != nil) != c.plain {
				t.Fatalf("may be started without the class: %t, want %t", plain != nil, c.plain)
			}
			if plain != nil && (plain.Spec.PriorityClassName != "" || pod.Spec.PriorityClassName != c.want) {
				t.Errorf("without the class it has %q, and the pod itself %q", plain.Spec.PriorityClassName, pod.Spec.PriorityClassName)
			}
		})
	}
}

func TestAPodIsConfinedToItsVolumesNodeBesideWhatItsTemplateRequires(t *testing.T) {
	own := func(key string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpExists}}}
	}
	p := &pavv1.PavProvisioner{Spec: pavv1.PavProvisionerSpec{Topology: pavv1.TopologyNode}}
	record := &tarnv1.PavVolume{Status: tarnv1.PavVolumeStatus{NodeName: "n1"}}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{own("a"), own("b")}},
	}}}}
	requireNodes(pod, nodesOf(tarnv1.StepCreation, p, record))
	terms := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 2 {
		t.Fatalf("terms = %v, want the two of the template", terms)
	}
	for i, key := range []string{"a", "b"} {
		if terms[i].MatchExpressions[0].Key != key || terms[i].MatchFields[0].Values[0] != "n1" {
			t.Errorf("term %d = %+v, want %s and node n1", i, terms[i], key)
		}
	}
}

func TestAPodForOneNodeToleratesItsTaints(t *testing.T) {
	class := []byte(`{"provisioner":"p","allowedTopologies":[{"matchLabelExpressions":[{"key":"kubernetes.io/hostname","values":["n1","n2"]}]}]}`)
	author := corev1.Toleration{Key: "example.com/db", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	taints := []corev1.Taint{
		{Key: "example.com/gpu", Value: "a", Effect: corev1.TaintEffectNoSchedule},
		{Key: "example.com/gpu", Effect: corev1.TaintEffectNoExecute},
		{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule},
	}
	p := &pavv1.PavProvisioner{Spec: pavv1.PavProvisionerSpec{Topology: pavv1.TopologyNode}}
	for _, row := range []struct {
		name string
		node string
		want bool
	}{
		{"a volume of one node", "n1", true},
		{"a volume without a node yet", "", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			record := &tarnv1.PavVolume{Status: tarnv1.PavVolumeStatus{NodeName: row.node}}
			record.Spec.ClassSnapshot.Raw = class
			pod := &corev1.Pod{Spec: corev1.PodSpec{Tolerations: []corev1.Toleration{author}}}
			requireNodes(pod, nodesOf(tarnv1.StepCreation, p, record))
			if pod.Spec.Tolerations[0] != author {
				t.Errorf("the first toleration is %v, want the author's", pod.Spec.Tolerations[0])
			}
			for _, taint := range taints {
				got := slices.ContainsFunc(pod.Spec.Tolerations, func(one corev1.Toleration) bool { return one.ToleratesTaint(logr.Discard(), &taint, true) })
				if got != row.want {
					t.Errorf("the pod tolerates %s: %v, want %v", taint.ToString(), got, row.want)
				}
			}
			// A pod on a dead node must be evicted at last, or its volume waits for it for ever.
			for _, one := range pod.Spec.Tolerations[1:] {
				if one.Effect == corev1.TaintEffectNoExecute && (one.TolerationSeconds == nil || *one.TolerationSeconds != 300) {
					t.Errorf("it stays under a taint that evicts for %v, want 300 s", one.TolerationSeconds)
				}
			}
		})
	}
}

func TestAVolumeForEveryNodeConfinesNoPod(t *testing.T) {
	pod := &corev1.Pod{}
	requireNodes(pod, nodesOf(tarnv1.StepCreation, &pavv1.PavProvisioner{}, &tarnv1.PavVolume{}))
	if pod.Spec.Affinity != nil {
		t.Errorf("affinity = %+v, want none", pod.Spec.Affinity)
	}
}

func TestAPodWithoutANamespaceSaysWhatToDo(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	ending := apierrors.NewForbidden(pods, "the-name", errors.New("because it is being terminated"))
	ending.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for want, err := range map[string]error{
		`namespace "tarn-system", in which the staging pod should run, is being deleted; create it again once it is gone`:                                   ending,
		`there is no namespace "tarn-system", in which the staging pod should run; create it, or correct spec.volumeStaging.podTemplate.metadata.namespace`: apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "tarn-system"),
	} {
		refusing := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
			Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return err },
		})
		pod := buildOne(t, tarnv1.StepStaging, func(p *podTemplate) { p.Metadata.Namespace = "tarn-system" })
		failed := AsStepError((&Steps{Client: refusing}).Start(t.Context(), pod))
		if failed == nil || failed.Reason != ReasonNamespaceGone || failed.Message != want {
			t.Errorf("got %+v, want %s", failed, want)
		}
	}
}
