//go:build e2e

package e2e

import (
	"errors"
	"net"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// commandLine is the program tarn in the case's namespace, with one of its two ways to reach the
// applications.
type commandLine struct {
	s *scenario
	// way names it in messages.
	way string
	// flags are added to every command, and env to every process.
	flags, env []string
}

// ways gives two command lines. One calls Kubernetes directly; the other calls a server and has no
// access to the cluster.
func (c *restCaller) ways() []commandLine {
	server := []string{"--server", c.onThisMachine()}
	if c.authority != "" {
		server = append(server, "--server-ca", c.authority)
	}
	return []commandLine{
		{c.s, "straight to Kubernetes", nil, nil},
		{c.s, "by a server", server, []string{"KUBECONFIG=/nonexistent", "TARN_TOKEN=" + c.token}},
	}
}

// onThisMachine is an address of the API on this machine, because tarn sends no token to another
// machine without TLS. It forwards calls to a service of the cluster.
func (c *restCaller) onThisMachine() string {
	c.s.t.Helper()
	there, err := url.Parse(c.url)
	if err != nil {
		c.s.t.Fatal(err)
	}
	if net.ParseIP(there.Hostname()).IsLoopback() {
		return c.url
	}
	here := httptest.NewServer(httputil.NewSingleHostReverseProxy(there))
	c.s.t.Cleanup(here.Close)
	return here.URL
}

// String names it in messages.
func (l commandLine) String() string { return l.way }

// runs runs a command, wants the given exit status, and gives its output.
func (l commandLine) runs(wantStatus int, input string, args ...string) (stdout, stderr string) {
	l.s.t.Helper()
	if tarnBinary() == "" {
		l.s.t.Skip("the program tarn is not built: run `make build`")
	}
	command := exec.Command(tarnBinary(), append(append(args, "--namespace", l.s.name), l.flags...)...)
	command.Env = append(os.Environ(), l.env...)
	var out, complaint strings.Builder
	command.Stdin, command.Stdout, command.Stderr = strings.NewReader(input), &out, &complaint
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || command.ProcessState.ExitCode() != wantStatus {
		l.s.t.Fatalf("tarn %s, %s: exit status %d, want %d (%v)\n%s%s", strings.Join(args, " "), l, command.ProcessState.ExitCode(), wantStatus, err, out.String(), complaint.String())
	}
	return out.String(), complaint.String()
}

// parsed runs a command that must succeed, and parses its output in a format.
func (l commandLine) parsed(format, input string, args ...string) any {
	l.s.t.Helper()
	out, _ := l.runs(0, input, append(args, "--output", format)...)
	var value any
	if err := yaml.Unmarshal([]byte(out), &value); err != nil { // JSON is YAML
		l.s.t.Fatalf("%v in:\n%s", err, out)
	}
	if isJSON := out[0] == '{' || out[0] == '['; isJSON != (format == "json") && out != "[]\n" { // both write this one the same
		l.s.t.Errorf("tarn %s --output %s, %s, printed\n%s", strings.Join(args, " "), format, l, out)
	}
	return value
}

// holds wants a value at a path of a parsed output. Its steps are keys of objects and indexes of
// lists.
func (s *scenario) holds(value any, want any, path ...any) {
	s.t.Helper()
	got := value
	for _, step := range path {
		switch within := got.(type) {
		case map[string]any:
			name, _ := step.(string)
			got = within[name]
		case []any:
			if i, is := step.(int); is && i < len(within) {
				got = within[i]
				continue
			}
			got = nil
		default:
			got = nil
		}
	}
	if !reflect.DeepEqual(got, want) {
		s.t.Errorf("%v is %v, want %v in\n%v", path, got, want, value)
	}
}

// kiosk is an application of one pod with a volume of each default kind, except that the first
// cannot grow.
const kiosk = `[app]
image = "busybox:1.36"
command = ["sh", "-c", "` + stays + `"]

[[volumes]]
name = "data"
mountPath = "/data"
size = "1Gi"
storageClass = "local-path"

[[volumes]]
name = "media"
mountPath = "/media"
size = "1Gi"
accessMode = "rwx"
`

func TestTheCommandLineRunsAnApplicationByBothItsWays(t *testing.T) {
	t.Parallel()
	s := begin(t, "app-command")
	s.needsClasses("ovh-csi-nfs", "local-path")
	s.app("kiosk")
	s.app("late")
	ways := s.restCaller().ways()
	straight, server := ways[0], ways[1]
	// Both ways give the same answer, one as JSON and the other as YAML.
	both := func(input string, args ...string) any {
		t.Helper()
		one, other := straight.parsed("json", input, args...), server.parsed("yaml", input, args...)
		if !reflect.DeepEqual(one, other) {
			t.Errorf("tarn %s says straight\n%v\nand by a server\n%v", strings.Join(args, " "), one, other)
		}
		return one
	}
	// refuses wants both ways to fail with a status and a message.
	refuses := func(status int, message string, args ...string) {
		t.Helper()
		for _, way := range ways {
			out, said := way.runs(status, kiosk, args...)
			if !strings.Contains(said, message) || out != "" {
				t.Errorf("tarn %s, %s, printed %q and said %q, want %q", strings.Join(args, " "), way, out, said, message)
			}
		}
	}
	s.holds(both("", "app", "list"), []any{})
	refuses(1, "tarn: app 'kiosk' not found\n", "app", "show", "kiosk")
	planned := both(kiosk, "app", "plan", "kiosk", "--file", "-")
	s.holds(planned, "create", "changes", 0, "action")
	s.holds(planned, "paas-app-kiosk-media", "changes", 1, "pvc_name")
	s.holds(planned, "Recreate", "strategy")

	for _, way := range ways { // the second finds everything deployed
		deployed := way.parsed("json", kiosk, "app", "deploy", "kiosk", "--file", "-")
		s.holds(deployed, "Ready", "app", "status")
		s.holds(deployed, 1., "app", "ready_replicas")
	}
	s.holds(both("", "app", "list"), "kiosk", 0, "id")
	shown := both("", "app", "show", "kiosk")
	s.holds(shown, "busybox:1.36", "image")
	s.holds(shown, "local-path", "volumes", 0, "storage_class")
	s.holds(shown, "ReadWriteMany", "volumes", 1, "access_mode")
	s.kioskStatus()

	refuses(1, "tarn: cannot scale to 3 replicas: volume 'data' is ReadWriteOnce (max 1 replica). Re-create the volume with accessMode 'ReadWriteMany' to scale out.\n", "app", "scale", "kiosk", "3")
	refuses(2, `tarn: PODS "many" is not a number of pods; write a whole number such as 3; see tarn app scale --help`, "app", "scale", "kiosk", "many")
	refuses(2, "unknown flag: --fast", "app", "list", "--fast")
	refuses(1, "tarn: storage class 'local-path' does not allow expansion\n", "volume", "resize", "kiosk", "data", "2")
	refuses(1, "tarn: size must be strictly greater than current size (no shrink)\n", "volume", "resize", "kiosk", "media", "1Gi")
	refuses(1, "tarn: volume 'none' not found on app 'kiosk'\n", "volume", "resize", "kiosk", "none", "2")
	refuses(2, `SIZE "2Ti" is not a valid size in GiB; write it as 20 or 20Gi`, "volume", "resize", "kiosk", "media", "2Ti")

	s.holds(straight.parsed("yaml", "", "volume", "resize", "kiosk", "media", "2"), "Bound", "status")
	s.holds(server.parsed("json", "", "volume", "resize", "kiosk", "media", "3Gi"), 3., "size_gi")
	volumes := both("", "volume", "list")
	s.holds(volumes, "kiosk", 1, "app")
	s.holds(volumes, 3., 1, "size_gi")
	s.holds(volumes, "Bound", 1, "status")

	s.holds(straight.parsed("yaml", "", "app", "scale", "kiosk", "0"), 0., "ready_replicas")
	s.holds(server.parsed("json", "", "app", "scale", "kiosk", "1"), 1., "ready_replicas")
	s.commandsEnd(ways, refuses)
}

// kioskStatus runs status for the case's namespace, and for the whole cluster. Other cases may have
// problems there, but the exit status must match the answer.
func (s *scenario) kioskStatus() {
	s.t.Helper()
	straight := commandLine{s: s, way: "straight to Kubernetes"}
	ours := straight.parsed("json", "", "status")
	s.holds(ours, true, "healthy")
	s.holds(ours, "namespace "+s.name+" is healthy", "verdict")
	s.holds(ours, "kiosk", "apps", 0, "name")
	s.holds(ours, true, "apps", 0, "ready")
	s.holds(straight.parsed("yaml", "", "status"), 2., "claims", 0, "count")

	out, said, status, err := tool("", "status", "--output", "json")
	if err != nil {
		s.t.Fatal(err)
	}
	all := decoded[map[string]any](s, out)
	if healthy, is := all["healthy"].(bool); !is || healthy != (status == 0) || status > 1 {
		s.t.Errorf("tarn status ended with %d and said %s\n%s", status, out, said)
	}
	s.says(out, `"namespace": "`+s.name+`"`)
}

// commandsEnd deploys an application that waits in vain for a missing class, until its timeout.
// Then it deletes both applications.
func (s *scenario) commandsEnd(ways []commandLine, refuses func(status int, message string, args ...string)) {
	s.t.Helper()
	waits := "[app]\nimage = \"busybox:1.36\"\n\n[[volumes]]\nname = \"data\"\nmountPath = \"/data\"\nsize = \"1Gi\"\nstorageClass = \"" + s.name + "\"\n"
	for _, way := range ways {
		_, said := way.runs(3, waits, "app", "deploy", "late", "--file", "-", "--timeout", "1s")
		s.says(said, "tarn: after 1s app late is ", "; tarn explain app "+s.name+"/late says why")
	}
	claims := [][]any{{"paas-app-late-data"}, {"paas-app-kiosk-data", "paas-app-kiosk-media"}}
	for i, id := range []string{"late", "kiosk"} {
		out, said := ways[i].runs(1, "", "app", "delete", id)
		s.says(out+said, "would delete app "+id, "tarn: nothing was changed; to do it, add --yes")
		deleted := ways[i].parsed("json", "", "app", "delete", id, "--yes")
		s.holds(deleted, claims[i], "deleted")
		s.holds(deleted, []any{}, "preserved")
		refuses(1, "tarn: app '"+id+"' not found\n", "app", "show", id)
	}
}
