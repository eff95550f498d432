// Package node is Tarn on a node: it answers the kubelet for every PavProvisioner and
// for Tarn's own driver, carries out the node's half of the PavStage protocol, and
// hands over what pods leave in /pav. This folder puts the parts together:
//
//	driver   sockets, CSI Identity and Node services, registration at the kubelet
//	stages   volumes of PavProvisioners
//	results  /pav of pods that run to their end
//	ends     hears of ended pods from the container runtime, and judges how they ended
//	inside   finds the containers of pods among the machine's processes
//	resultdir   reads /pav, trusting nothing
//	mounts   the mount table
//	keyed    locks by key
//
// It creates no pod and must not know of templates, of claims, or of any controller.
package node
