// Command pause is the sandbox container of every pod: it holds the pod's namespaces open, reaps what is reparented to it where the
// pod shares one process namespace, and goes when it is told to. It is built without cgo, so its image is this one file.
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

// reap collects every child that has ended; one signal may stand for several of them.
func reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if pid <= 0 && err != syscall.EINTR {
			return
		}
	}
}
