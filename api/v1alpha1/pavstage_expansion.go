package v1alpha1

// StageExpansionPhase is how an attempt at growing the volume on the node stands.
//
// +kubebuilder:validation:Enum=Running;Succeeded;Failed
type StageExpansionPhase string

// The phases of status.pod.expansion.
const (
	// StageExpansionRunning: the node expansion pod is or may be created.
	StageExpansionRunning StageExpansionPhase = "Running"
	// StageExpansionSucceeded: it ended well, or the provisioner has none.
	StageExpansionSucceeded StageExpansionPhase = "Succeeded"
	// StageExpansionFailed: it failed or could not be made; message says why.
	StageExpansionFailed StageExpansionPhase = "Failed"
)

// StageExpansionRequest is the node agent's wish that the volume grow on the node.
type StageExpansionRequest struct {
	// attempt numbers the requests of the stage, from 1.
	Attempt int32 `json:"attempt"`
	// capacity is the new size in bytes.
	Capacity int64 `json:"capacity"`
}

// StageExpansion is what became of the request of the same attempt.
type StageExpansion struct {
	// attempt is the request's.
	Attempt int32 `json:"attempt"`
	// phase, see StageExpansionPhase.
	Phase StageExpansionPhase `json:"phase"`
	// message says what went wrong or what is waited for.
	// +optional
	Message string `json:"message,omitempty"`
	// namespace of the node expansion pod.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// name of the node expansion pod.
	// +optional
	Name string `json:"name,omitempty"`
}
