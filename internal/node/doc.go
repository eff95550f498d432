// Package node is Tarn on a node. It answers the kubelet for every PavProvisioner and for Tarn's
// own driver, does the node's part of the PavStage protocol, and stores what pods leave in /pav.
// This directory connects the parts:
//
//	driver     sockets, CSI Identity and Node services, registration at the kubelet
//	stages     volumes of PavProvisioners
//	results    /pav of pods that run to their end
//	podend     learns from the container runtime that pods ended, and judges how
//	procns     finds the containers of pods among the machine's processes
//	resultdir  reads /pav, which it does not trust
//	mounts     the mount table
//	hangguard  calls that may hang, with a limit
//	keymutex   locks by key
//
// It creates no pod and must not know of templates, of claims, or of any controller.
package node
