// Package api is the REST server of applications. It identifies the caller, asks Kubernetes whether
// the caller may do the call, and has app/service do it. Apps are written with the caller's own
// token, so audit and admission see the real user. An attacker who takes over the server gains only
// the rights of those who call it meanwhile.
//
// It stores no users and no state, and decides nothing about applications. It knows no controller.
//
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
// +kubebuilder:rbac:groups=tarn.dev,resources=apps,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get
// +kubebuilder:rbac:groups="",resources=pods,verbs=list
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get
package api
