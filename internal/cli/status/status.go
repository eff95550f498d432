// Package status shows the state of the whole of Tarn, and its problems. It reads the cluster with
// the caller's rights and judges it. It says that something is wrong; package explain says why, and
// what to do.
//
// Gather reads into one View, judge computes, print writes. The judgement knows no client and no
// clock. Nothing here writes to the cluster, and no state is kept between calls.
package status

import (
	"time"

	"tarn.dev/tarn/internal/cli/explain"
)

// Report is the answer.
type Report struct {
	// Healthy says that there is no problem and that the caller could read everything.
	Healthy bool `json:"healthy"`
	// Verdict is the answer in one line.
	Verdict string `json:"verdict"`
	// Namespace is the only namespace covered; empty for the whole cluster.
	Namespace string `json:"namespace,omitempty"`
	// Controller is what the lease of Tarn's controller says; absent for a single namespace.
	Controller *Controller `json:"controller,omitempty"`
	// Workloads run in Tarn's own namespace; there are none where Tarn runs outside of pods.
	Workloads []Workload `json:"workloads,omitempty"`
	// Nodes says where the node agent has registered; absent for a single namespace.
	Nodes        *Nodes        `json:"nodes,omitempty"`
	Provisioners []Provisioner `json:"provisioners,omitempty"`
	Pools        []Pool        `json:"pools,omitempty"`
	Apps         []App         `json:"apps,omitempty"`
	// Claims, Volumes, Records and Stages are counted by state.
	Claims  []Count `json:"claims,omitempty"`
	Volumes []Count `json:"volumes,omitempty"`
	Records []Count `json:"records,omitempty"`
	Stages  []Count `json:"stages,omitempty"`
	// Trash is absent while it is empty.
	Trash *Trash `json:"trash,omitempty"`
	// Problems are sorted so that a problem comes before those that may follow from it.
	Problems []Problem `json:"problems"`
	// Unread are the kinds that the caller may not read.
	Unread []Unread `json:"unread,omitempty"`
}

// Controller is the lease holder among Tarn's controllers.
type Controller struct {
	Leads bool `json:"leads"`
	// Holder is the present holder of the lease, or the last one.
	Holder string `json:"holder,omitempty"`
	// Renewed is when the lease was last renewed.
	Renewed *time.Time `json:"renewed,omitempty"`
	// State is the state of the lease: held, missing, released or expired.
	State string `json:"state"`
}

// Workload is one of Tarn's Deployments or DaemonSets.
type Workload struct {
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Wanted  int32  `json:"wanted"`
	Ready   int32  `json:"ready"`
	Updated int32  `json:"updated"`
}

// Nodes says where Tarn's node agent has registered with the kubelet.
type Nodes struct {
	Total     int `json:"total"`
	WithAgent int `json:"withAgent"`
	// Without are the nodes without the agent.
	Without []string `json:"without,omitempty"`
}

// Provisioner is a PavProvisioner.
type Provisioner struct {
	Name     string `json:"name"`
	Accepted bool   `json:"accepted"`
	// Volumes counts its PersistentVolumes. Failing counts its PavVolumes whose last attempt has
	// failed.
	Volumes int `json:"volumes"`
	Failing int `json:"failing"`
}

// Pool is a PersistentVolumeSet.
type Pool struct {
	Name    string `json:"name"`
	Ready   bool   `json:"ready"`
	Spare   int32  `json:"spare"`
	Minimum int32  `json:"minimum"`
	Making  int32  `json:"making"`
	InUse   int32  `json:"inUse"`
	Maximum int32  `json:"maximum"`
}

// App is an application.
type App struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Ready     bool   `json:"ready"`
	Reason    string `json:"reason,omitempty"`
	Replicas  int32  `json:"replicas"`
	Running   int32  `json:"running"`
	Volumes   int    `json:"volumes"`
}

// Count is the number of objects in a state.
type Count struct {
	State string `json:"state"`
	Count int    `json:"count"`
	// Bytes is their total size; only of volumes.
	Bytes int64 `json:"bytes,omitempty"`
}

// Trash is the volumes that can be restored.
type Trash struct {
	Volumes int   `json:"volumes"`
	Bytes   int64 `json:"bytes"`
	// Next is when the first of them is deleted; absent if none has an end.
	Next *time.Time `json:"next,omitempty"`
}

// Unread is a kind that the caller may not read.
type Unread struct {
	Kind string `json:"kind"`
	// Message names the right that is missing.
	Message string `json:"message"`
}

// Problem is one thing that is wrong.
type Problem struct {
	Object explain.Object `json:"object"`
	// Message is text for the user.
	Message string `json:"message"`
	// Since is when it began, if known.
	Since *time.Time `json:"since,omitempty"`
	// Command tells more, or fixes it.
	Command string `json:"command"`
}
