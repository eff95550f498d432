// Command pause is the sandbox container of every pod. It holds the pod's namespaces open and ends
// on SIGTERM or SIGINT. Where the pod shares one process namespace, it also reaps orphaned
// processes. It is built without cgo, so its image is this one file.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGINT, syscall.SIGTERM)
	orphans := make(chan os.Signal, 1)
	signal.Notify(orphans, syscall.SIGCHLD)
	for {
		select {
		case <-told:
			return
		case <-orphans:
			reap()
		}
	}
}

// reap collects every child that has ended. One signal may stand for several children.
func reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if pid <= 0 && err != syscall.EINTR {
			return
		}
	}
}
