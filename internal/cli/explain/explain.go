// Package explain answers why an app, a claim, a volume, a pod or a pool is not in the expected
// state. It reads the cluster with the caller's rights. Then it finds the chain of causes, from the
// object asked for to the one that everything waits for.
//
// Explain follows references. A controller of Tarn says on its own object what it waits for. The
// object waited for is the next link of the chain. Explain derives only what no controller writes:
//
//	object           followed                                      derived
//	App, pool        conditions Deployed and Ready                 -
//	PavVolume        conditions Provisioned and Deletable,         that the pod of its step is missing
//	                 last error, next attempt
//	PavStage         status.node and status.pod: message,          that the node agent is silent
//	                 next attempt, loss, evictions
//	PavProvisioner   condition Accepted                            -
//	claim            conditions of its resize, Events              why no binder binds it, which volume came
//	                                                               nearest, what no provisioner serves
//	volume           phase, message, Events                        what names it, what may still use it
//	pod              conditions, states of its containers,         the drivers and the state of its node
//	                 the kubelet's Events
//	controller       its lease and its Deployment                  that it should have acted
//
// Gather reads into one View, chain computes, print writes. The chain knows no client and no clock.
// Nothing here writes to the cluster, and no state is kept between calls.
package explain

import (
	"time"
)

// Kind is the kind of an object. The constants below are those that a user can ask for.
type Kind string

// The kinds, as they are in Kubernetes.
const (
	Claim  Kind = "PersistentVolumeClaim"
	Volume Kind = "PersistentVolume"
	Pod    Kind = "Pod"
	Set    Kind = "PersistentVolumeSet"
	App    Kind = "App"
)

// Kinds in a chain, beside those that a user can ask for.
const (
	pavVolume      Kind = "PavVolume"
	pavStage       Kind = "PavStage"
	pavProvisioner Kind = "PavProvisioner"
	storageClass   Kind = "StorageClass"
	csiDriver      Kind = "CSIDriver"
	csiNode        Kind = "CSINode"
	node           Kind = "Node"
	event          Kind = "Event"
	lease          Kind = "Lease"
	deployment     Kind = "Deployment"
	replicaSet     Kind = "ReplicaSet"
	podLog         Kind = "pod log"
)

// Object names one object.
type Object struct {
	Kind      Kind   `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// Link is one object of a chain, and its state.
type Link struct {
	Object Object `json:"object"`
	// State is one or a few words: a phase, or a word of explain's own.
	State string `json:"state"`
	// Since is when the state began, if known.
	Since *time.Time `json:"since,omitempty"`
	// Node is the node of a pod or a stage.
	Node string `json:"node,omitempty"`
	// Reason is one CamelCase word, if the object or an Event has one.
	Reason string `json:"reason,omitempty"`
	// Message is text for the user.
	Message string `json:"message,omitempty"`
	// Log holds the last lines of the pod's log.
	Log []string `json:"log,omitempty"`
	// Next says when it continues by itself, or after which event.
	Next string `json:"next,omitempty"`
	// Command makes it continue. It is for a shell and has all names filled in.
	Command string `json:"command,omitempty"`
	// Aside says that this is wrong too, but nothing waits for it. Such a link does not lead to the
	// cause and has no command.
	Aside bool `json:"aside,omitempty"`

	// offer says what the command does. It becomes a part of the message if there is a command.
	offer string
}

// Explanation is the answer.
type Explanation struct {
	Object Object `json:"object"`
	// Healthy says that nothing is wrong and nothing is waited for.
	Healthy bool `json:"healthy"`
	// Verdict is the answer in one line.
	Verdict string `json:"verdict"`
	// Links lead from the object asked for to the cause. Then come the links aside, and last what
	// could not be read.
	Links []Link `json:"links"`

	// again says that a second read may tell more.
	again bool
}

// String returns the object as a user writes it: claim shop/data.
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
