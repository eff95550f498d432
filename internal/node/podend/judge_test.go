package podend

import (
	"context"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

var begun = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func exited(name string, attempt uint32, code int32) Run {
	return Run{Container: name, Attempt: attempt, Exited: true, ExitCode: code, Started: begun, Finished: begun.Add(time.Second)}
}

func running(name string, attempt uint32) Run {
	return Run{Container: name, Attempt: attempt, Started: begun}
}

func TestAPodHasEndedOnlyWhenTheKubeletCannotSeeItOtherwise(t *testing.T) {
	never := Shape{RestartPolicy: corev1.RestartPolicyNever, Containers: []string{"a", "b"}, InitContainers: []string{"init"}}
	onFailure := Shape{RestartPolicy: corev1.RestartPolicyOnFailure, Containers: []string{"a"}}
	always := Shape{RestartPolicy: corev1.RestartPolicyAlways, Containers: []string{"a"}}
	limited := Shape{RestartPolicy: corev1.RestartPolicyNever, Containers: []string{"a"}, DeadlineSeconds: 60}
	unusual := Shape{RestartPolicy: corev1.RestartPolicyNever, Containers: []string{"a"}, Unusual: true}
	late := exited("a", 0, 0)
	late.Finished = begun.Add(55 * time.Second)
	good := Ending{Known: true, Succeeded: true}
	for name, test := range map[string]struct {
		shape Shape
		runs  []Run
		want  Ending
	}{
		"nothing ran yet":                          {never, nil, Ending{}},
		"only the init container has ended":        {never, []Run{exited("init", 0, 0)}, Ending{}},
		"the init container has failed":            {never, []Run{exited("init", 0, 4)}, Ending{Known: true, ExitCodes: map[string]int32{"init": 4}}},
		"one of two still runs":                    {never, []Run{exited("init", 0, 0), exited("a", 0, 0), running("b", 0)}, Ending{}},
		"one of two is not there yet":              {never, []Run{exited("init", 0, 0), exited("a", 0, 1)}, Ending{}},
		"both have ended well":                     {never, []Run{exited("init", 0, 0), exited("a", 0, 0), exited("b", 0, 0)}, good},
		"both have ended, one badly":               {never, []Run{exited("a", 0, 0), exited("b", 0, 3)}, Ending{Known: true, ExitCodes: map[string]int32{"b": 3}}},
		"it will be restarted":                     {onFailure, []Run{exited("a", 0, 1)}, Ending{}},
		"it has succeeded at the second try":       {onFailure, []Run{exited("a", 1, 0), exited("a", 0, 1)}, good},
		"it runs again":                            {onFailure, []Run{running("a", 1), exited("a", 0, 0)}, Ending{}},
		"it is always restarted":                   {always, []Run{exited("a", 0, 0)}, Ending{}},
		"its deadline was near":                    {limited, []Run{late}, Ending{}},
		"its deadline was far":                     {limited, []Run{exited("a", 0, 0)}, good},
		"it has restart rules of its own":          {unusual, []Run{exited("a", 0, 0)}, Ending{}},
		"the runtime names nothing the spec names": {never, []Run{exited("x", 0, 0)}, Ending{}},
	} {
		t.Run(name, func(t *testing.T) {
			asked := false
			got := Judge(t.Context(), test.shape, Look{Runs: test.runs, Ending: func(context.Context) string {
				asked = true
				return ""
			}})
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("judged %+v, want %+v", got, test.want)
			}
			if asked != test.want.Succeeded {
				t.Errorf("the node is asked: %t", asked)
			}
		})
	}
}

// Many containers exit with 0 when asked to end.
func TestASuccessIsNotBelievedWhileTheKubeletMayBeEndingPods(t *testing.T) {
	never := Shape{RestartPolicy: corev1.RestartPolicyNever, Containers: []string{"a"}}
	onFailure := Shape{RestartPolicy: corev1.RestartPolicyOnFailure, Containers: []string{"a"}}
	pressure := func(context.Context) string { return "DiskPressure of node n" }
	for _, shape := range []Shape{never, onFailure} {
		if got := Judge(t.Context(), shape, Look{Runs: []Run{exited("a", 0, 0)}, Ending: pressure}); got.Known {
			t.Errorf("%s: judged %+v", shape.RestartPolicy, got)
		}
	}
	if got := Judge(t.Context(), never, Look{Runs: []Run{exited("a", 0, 1)}, Ending: pressure}); !got.Known || got.Succeeded {
		t.Errorf("what has failed is judged %+v", got)
	}
}

func TestRunsKnownByTheirIDHaveTheNamesThePodsStatusTells(t *testing.T) {
	start := metav1.NewTime(begun)
	pod := &corev1.Pod{Status: corev1.PodStatus{StartTime: &start, ContainerStatuses: []corev1.ContainerStatus{
		{Name: "a", ContainerID: "containerd://0a", RestartCount: 2}, {Name: "b", ContainerID: "cri-o://0b"}, {Name: "starting"},
	}}}
	ended := Run{ID: "0a", Exited: true, ExitCode: 137, Finished: begun.Add(time.Minute)}
	a := ended
	a.Container, a.Attempt, a.Started = "a", 2, begun
	other := exited("b", 1, 3) // the runtime named it
	for name, c := range map[string]struct{ run, want Run }{
		"of a container":                   {ended, a},
		"of what is no container any more": {Run{ID: "0c", Exited: true}, Run{}},
		"without an id":                    {Run{Exited: true}, Run{}},
		"with a name":                      {other, other},
	} {
		t.Run(name, func(t *testing.T) {
			var want []Run
			if c.want != (Run{}) {
				want = []Run{c.want}
			}
			if got := (Look{Runs: []Run{c.run}}).Named(pod).Runs; !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
	for _, spec := range []corev1.PodSpec{{RuntimeClassName: ptr.To("sandboxed")}, {HostPID: true}, {ShareProcessNamespace: ptr.To(true)}} {
		pod.Spec = spec
		if got := (Look{Runs: []Run{ended, other}}).Named(pod).Runs; !reflect.DeepEqual(got, []Run{other}) {
			t.Errorf("with %+v: got %+v", spec, got)
		}
	}
}

func TestANodeShowsThatItsKubeletMayBeEndingPods(t *testing.T) {
	is := func(kind corev1.NodeConditionType, status corev1.ConditionStatus) corev1.NodeCondition {
		return corev1.NodeCondition{Type: kind, Status: status}
	}
	ready := is(corev1.NodeReady, corev1.ConditionTrue)
	for name, test := range map[string]struct {
		conditions []corev1.NodeCondition
		ends       bool
	}{
		"all is well":      {[]corev1.NodeCondition{is(corev1.NodeMemoryPressure, corev1.ConditionFalse), is(corev1.NodeDiskPressure, corev1.ConditionFalse), ready}, false},
		"little memory":    {[]corev1.NodeCondition{is(corev1.NodeMemoryPressure, corev1.ConditionTrue), ready}, true},
		"little disk":      {[]corev1.NodeCondition{is(corev1.NodeDiskPressure, corev1.ConditionTrue), ready}, true},
		"few process ids":  {[]corev1.NodeCondition{ready, is(corev1.NodePIDPressure, corev1.ConditionTrue)}, true},
		"it is shut down":  {[]corev1.NodeCondition{is(corev1.NodeReady, corev1.ConditionFalse)}, true},
		"it is silent":     {[]corev1.NodeCondition{is(corev1.NodeReady, corev1.ConditionUnknown)}, true},
		"it is only begun": {nil, true},
	} {
		if got := endsPods(&corev1.Node{Status: corev1.NodeStatus{Conditions: test.conditions}}); (got != "") != test.ends {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

func TestAPodWithASidecarIsUnusual(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		RestartPolicy:         corev1.RestartPolicyNever,
		ActiveDeadlineSeconds: ptr.To(int64(30)),
		Containers:            []corev1.Container{{Name: "main"}},
		InitContainers:        []corev1.Container{{Name: "first"}},
	}}
	want := Shape{RestartPolicy: corev1.RestartPolicyNever, Containers: []string{"main"}, InitContainers: []string{"first"}, DeadlineSeconds: 30}
	if got := ShapeOf(pod); !reflect.DeepEqual(got, want) {
		t.Errorf("shape %+v, want %+v", got, want)
	}
	pod.Spec.InitContainers[0].RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	if !ShapeOf(pod).Unusual {
		t.Error("a sidecar is not unusual")
	}
}
