package podend

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// Ending says how a pod has ended. The zero value means unknown.
type Ending struct {
	// Known says that the pod has ended.
	Known bool
	// Succeeded says that it has ended well.
	Succeeded bool
	// ExitCodes are the exit codes other than 0, by container.
	ExitCodes map[string]int32
}

// Run is one run of a container, as the runtime knows it.
type Run struct {
	// Container is its name in the pod's spec. It is empty if only ID is known, see Named.
	Container string
	// ID is its ID in the container runtime, if known.
	ID string
	// Attempt counts the runs of the container, from 0.
	Attempt uint32
	// Exited says that it has ended, with ExitCode.
	Exited   bool
	ExitCode int32
	// Started and Finished are by the node's clock.
	Started, Finished time.Time
}

// Look is the observed state of a pod.
type Look struct {
	// Runs are the known runs of its containers.
	Runs []Run
	// Ending says why the kubelet may be ending pods of the node; empty if nothing shows that. Call
	// it only for a pod that seems to have succeeded, since it asks the API server.
	Ending func(context.Context) string
}

// Named fills in the container names, from the pod status, for runs known only by ID. Runs that the
// status does not show are left out. All are left out if an ID may not identify the container's own
// process. That is so in the process namespace of the node or of the pod, and with a runtime class.
func (l Look) Named(pod *corev1.Pod) Look {
	var runs []Run
	unclear := pod.Spec.HostPID || ptr.Deref(pod.Spec.ShareProcessNamespace, false) || pod.Spec.RuntimeClassName != nil
	for _, r := range l.Runs {
		if r.Container != "" {
			runs = append(runs, r)
			continue
		}
		for _, c := range pod.Status.ContainerStatuses {
			if _, id, _ := strings.Cut(c.ContainerID, "://"); id == "" || id != r.ID || unclear {
				continue
			}
			r.Container, r.Attempt = c.Name, uint32(c.RestartCount)
			if pod.Status.StartTime != nil {
				r.Started = pod.Status.StartTime.Time
			}
			runs = append(runs, r)
		}
	}
	l.Runs = runs
	return l
}

// Shape is the part of a pod's spec that decides when the pod has ended.
type Shape struct {
	RestartPolicy corev1.RestartPolicy `json:"restartPolicy"`
	// Containers and InitContainers are names.
	Containers     []string `json:"containers"`
	InitContainers []string `json:"initContainers,omitempty"`
	// Unusual says that only the kubelet can judge the pod's end, because of a sidecar or restart
	// rules of a container.
	Unusual bool `json:"unusual,omitempty"`
	// DeadlineSeconds is the pod's activeDeadlineSeconds, 0 if it has none.
	DeadlineSeconds int64 `json:"deadlineSeconds,omitempty"`
}

// ShapeOf takes the shape of a pod.
func ShapeOf(pod *corev1.Pod) Shape {
	s := Shape{RestartPolicy: pod.Spec.RestartPolicy}
	if pod.Spec.ActiveDeadlineSeconds != nil {
		s.DeadlineSeconds = *pod.Spec.ActiveDeadlineSeconds
	}
	names := func(containers []corev1.Container) []string {
		var list []string
		for i := range containers {
			list = append(list, containers[i].Name)
			if containers[i].RestartPolicy != nil || len(containers[i].RestartPolicyRules) > 0 {
				s.Unusual = true
			}
		}
		return list
	}
	s.Containers = names(pod.Spec.Containers)
	s.InitContainers = names(pod.Spec.InitContainers)
	return s
}

// Judge says from the runs of its containers whether a pod has ended for good, but only if the
// kubelet cannot decide otherwise. It says nothing if a restart is due or possible, the pod's
// deadline had passed, or the runtime has forgotten a container.
//
// It also says nothing about a success while the kubelet may be ending pods. Many containers exit
// with 0 on SIGTERM, and no runtime says why a container ended. A failure counts in any case.
func Judge(ctx context.Context, s Shape, l Look) Ending {
	end := judge(s, l.Runs)
	if end.Succeeded && l.Ending(ctx) != "" {
		return Ending{}
	}
	return end
}

func judge(s Shape, runs []Run) Ending {
	if s.Unusual {
		return Ending{}
	}
	last := map[string]Run{}
	var begun, finished time.Time
	for _, c := range runs {
		if have, ok := last[c.Container]; !ok || c.Attempt >= have.Attempt {
			last[c.Container] = c
		}
		if begun.IsZero() || c.Started.Before(begun) {
			begun = c.Started
		}
		if c.Finished.After(finished) {
			finished = c.Finished
		}
	}
	if s.DeadlineSeconds > 0 && finished.Sub(begun) >= time.Duration(s.DeadlineSeconds)*time.Second-deadlineMargin {
		return Ending{}
	}
	switch s.RestartPolicy {
	case corev1.RestartPolicyNever:
		return judgeNever(s, last)
	case corev1.RestartPolicyOnFailure:
		if end := judgeAll(s.Containers, last); end.Succeeded {
			return end
		}
	}
	return Ending{}
}

// deadlineMargin is how long before its deadline a pod is left to the kubelet. The kubelet counts
// from the pod's start, which is earlier than that of its first container.
const deadlineMargin = 10 * time.Second

// judgeNever: an init container that failed ends the pod; else all containers do.
func judgeNever(s Shape, last map[string]Run) Ending {
	for _, name := range s.InitContainers {
		if c, ok := last[name]; ok && c.Exited && c.ExitCode != 0 {
			return Ending{Known: true, ExitCodes: map[string]int32{name: c.ExitCode}}
		}
	}
	return judgeAll(s.Containers, last)
}

func judgeAll(names []string, last map[string]Run) Ending {
	end := Ending{Known: len(names) > 0, Succeeded: len(names) > 0}
	for _, name := range names {
		c, ok := last[name]
		if !ok || !c.Exited {
			return Ending{}
		}
		if c.ExitCode != 0 {
			end.Succeeded = false
			if end.ExitCodes == nil {
				end.ExitCodes = map[string]int32{}
			}
			end.ExitCodes[name] = c.ExitCode
		}
	}
	return end
}
