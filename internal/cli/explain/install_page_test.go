package explain

import (
	"os"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// Users search docs/operations/troubleshooting.md for the words that they see on a screen.
func TestWhatTheTroubleshootingPageQuotesIsWhatIsSaid(t *testing.T) {
	mount := corev1.Event{Reason: "FailedMount", Message: "MountVolume.SetUp failed: rpc error: code = Internal desc = no loop device", LastTimestamp: began}
	said := map[string]*world{
		"but no tarn controller runs":                                                    with(newWorld(), func(w *world) { w.view.Controller.Spec.RenewTime.Time = began.Time }),
		"no lease shows whether a tarn controller runs":                                  with(newWorld(), func(w *world) { w.view.Controller = nil }),
		"has not started although tarn controller runs":                                  newWorld(),
		"Tarn's node agent on node ... does not respond":                                 newWorld().bound().askedPod(),
		"the ... pod ... is not scheduled: ...":                                          newWorld().recorded(tarnv1.VolumeCreating).step(tarnv1.StepCreation, unscheduled, deadline(7200)),
		"the ... pod ... cannot pull its image: ...":                                     newWorld().recorded(tarnv1.VolumeCreating).step(tarnv1.StepCreation, waits("ImagePullBackOff", "no such image"), deadline(7200)),
		"volume ... cannot be staged on node ...: ...":                                   with(newWorld().bound().askedPod(), func(w *world) { w.view.Pod.Events = []corev1.Event{mount} }),
		"the node agent on ... has not read what it left in /pav":                        newWorld().recorded(tarnv1.VolumeCreating).step(tarnv1.StepCreation, ended1ago, deadline(7200)),
		"driver ... is not registered on node ...: Tarn's node agent does not run there": with(newWorld().bound().askedPod(), func(w *world) { w.view.Pod.Drivers = nil }),
	}
	page, err := os.ReadFile("../../../docs/operations/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "\n## When something is wrong\n")
	_, rows, hasTable := strings.Cut(section, "\n|---|---|\n")
	if !found || !hasTable {
		t.Fatal("docs/operations/troubleshooting.md has no table of what is said when something is wrong")
	}
	table, _, _ := strings.Cut(rows, "\n\n")
	for row := range strings.Lines(table) {
		says := strings.Split(row, "|")[1]
		quoted := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(says, -1)
		if len(quoted) == 0 {
			t.Errorf("a row quotes nothing: %q", says)
		}
		for _, q := range quoted {
			w := said[q[1]]
			if w == nil {
				t.Errorf("docs/operations/troubleshooting.md quotes %q, of which this test knows no cluster where it is said", q[1])
				continue
			}
			delete(said, q[1])
			pattern := strings.ReplaceAll(regexp.QuoteMeta(q[1]), `\.\.\.`, `.+`)
			if verdict := chain(w.view).Verdict; !regexp.MustCompile(pattern).MatchString(verdict) {
				t.Errorf("docs/operations/troubleshooting.md quotes %q, and what is said is %q", q[1], verdict)
			}
		}
	}
	for quote := range said {
		t.Errorf("docs/operations/troubleshooting.md does not say %q", quote)
	}
}
