package results

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Machine describes the machine of a measurement.
type Machine struct {
	Processor  string `json:"processor"`
	Processors int    `json:"processors"`
	Memory     string `json:"memory"`
	Kernel     string `json:"kernel"`
	// Load is the machine's load average of the last minute before the first run. Much more than 0
	// means that other programs were running.
	Load string `json:"loadBefore"`
	// NewPage is the cost of the first write to a page of memory, in nanoseconds. It was 17,000 on
	// a virtual machine that computed at the usual speed but started pods at less than half of it.
	NewPage int64 `json:"newPageNanoseconds"`
	// HugePages says whether the kernel gives processes memory by 2 MiB, which can lower that cost:
	// always, madvise (only on request) or never.
	HugePages  string `json:"hugePages"`
	Go         string `json:"go"`
	Kubernetes string `json:"kubernetes"`
	Tarn       string `json:"tarn"`
}

// ThisMachine describes this machine. The programs report the measured versions of Kubernetes and
// Tarn. An empty tarn means the one beside tarn-cluster.
func ThisMachine(ctx context.Context, cluster, tarn string) Machine {
	load, _, _ := strings.Cut(firstLine("/proc/loadavg", ""), " ")
	if tarn == "" {
		tarn = filepath.Join(filepath.Dir(cluster), "tarn")
	}
	return Machine{
		Processor: firstLine("/proc/cpuinfo", "model name"), Processors: runtime.NumCPU(), Memory: firstLine("/proc/meminfo", "MemTotal"),
		Kernel: firstLine("/proc/sys/kernel/osrelease", ""), Load: load,
		NewPage: newPage().Nanoseconds(), HugePages: hugePages(), Go: runtime.Version(),
		Kubernetes: says(ctx, cluster, "--version"), Tarn: says(ctx, tarn, "version"),
	}
}

// newPage is the mean time of the first write to a page of 4 KiB; 0 where it cannot be measured.
func newPage() time.Duration {
	const pages = 1 << 14
	memory, err := unix.Mmap(-1, 0, pages*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return 0
	}
	defer unix.Munmap(memory)                  //nolint:errcheck // it goes with the process
	unix.Madvise(memory, unix.MADV_NOHUGEPAGE) //nolint:errcheck // where there are no huge pages
	began := time.Now()
	for i := 0; i < len(memory); i += 4096 {
		memory[i] = 1
	}
	return time.Since(began) / pages
}

// hugePages is the word in brackets of "always [madvise] never".
func hugePages() string {
	_, rest, _ := strings.Cut(firstLine("/sys/kernel/mm/transparent_hugepage/enabled", ""), "[")
	word, _, _ := strings.Cut(rest, "]")
	return word
}

// says is the first line of a program's output.
func says(ctx context.Context, program string, args ...string) string {
	out, err := exec.CommandContext(ctx, program, args...).Output()
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}

// firstLine is the rest of the first line in a file that begins with a prefix; "" where there is
// none.
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
