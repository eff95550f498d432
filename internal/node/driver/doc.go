// Package driver is the node agent's interface to the kubelet. Each CSI driver has one CSI socket
// and one registration socket, with the Identity and Node services of CSI. One implementation
// serves all drivers: the socket says which is meant.
//
//	<state dir>/drivers/<name>/csi.sock          CSI
//	<kubelet dir>/plugins_registry/<name>-reg.sock   registration, watched by the kubelet
//
// It must not know how a volume is made available: the caller passes Volumes for that.
package driver
