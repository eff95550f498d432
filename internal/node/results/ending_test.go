package results

import (
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

var begun = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func exited(name string, attempt uint32, code int32) container {
	return container{name: name, attempt: attempt, exited: true, exitCode: code, started: begun, finished: begun.Add(time.Second)}
}

func running(name string, attempt uint32) container {
	return container{name: name, attempt: attempt, started: begun}
}

func TestAPodHasEndedOnlyWhenTheKubeletCannotSeeItOtherwise(t *testing.T) {
	never := shape{RestartPolicy: corev1.RestartPolicyNever, Containers: []string{"a", "b"}, InitContainers: []string{"init"}}
	onFailure := shape{RestartPolicy: corev1.RestartPolicyOnFailure, Containers: []string{"a"}}
	always := shape{RestartPolicy: corev1.RestartPolicyAlways, Containers: []string{"a"}}
	limited := shape{RestartPolicy: corev1.RestartPolicyNever, Containers: []string{"a"}, DeadlineSeconds: 60}
	unusual := shape{RestartPolicy: corev1.RestartPolicyNever, Containers: []string{"a"}, Unusual: true}
	late := exited("a", 0, 0)
	late.finished = begun.Add(55 * time.Second)
	good := ending{known: true, succeeded: true}
	for name, test := range map[string]struct {
		shape shape
		runs  []container
		want  ending
	}{
		"nothing ran yet":                          {never, nil, ending{}},
		"only the init container has ended":        {never, []container{exited("init", 0, 0)}, ending{}},
		"the init container has failed":            {never, []container{exited("init", 0, 4)}, ending{known: true, exitCodes: map[string]int32{"init": 4}}},
		"one of two still runs":                    {never, []container{exited("init", 0, 0), exited("a", 0, 0), running("b", 0)}, ending{}},
		"one of two is not there yet":              {never, []container{exited("init", 0, 0), exited("a", 0, 1)}, ending{}},
		"both have ended well":                     {never, []container{exited("init", 0, 0), exited("a", 0, 0), exited("b", 0, 0)}, good},
		"both have ended, one badly":               {never, []container{exited("a", 0, 0), exited("b", 0, 3)}, ending{known: true, exitCodes: map[string]int32{"b": 3}}},
		"it will be restarted":                     {onFailure, []container{exited("a", 0, 1)}, ending{}},
		"it has succeeded at the second try":       {onFailure, []container{exited("a", 1, 0), exited("a", 0, 1)}, good},
		"it runs again":                            {onFailure, []container{running("a", 1), exited("a", 0, 0)}, ending{}},
		"it is always restarted":                   {always, []container{exited("a", 0, 0)}, ending{}},
		"its deadline was near":                    {limited, []container{late}, ending{}},
		"its deadline was far":                     {limited, []container{exited("a", 0, 0)}, good},
		"it has restart rules of its own":          {unusual, []container{exited("a", 0, 0)}, ending{}},
		"the runtime names nothing the spec names": {never, []container{exited("x", 0, 0)}, ending{}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := judge(test.shape, test.runs); !reflect.DeepEqual(got, test.want) {
				t.Errorf("judged %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestAPodWithASidecarIsUnusual(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		RestartPolicy:         corev1.RestartPolicyNever,
		ActiveDeadlineSeconds: ptr.To(int64(30)),
		Containers:            []corev1.Container{{Name: "main"}},
		InitContainers:        []corev1.Container{{Name: "first"}},
	}}
	want := shape{RestartPolicy: corev1.RestartPolicyNever, Containers: []string{"main"}, InitContainers: []string{"first"}, DeadlineSeconds: 30}
	if got := shapeOf(pod); !reflect.DeepEqual(got, want) {
		t.Errorf("shape %+v, want %+v", got, want)
	}
	pod.Spec.InitContainers[0].RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	if !shapeOf(pod).Unusual {
		t.Error("a sidecar is not unusual")
	}
}
