// Package driver is the node agent's face to the kubelet: for each CSI driver one CSI
// socket and one registration socket, with the Identity and Node services of CSI. All
// drivers are one implementation; which one is meant is known from the socket.
//
//	<state dir>/drivers/<name>/csi.sock          CSI
//	<kubelet dir>/plugins_registry/<name>-reg.sock   registration, watched by the kubelet
//
// It must not know how a volume is made available: that is told it as Volumes.
package driver
