package rules

import (
	"path"
	"strings"
	"testing"
)

// rule is one house rule.
type rule struct {
	name  string
	check func([]file) []string
}

// house gives all rules for a checkout in a directory.
func house(checkout string) []rule {
	return []rule{
		{"every Go file parses", parses},
		{"imports follow the table", importTable},
		{"a plan only computes", purePlans},
		{"a controller comes back soon after an outage", pauses},
		{"a controller has its files", controllerFilesThere},
		{"domain packages are pure", pureWords},
		{"every package says what it is for", packageComments},
		{"files stay short", fileSizes},
		{"functions stay short", functionSizes},
		{"nothing deletes recursively", recursiveDeletes},
		{"nothing sleeps", sleeps},
		{"what can tell is not polled", polls},
		{"only commands print", prints},
		{"nothing panics", panics},
		{"a skipped test says why", silentSkips},
		{"no path of a build machine", machinePaths(checkout)},
		{"a test that a document names exists", namedTests},
		{"a numbered case of the binder is in its list", numberedCases},
		{"a metric is told of", untoldMetrics},
		{"prose is plain", plainProse},
		{"messages are plain", plainMessages},
		{"comments are plain", plainComments},
		{"links lead somewhere", deadLinks},
		{"a case that is not parallel has a cluster of its own", loneCases},
		{"what a script chooses cases by is there", strayCases},
	}
}

// exceptions are the places where a rule does not apply, each with a reason. An empty function
// means the whole file; else the exception covers messages that name the function. An exception
// that is no longer needed is a failure.
var exceptions = []struct{ rule, file, function, reason string }{
	{"nothing deletes recursively", "cluster/internal/host/mounts.go", "", "the one place that removes a cluster's folder, after it has seen that nothing is mounted below"},
	{"nothing sleeps", "cluster/internal/host/cgroups.go", "", "cgroup v1 has no event for a group that has become empty"},
	{"nothing panics", "cluster/internal/cli/image.go", "", "a flag that the same function has defined"},
	{"messages are plain", "internal/app/plan/answer.go", "", "Refused and refuse are values of the REST API"},
	{"what can tell is not polled", "internal/controller/bind/watches.go", "resyncs", "a net under the events, each ten minutes"},
	{"what can tell is not polled", "internal/controller/bind/events.go", "newEventQueue", "nothing is looked for: an Event rests until a time that is known"},
	{"what can tell is not polled", "internal/node/agent.go", "run", "a socket that another process still holds tells nobody when it is let go"},
	{"what can tell is not polled", "internal/node/driver/drivers.go", "stopGracefully", "nothing is looked for: it bounds how long a call may still take"},
	{"what can tell is not polled", "internal/node/podend/follow.go", "Follow", "the runtime does not tell when it can be reached again, and the pauses grow"},
	{"what can tell is not polled", "internal/node/stages/podend.go", "watchProcesses", "the event has come: what is staged at the same time is looked for together"},
	{"what can tell is not polled", "internal/node/stages/targets.go", "releaseLoop", "that the kubelet has forgotten a target is no event, and the pauses grow"},
	{"what can tell is not polled", "internal/node/stages/watch.go", "watchMounts", "the event has come: it lets a pod that starts change its dozen mounts first"},
	{"what can tell is not polled", "internal/node/stages/watch.go", "watchServers", "the death of a file system's server (FUSE) has no event"},
}

// excepted gives the index of the exception that covers a message, or -1.
func excepted(rule, message string) int {
	for i, e := range exceptions {
		if e.rule == rule && strings.HasPrefix(message, e.file+":") && (e.function == "" || strings.Contains(message, " in "+e.function+": ")) {
			return i
		}
	}
	return -1
}

func TestTheHouseKeepsItsRules(t *testing.T) {
	top := root(t)
	files := readTree(t, top)
	if len(goFiles(files)) < 10 {
		t.Fatalf("found %d Go files below %s; the rules look at the wrong place", len(goFiles(files)), top)
	}
	needed := map[int]bool{}
	for _, r := range house(top) {
		t.Run(r.name, func(t *testing.T) {
			for _, message := range r.check(files) {
				if i := excepted(r.name, message); i >= 0 {
					needed[i] = true
					continue
				}
				t.Error(message)
			}
		})
	}
	for i, e := range exceptions {
		if !needed[i] {
			t.Errorf("%s: the exception from %q is no longer needed", e.file, e.rule)
		}
	}
}

// pretended is the directory in which the snippets below pretend to lie.
const pretended = "/builds/17/tarn"

func TestEveryRuleRefusesWhatItForbids(t *testing.T) {
	rules := map[string]rule{}
	for _, r := range house(pretended) {
		rules[r.name] = r
	}
	tried := map[string]bool{}
	for _, o := range offences {
		t.Run(o.rule+"/"+o.what, func(t *testing.T) {
			r, known := rules[o.rule]
			if !known {
				t.Fatalf("there is no rule %q", o.rule)
			}
			files := []file{newFile(o.file, []byte(o.text))}
			for _, name := range o.beside {
				files = append(files, newFile(path.Join(path.Dir(o.file), name), []byte("package "+path.Base(path.Dir(o.file))+"\n")))
			}
			messages := r.check(files)
			if len(messages) != 1 || !strings.Contains(messages[0], o.want) {
				t.Errorf("got %q, want one message with %q", messages, o.want)
			}
		})
		tried[o.rule] = true
	}
	for name := range rules {
		if !tried[name] {
			t.Errorf("no snippet proves that the rule %q can refuse", name)
		}
	}
}

func TestNoRuleRefusesWhatIsAllowed(t *testing.T) {
	for _, a := range allowed {
		t.Run(a.what, func(t *testing.T) {
			files := []file{newFile(a.file, []byte(a.text))}
			if row, home := place(files[0].dir()); row.name == "controllers" {
				for _, name := range controllerFiles {
					files = append(files, newFile(path.Join(home, name), []byte("package "+path.Base(home)+"\n")))
				}
			}
			for _, r := range house(pretended) {
				for _, message := range r.check(files) {
					t.Errorf("%s: %s", r.name, message)
				}
			}
		})
	}
}

func TestTheMostSpecificRowOfTheTableCounts(t *testing.T) {
	for _, c := range []struct{ dir, wantRow, wantHome string }{
		{"internal/steppod", "adapters", "internal/steppod"},
		{"internal/steppod/steppodtest", "fakes", "internal/steppod/steppodtest"},
		{"internal/controller/bind/queue", "controllers", "internal/controller/bind"},
		{"internal/api/client", "client", "internal/api/client"},
		{"internal/nodes", "", ""},
	} {
		row, home := place(c.dir)
		if row.name != c.wantRow || home != c.wantHome {
			t.Errorf("place(%q) = %q, %q, want %q, %q", c.dir, row.name, home, c.wantRow, c.wantHome)
		}
	}
}

func TestTheTableNamesOnlyRowsThatExist(t *testing.T) {
	rows := map[string]bool{}
	for _, row := range table {
		rows[row.name] = true
	}
	for _, row := range table {
		for _, name := range row.may {
			if !rows[name] {
				t.Errorf("row %q may import %q, which is no row", row.name, name)
			}
		}
		for _, dir := range row.dirs {
			if path.Clean(dir) != dir {
				t.Errorf("row %q names the folder %q in another form than %q", row.name, dir, path.Clean(dir))
			}
		}
	}
}
