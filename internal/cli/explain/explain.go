// Package explain answers why an app, a claim, a volume, a pod or a pool is not where it should be:
// it reads what there is to read with the rights of the caller, and finds in that the
// chain of causes from the object asked for to what everything waits for.
//
// Gather reads into one View, chain computes, print writes. The chain knows no client
// and no clock; nothing here writes to the cluster, and nothing is remembered.
package explain

import (
	"time"
)

// Kind is what can be asked for.
type Kind string

// The kinds, as they are in Kubernetes.
const (
	Claim  Kind = "PersistentVolumeClaim"
	Volume Kind = "PersistentVolume"
	Pod    Kind = "Pod"
	Set    Kind = "PersistentVolumeSet"
	App    Kind = "App"
)

// Object names one object.
type Object struct {
	Kind      Kind   `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// Link is one object of a chain and how it stands.
type Link struct {
	Object Object `json:"object"`
	// State is a word or a few: a phase, or what stands for one.
	State string `json:"state"`
	// Since is when the state began, where that is known.
	Since *time.Time `json:"since,omitempty"`
	// Node is where the object is, of a pod or a stage.
	Node string `json:"node,omitempty"`
	// Reason is one CamelCase word, where the object or an Event has one.
	Reason string `json:"reason,omitempty"`
	// Message is for people.
	Message string `json:"message,omitempty"`
	// Log are the last lines of the pod's log.
	Log []string `json:"log,omitempty"`
	// Next is when it goes on by itself, or which event makes it.
	Next string `json:"next,omitempty"`
	// Command moves it on; it is for a shell and has all names filled in.
	Command string `json:"command,omitempty"`
	// Aside says that it is wrong as well, and not what is waited for: it is no link to the
	// cause, and has no command.
	Aside bool `json:"aside,omitempty"`

	// offer says what the command does; it is a part of the message where there is one.
	offer string
}

// Explanation is the answer.
type Explanation struct {
	Object Object `json:"object"`
	// Healthy says that nothing is wrong and nothing is waited for.
	Healthy bool `json:"healthy"`
	// Verdict is the answer in one line.
	Verdict string `json:"verdict"`
	// Links lead from the object asked for to the cause; then come those aside, and what
	// could not be read last.
	Links []Link `json:"links"`

	// again says that a second look may tell more.
	again bool
}

// String names an object as people do: claim shop/data.
func (o Object) String() string {
	word, known := map[Kind]string{Claim: "claim", Volume: "volume", Pod: "pod", Set: "pvset", App: "app"}[o.Kind]
	if !known {
		word = string(o.Kind)
	}
	return word + " " + o.fullName()
}

func (o Object) fullName() string {
	if o.Namespace == "" {
		return o.Name
	}
	return o.Namespace + "/" + o.Name
}
