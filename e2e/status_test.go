//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// The fields of `tarn status --output json` that the case reads.
type (
	glance struct {
		Healthy    bool
		Controller struct {
			Leads bool
			State string
		}
		Nodes        struct{ Total, WithAgent int }
		Provisioners []provisionerAtAGlance
		Pools        []poolAtAGlance
		Claims       []stateAtAGlance
		Volumes      []stateAtAGlance
		Trash        struct{ Volumes int }
		Problems     []problemAtAGlance
	}
	provisionerAtAGlance struct {
		Name             string
		Accepted         bool
		Volumes, Failing int
	}
	poolAtAGlance struct {
		Name                           string
		Ready                          bool
		Spare, Minimum, InUse, Maximum int
	}
	stateAtAGlance struct {
		State string
		Count int
	}
	problemAtAGlance struct {
		Object           struct{ Namespace, Name string }
		Message, Command string
	}
)

// glances requests the status of the whole cluster until missing returns "". Other cases run in the
// cluster at the same time, so their objects are ignored.
func (s *scenario) glances(what string, missing func(glance) string) {
	s.t.Helper()
	s.await(what, func() (bool, string) {
		out, said, status, err := tool("", "status", "--output", "json")
		if err != nil || status > 1 {
			return false, fmt.Sprintf("exit status %d, %v: %s", status, err, said)
		}
		g := decoded[glance](s, out)
		if g.Healthy != (status == 0) {
			s.t.Errorf("tarn status ended with %d and printed\n%s", status, out)
		}
		why := missing(g)
		return why == "", why + " in\n" + out
	})
}

// of gives the number of objects in a state.
func of(states []stateAtAGlance, state string) int {
	for _, is := range states {
		if is.State == state {
			return is.Count
		}
	}
	return 0
}

// names reports whether an object has a problem whose message contains a text and whose remedy
// contains a command.
func (g glance) names(object, text, command string) bool {
	return slices.ContainsFunc(g.Problems, func(p problemAtAGlance) bool {
		return p.Object.Name == object && strings.Contains(p.Message, text) && p.Command == command
	})
}

func TestStatusTellsHowEverythingStands(t *testing.T) {
	t.Parallel()
	mustTool(t, 0, "", "version")
	s := begin(t, "status")
	plain := fields{"volumeCreation": asRequested, "volumeStaging": greeting}
	s.create(s.provisioner(plain))
	s.keeps("1h")
	used, gone := s.bound(s.claim("used")), s.bound(s.claim("gone"))
	inTrash := &corev1.PersistentVolume{ObjectMeta: named(gone.Spec.VolumeName)}
	s.trash(gone, inTrash)
	spares := s.another("-spares", plain)
	s.pool(1, 2, func(set *tarn.PersistentVolumeSet) { set.Spec.Template.Spec.StorageClassName = spares })

	failing := s.another("-failing", fields{"volumeCreation": script{text: "echo no disk is left > /pav/error; exit 1"}.section(asRequested), "volumeStaging": greeting})
	waits := s.claimWith("waits", ofClass(failing))
	broken := s.provisioner(fields{"volumeCreation": fields{"capacity": "{{ requestedMinCapacity"}, "volumeStaging": greeting})
	broken.SetName(s.name + "-broken")
	s.create(broken)
	s.t.Cleanup(func() { s.deleteIfThere(broken) })

	fails := [3]string{"waits", "no disk is left", "tarn explain claim " + s.name + "/waits"}
	unaccepted := [3]string{broken.GetName(), "it is not accepted: ", "kubectl describe pavprovisioner " + broken.GetName()}
	s.glances("tarn status to tell of all of the case", func(g glance) string {
		for what, is := range map[string]bool{
			// The embedded cluster's controller runs alone, and so without a lease.
			"the controller": g.Controller.Leads || !inPods() && g.Controller.State == "missing", "a node agent": g.Nodes.WithAgent > 0 && g.Nodes.Total >= g.Nodes.WithAgent, "that something is wrong": !g.Healthy,
			"the provisioner, with two volumes": slices.Contains(g.Provisioners, provisionerAtAGlance{s.name, true, 2, 0}),
			"the one that fails":                slices.Contains(g.Provisioners, provisionerAtAGlance{failing, true, 0, 1}),
			"the one that is broken":            slices.Contains(g.Provisioners, provisionerAtAGlance{broken.GetName(), false, 0, 0}),
			"the pool":                          slices.Contains(g.Pools, poolAtAGlance{s.name, true, 1, 1, 0, 2}),
			"volumes by state":                  of(g.Volumes, "Bound") > 0 && of(g.Volumes, "Available") > 0 && of(g.Volumes, "InTrash") > 0,
			"claims by state":                   of(g.Claims, "Bound") > 0 && of(g.Claims, "Pending") > 0,
			"the trash":                         g.Trash.Volumes == of(g.Volumes, "InTrash"),
			"what fails":                        g.names(fails[0], fails[1], fails[2]),
			"what is broken":                    g.names(unaccepted[0], unaccepted[1], unaccepted[2]),
		} {
			if !is {
				return "there is not " + what
			}
		}
		return ""
	})
	out, _, status, err := tool("", "status")
	if err != nil || status != 1 || strings.Contains(out, "\x1b") {
		t.Errorf("tarn status ended with %d (%v) and printed\n%q", status, err, out)
	}
	s.says(out, "tarn is not healthy: ", "trash", s.name+"-broken", fails[2])

	s.remove(broken)
	s.remove(waits)
	s.glances("tarn status to be silent of what is mended", func(g glance) string {
		if g.names(fails[0], fails[1], fails[2]) || g.names(unaccepted[0], unaccepted[1], unaccepted[2]) {
			return "there is still what was wrong"
		}
		return ""
	})
	last := &corev1.PersistentVolume{ObjectMeta: named(used.Spec.VolumeName)}
	s.trash(used, last)
	mustTool(t, 0, "", "trash", "purge", inTrash.Name, last.Name, "--yes")
	s.gone(inTrash)
	s.gone(last)
}
