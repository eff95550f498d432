// Package status says at a glance how all of Tarn stands, and what of it is wrong: it
// reads what there is to read with the rights of the caller and judges that. It says
// that something is wrong; why, and what moves it on, is for package explain.
//
// Gather reads into one View, judge computes, print writes. The judgement knows no
// client and no clock; nothing here writes to the cluster, and nothing is remembered.
package status

import (
	"time"

	"tarn.dev/tarn/internal/cli/explain"
)

// Report is the answer.
type Report struct {
	// Healthy says that nothing is wrong and nothing is hidden from the caller.
	Healthy bool `json:"healthy"`
	// Verdict is the answer in one line.
	Verdict string `json:"verdict"`
	// Namespace is the only one looked at; empty for the whole cluster.
	Namespace string `json:"namespace,omitempty"`
	// Controller is what the lease of Tarn's controller says; absent where only a
	// namespace is looked at.
	Controller *Controller `json:"controller,omitempty"`
	// Workloads are what runs in Tarn's own namespace; none where Tarn runs outside of
	// pods.
	Workloads []Workload `json:"workloads,omitempty"`
	// Nodes says where the node agent has registered; absent for a namespace.
	Nodes        *Nodes        `json:"nodes,omitempty"`
	Provisioners []Provisioner `json:"provisioners,omitempty"`
	Pools        []Pool        `json:"pools,omitempty"`
	Apps         []App         `json:"apps,omitempty"`
	// Claims, Volumes, Records and Stages are counted by their states.
	Claims  []Count `json:"claims,omitempty"`
	Volumes []Count `json:"volumes,omitempty"`
	Records []Count `json:"records,omitempty"`
	Stages  []Count `json:"stages,omitempty"`
	// Trash is absent while it is empty.
	Trash *Trash `json:"trash,omitempty"`
	// Problems are what is wrong, what others may follow from first.
	Problems []Problem `json:"problems"`
	// Unread are the kinds that may not be read.
	Unread []Unread `json:"unread,omitempty"`
}

// Controller is the one that leads.
type Controller struct {
	Leads bool `json:"leads"`
	// Holder is who holds the lease, or held it last.
	Holder string `json:"holder,omitempty"`
	// Renewed is when the lease was renewed last.
	Renewed *time.Time `json:"renewed,omitempty"`
	// State is that of the lease: held, missing, given up, or run out.
	State string `json:"state"`
}

// Workload is a Deployment or a DaemonSet of Tarn's.
type Workload struct {
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Wanted  int32  `json:"wanted"`
	Ready   int32  `json:"ready"`
	Updated int32  `json:"updated"`
}

// Nodes is where Tarn's node agent has registered with the kubelet.
type Nodes struct {
	Total     int `json:"total"`
	WithAgent int `json:"withAgent"`
	// Without are the others.
	Without []string `json:"without,omitempty"`
}

// Provisioner is a PavProvisioner.
type Provisioner struct {
	Name     string `json:"name"`
	Accepted bool   `json:"accepted"`
	// Volumes counts its PersistentVolumes, Failing its PavVolumes whose last attempt
	// at anything has failed.
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

// Count is how many there are in a state.
type Count struct {
	State string `json:"state"`
	Count int    `json:"count"`
	// Bytes is what they have together; of volumes alone.
	Bytes int64 `json:"bytes,omitempty"`
}

// Trash is what can be brought back.
type Trash struct {
	Volumes int   `json:"volumes"`
	Bytes   int64 `json:"bytes"`
	// Next is when the first of them goes; absent where none has an end.
	Next *time.Time `json:"next,omitempty"`
}

// Unread is a kind that may not be read.
type Unread struct {
	Kind string `json:"kind"`
	// Message names the right that is missing.
	Message string `json:"message"`
}

// Problem is one thing that is wrong.
type Problem struct {
	Object explain.Object `json:"object"`
	// Message says what is wrong, for people.
	Message string `json:"message"`
	// Since is when it began, where that is known.
	Since *time.Time `json:"since,omitempty"`
	// Command tells more, or puts it right.
	Command string `json:"command"`
}
