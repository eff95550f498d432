package results

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// Machine is where it was measured.
type Machine struct {
	Processor  string `json:"processor"`
	Processors int    `json:"processors"`
	Memory     string `json:"memory"`
	Kernel     string `json:"kernel"`
	// Load is the machine's load average of the last minute before the first run: what
	// is much over 0 was somebody else's.
	Load       string `json:"loadBefore"`
	Go         string `json:"go"`
	Kubernetes string `json:"kubernetes"`
	Tarn       string `json:"tarn"`
}

// ThisMachine is the one this runs on. The programs say which Kubernetes and which Tarn are
// measured; without a tarn it is the one beside tarn-cluster.
func ThisMachine(ctx context.Context, cluster, tarn string) Machine {
	load, _, _ := strings.Cut(firstLine("/proc/loadavg", ""), " ")
	if tarn == "" {
		tarn = filepath.Join(filepath.Dir(cluster), "tarn")
	}
	return Machine{
		Processor: firstLine("/proc/cpuinfo", "model name"), Processors: runtime.NumCPU(), Memory: firstLine("/proc/meminfo", "MemTotal"),
		Kernel: firstLine("/proc/sys/kernel/osrelease", ""), Load: load, Go: runtime.Version(),
		Kubernetes: says(ctx, cluster, "--version"), Tarn: says(ctx, tarn, "version"),
	}
}

// says is the first line a program prints.
func says(ctx context.Context, program string, args ...string) string {
	out, err := exec.CommandContext(ctx, program, args...).Output()
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}

// firstLine is what follows a prefix in the first line of a file that begins with it;
// empty where there is none.
func firstLine(path, prefix string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if rest, found := strings.CutPrefix(line, prefix); found {
			return strings.TrimLeft(strings.TrimSpace(rest), ": \t")
		}
	}
	return ""
}
