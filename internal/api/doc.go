// Package api is the REST server of applications: it finds out who calls, asks
// Kubernetes whether they may, and has app/service do it. Apps are written with the caller's
// own token, so that audit and admission see who it was, and a server that was taken over
// has the rights of no one but those who call it meanwhile.
//
// It keeps no users and no state of its own, and decides nothing about applications. It
// knows no controller.
//
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
// +kubebuilder:rbac:groups=tarn.dev,resources=apps,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get
// +kubebuilder:rbac:groups="",resources=pods,verbs=list
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get
package api
