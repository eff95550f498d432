package results

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// ending is how a pod has ended. The zero value says that it is not known.
type ending struct {
	known     bool
	succeeded bool
	// exitCodes are those other than 0, by container.
	exitCodes map[string]int32
}

// container is one run of a container, as the runtime knows it.
type container struct {
	name     string
	attempt  uint32
	exited   bool
	exitCode int32
	started  time.Time
	finished time.Time
}

// judge tells from the runs of its containers whether a pod has ended for good, so
// surely that the kubelet cannot come to another answer. Where it could (a restart is
// due or possible, the pod's deadline had passed, the runtime has forgotten a
// container), nothing is said.
func judge(s shape, runs []container) ending {
	if s.Unusual {
		return ending{}
	}
	last := map[string]container{}
	var begun, finished time.Time
	for _, c := range runs {
		if have, ok := last[c.name]; !ok || c.attempt >= have.attempt {
			last[c.name] = c
		}
		if begun.IsZero() || c.started.Before(begun) {
			begun = c.started
		}
		if c.finished.After(finished) {
			finished = c.finished
		}
	}
	if s.DeadlineSeconds > 0 && finished.Sub(begun) >= time.Duration(s.DeadlineSeconds)*time.Second-deadlineMargin {
		return ending{}
	}
	switch s.RestartPolicy {
	case corev1.RestartPolicyNever:
		return judgeNever(s, last)
	case corev1.RestartPolicyOnFailure:
		if end := judgeAll(s.Containers, last); end.succeeded {
			return end
		}
	}
	return ending{}
}

// deadlineMargin is how long before its deadline a pod is left to the kubelet: the
// kubelet counts from the pod's start, which is before that of its first container.
const deadlineMargin = 10 * time.Second

// judgeNever: an init container that failed ends the pod; else all containers do.
func judgeNever(s shape, last map[string]container) ending {
	for _, name := range s.InitContainers {
		if c, ok := last[name]; ok && c.exited && c.exitCode != 0 {
			return ending{known: true, exitCodes: map[string]int32{name: c.exitCode}}
		}
	}
	return judgeAll(s.Containers, last)
}

func judgeAll(names []string, last map[string]container) ending {
	end := ending{known: len(names) > 0, succeeded: len(names) > 0}
	for _, name := range names {
		c, ok := last[name]
		if !ok || !c.exited {
			return ending{}
		}
		if c.exitCode != 0 {
			end.succeeded = false
			if end.exitCodes == nil {
				end.exitCodes = map[string]int32{}
			}
			end.exitCodes[name] = c.exitCode
		}
	}
	return end
}
