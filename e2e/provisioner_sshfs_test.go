//go:build e2e

package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// serveFiles is the script of an SSH server for /data/files. It makes the keys, and it ends all
// connections while there is a file "down".
const serveFiles = `
	cd /data; mkdir -p files /run/sshd
	echo root:x:0:0::/root:/bin/bash > /etc/passwd; echo sshd:x:100:100::/run/sshd:/bin/false >> /etc/passwd
	echo root:x:0: > /etc/group; echo sshd:x:100: >> /etc/group; rm -f /etc/shadow
	ssh-keygen -q -t ed25519 -N '' -f /etc/host
	ssh-keygen -q -t ed25519 -N '' -f key; cp key.pub /etc/known
	cp /etc/host.pub host; touch made
	while :; do
		/usr/sbin/sshd -D -e -f /dev/null -h /etc/host -p 2222 -o AuthorizedKeysFile=/etc/known -o StrictModes=no -o UsePAM=no -o Subsystem='sftp internal-sftp' &
		until [ -e down ]; do sleep 0.1; done
		kill -9 -1
		touch ended
		while [ -e down ]; do sleep 0.1; done
	done`

// killSSHFS ends the sshfs of a path on the server.
func killSSHFS(t *testing.T, path string) {
	t.Helper()
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range commands {
		line, _ := os.ReadFile(command) // it may have ended
		if words := bytes.Split(line, []byte{0}); string(words[0]) != "sshfs" || !bytes.Contains(line, []byte(path)) {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(command, "/")[2])
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("there is no sshfs for %s", path)
}

func TestAnSSHFSVolumeWritesOnAfterItsServerAndItsProcessWereKilled(t *testing.T) {
	t.Parallel()
	s := onTheShelf(t, "sshfs")
	if _, err := suite.machine.run("image", "build", "--tag", "tarn.dev/e2e-sshd:1", "--packages", "openssh-server"); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	server := s.consumer("server", "", serveFiles, func(pod *corev1.Pod) {
		pod.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}}
		c := &pod.Spec.Containers[0]
		c.Image, c.Command[0] = "tarn.dev/e2e-sshd:1", "bash"
		c.ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-e", "/data/made"}}}}
	})
	s.ready(server)
	if err := s.get(server); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		text, err := os.ReadFile(at(name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	s.secret("bare", map[string]string{"ssh-privatekey": read("key")})
	s.secret("login", map[string]string{"ssh-privatekey": read("key"), "known_hosts": "[" + server.Status.PodIP + "]:2222 " + read("host")})
	of := func(host, secret string) func(*corev1.PersistentVolumeClaim) {
		return annotated(map[string]string{
			"sshfs.tarn.dev/host": host, "sshfs.tarn.dev/port": "2222", "sshfs.tarn.dev/path": "/data/files",
			"sshfs.tarn.dev/uid": "1000", "sshfs.tarn.dev/secret": secret,
		}, corev1.ReadWriteMany)
	}
	s.told(s.claimWith("option", of("-oProxyCommand=id", "login")), "ProvisioningFailed", "is not valid; write a name or an address")
	stranger := s.consumer("stranger", s.claimWith("bare", of(server.Status.PodIP, "bare")).Name, stays)

	claim := s.claimWith("files", of(server.Status.PodIP, "login"))
	pod := s.consumer("writer", claim.Name, `
		stat -c 'owner %u' /data; [ "$(df -P /data | tail -n 1 | awk '{print $2}')" -gt 1000 ] && echo has a size
		is=up n=0
		while :; do
			n=$((n+1))
			if (echo $n > /data/count) 2> /dev/null; then now=up; else now=down; fi
			[ $is = $now ] || echo "it is $now at $n"
			is=$now
			[ ! -e /data/again ] || { echo "it goes on"; rm /data/again; }
			sleep 0.1
		done`)
	s.ready(pod)
	s.prints(pod, "has a size")
	s.told(stranger, "FailedMount", "the Secret has no key known_hosts")

	touch := func(name string) {
		if err := os.WriteFile(at(name), nil, 0o644); err != nil { //nolint:gosec // for the server's user
			t.Fatal(err)
		}
	}
	touch("down")
	s.prints(pod, "it is down")
	if err := os.Remove(at("down")); err != nil {
		t.Fatal(err)
	}
	out := s.prints(pod, "it is up")
	if !strings.Contains(out, "owner 1000") {
		t.Errorf("the pod has printed:\n%s", out)
	}

	killSSHFS(t, server.Status.PodIP)
	s.told(pod, "VolumeRebound", "is staged and mounted again")
	touch("files/again")
	s.prints(pod, "it goes on")
}
