package plan

import (
	"strings"
	"time"
)

// Status is the state of an application, a closed set.
type Status string

// The states of an application.
const (
	// NotDeployed: its id is taken, but nothing is deployed.
	NotDeployed Status = "NotDeployed"
	// Deploying: the controller is creating what was asked for.
	Deploying Status = "Deploying"
	// Refused: what was asked for is impossible; nothing happens until it is changed.
	Refused Status = "Refused"
	// Waiting: everything is created, but a pod or a volume is not ready.
	Waiting Status = "Waiting"
	// Failing: everything is created, but a pod ends again and again or cannot be started. Waiting
	// does not change that.
	Failing Status = "Failing"
	// Resizing: a volume is being expanded.
	Resizing Status = "Resizing"
	// Ready: everything is as asked for.
	Ready Status = "Ready"
	// Deleting: it is being deleted.
	Deleting Status = "Deleting"
)

// App is an application in an answer.
type App struct {
	ID        string `json:"id" doc:"Id of the application, unique in its namespace"`
	Namespace string `json:"namespace" doc:"Namespace it lives in"`
	Status    Status `json:"status" enum:"NotDeployed,Deploying,Refused,Waiting,Failing,Resizing,Ready,Deleting" doc:"How it is"`
	Message   string `json:"message,omitempty" doc:"Why it is so, where that is not plain"`
	// Settled says that nothing is in progress that a caller could wait for.
	Settled       bool              `json:"settled" doc:"Whether nothing is under way any more"`
	Image         string            `json:"image,omitempty" doc:"Image of its container"`
	Command       []string          `json:"command,omitempty" doc:"What is run in place of the image's entry point"`
	Args          []string          `json:"args,omitempty" doc:"Arguments in place of the image's"`
	Port          int32             `json:"port,omitempty" doc:"Port it listens on"`
	Env           map[string]string `json:"env,omitempty" doc:"Environment variables"`
	Secrets       map[string]string `json:"secrets,omitempty" doc:"Environment variables from Secrets, each as SECRET/KEY"`
	Replicas      int32             `json:"replicas" doc:"Pods asked for"`
	ReadyReplicas int32             `json:"ready_replicas" doc:"Pods that are ready"`
	Volumes       []Volume          `json:"volumes" doc:"Volumes that are mounted"`
	Detached      []Volume          `json:"detached" doc:"Volumes that are mounted no more, and kept"`
	Warnings      []string          `json:"warnings" doc:"What is right but perhaps not meant"`
	CreatedAt     time.Time         `json:"created_at" doc:"When the id was taken"`
}

// VolumeStatus is the state of a volume, a closed set.
type VolumeStatus string

// The states of a volume.
const (
	// VolumeMissing: its claim is not created yet.
	VolumeMissing VolumeStatus = "Missing"
	// VolumePending: its claim has no storage yet.
	VolumePending VolumeStatus = "Pending"
	// VolumeBound: it has its storage.
	VolumeBound VolumeStatus = "Bound"
	// VolumeResizing: it is being expanded.
	VolumeResizing VolumeStatus = "Resizing"
	// VolumeResizeFailed: it could not be expanded; Kubernetes retries.
	VolumeResizeFailed VolumeStatus = "ResizeFailed"
	// VolumeLost: its storage is gone.
	VolumeLost VolumeStatus = "Lost"
	// VolumeTerminating: its claim is being deleted.
	VolumeTerminating VolumeStatus = "Terminating"
	// VolumeForeign: a claim with its name exists, but is not the application's.
	VolumeForeign VolumeStatus = "Foreign"
)

// Volume is a volume of an application, as its live claim describes it.
type Volume struct {
	Name             string       `json:"name" doc:"Name within the application"`
	ClaimName        string       `json:"pvc_name" doc:"Name of its PersistentVolumeClaim"`
	SizeGi           int64        `json:"size_gi" doc:"Size asked for, in GiB"`
	CapacityBytes    int64        `json:"capacity_bytes,omitempty" doc:"Size it has, in bytes; absent while it has none"`
	UsedBytes        *int64       `json:"used_bytes,omitempty" doc:"Bytes in use; absent where that is not known"`
	Status           VolumeStatus `json:"status" enum:"Missing,Pending,Bound,Resizing,ResizeFailed,Lost,Terminating,Foreign" doc:"How it is"`
	AccessMode       string       `json:"access_mode" example:"ReadWriteOnce" doc:"Access mode of the live claim"`
	StorageClass     string       `json:"storage_class" doc:"Storage class of the live claim"`
	PreserveOnDelete bool         `json:"preserve_on_delete" doc:"Whether it stays when the application is deleted"`
	MountPath        string       `json:"mount_path,omitempty" doc:"Where it is mounted; absent for a detached one"`
	Message          string       `json:"message,omitempty" doc:"What it waits for"`
}

// Resized is the answer to a call that expands a volume.
type Resized struct {
	Name       string       `json:"name" doc:"Name within the application"`
	ClaimName  string       `json:"pvc_name" doc:"Name of its PersistentVolumeClaim"`
	SizeGi     int64        `json:"size_gi" doc:"Size it is growing to, in GiB"`
	Status     VolumeStatus `json:"status" enum:"Resizing" doc:"Resizing"`
	AccessMode string       `json:"access_mode" doc:"Access mode of the live claim"`
}

// Deletion is the answer to the deletion of an application.
type Deletion struct {
	ID     string `json:"id" doc:"Id of the application"`
	Status Status `json:"status" enum:"Deleting" doc:"Deleting"`
	// Preserved and Deleted are names of claims.
	Preserved []string `json:"preserved" doc:"Claims that stay; an application of the same id finds them again"`
	Deleted   []string `json:"deleted" doc:"Claims that go with it"`
}

// Action is what a deploy does with a volume, a closed set.
type Action string

// The actions.
const (
	// Create makes a new claim.
	Create Action = "create"
	// Attach mounts an existing claim that was not mounted.
	Attach Action = "attach"
	// Keep changes nothing.
	Keep Action = "keep"
	// Grow expands the volume.
	Grow Action = "grow"
	// Detach no longer mounts the volume, and keeps its claim.
	Detach Action = "detach"
	// Refuse: the change is impossible, so the deploy is rejected.
	Refuse Action = "refuse"
)

// Change is what a deploy does with one volume.
type Change struct {
	Action    Action `json:"action" enum:"create,attach,keep,grow,detach,refuse" doc:"What is done with the volume"`
	Volume    string `json:"volume" doc:"Name of the volume; empty where the whole application is refused"`
	ClaimName string `json:"pvc_name,omitempty" doc:"Name of its PersistentVolumeClaim"`
	// FromGi and ToGi are its sizes before and after.
	FromGi  int64  `json:"from_gi,omitempty" doc:"Size it has, in GiB"`
	ToGi    int64  `json:"to_gi,omitempty" doc:"Size it is to have, in GiB"`
	Message string `json:"message,omitempty" doc:"Why"`
}

// Strategy is how a deploy replaces the old pods by new ones.
type Strategy string

// The strategies, as a Deployment names them.
const (
	// Recreate stops the old pod before the new one starts.
	Recreate Strategy = "Recreate"
	// RollingUpdate starts the new pods first.
	RollingUpdate Strategy = "RollingUpdate"
)

// Plan is what a deploy would do.
type Plan struct {
	ID       string   `json:"id" doc:"Id of the application"`
	Changes  []Change `json:"changes" doc:"What is done with each volume"`
	Replicas int32    `json:"replicas" doc:"Pods asked for"`
	Strategy Strategy `json:"strategy" enum:"Recreate,RollingUpdate" doc:"How the old pods give way to the new; Recreate where a volume is ReadWriteOnce"`
	// Restart says that pods are replaced.
	Restart  bool     `json:"restart" doc:"Whether running pods are replaced"`
	Refused  bool     `json:"refused" doc:"Whether the deploy is refused, and changes nothing"`
	Warnings []string `json:"warnings" doc:"What is right but perhaps not meant"`
}

// Deployed is the answer to a deploy.
type Deployed struct {
	Plan
	App App `json:"app" doc:"The application; its progress is at /v1/apps/{id}/events"`
}

// EventKind is the kind of an Event, a closed set.
type EventKind string

// The kinds of events.
const (
	// Progress: something changed, and more will follow.
	Progress EventKind = "progress"
	// Settled: nothing is in progress any more. The last event.
	Settled EventKind = "settled"
	// Deleted: the application is gone. The last event.
	Deleted EventKind = "deleted"
	// Expired: the deadline of the stream has passed; the caller must ask again. The last event.
	Expired EventKind = "expired"
)

// Event is the state of an application at one moment while it changes.
type Event struct {
	Kind EventKind `json:"kind" enum:"progress,settled,deleted,expired" doc:"What it tells of"`
	App  App       `json:"app" doc:"The application as it was then"`
}

// Last says whether an event of this kind is the last one.
func (k EventKind) Last() bool { return k != Progress }

// LastWords separates, in the message about an application, the message proper from the last lines
// that a pod printed.
const LastWords = "; it printed last:\n"

// Brief returns a message about an application without those lines.
func Brief(message string) string {
	brief, _, _ := strings.Cut(message, LastWords)
	return brief
}
