package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
)

const (
	apiServer = "kube-apiserver"
	etcd      = "etcd"

	// ticksPerSecond is the unit of /proc/PID/stat: Linux counts in hundredths of a second.
	ticksPerSecond = 100
)

// usage is what has been used so far.
type usage struct {
	seconds  map[string]float64 // of processor time, by component
	requests map[string]int     // answered by the API server, as "PUT persistentvolumes/status"
	conflict int                // of these, rejected because another write came first
	machine  machineTime
}

// machineTime is the time of a machine's processors so far, in any one unit.
type machineTime struct{ idle, stolen, all float64 }

func (c *cluster) usage(ctx context.Context) (usage, error) {
	u := usage{seconds: map[string]float64{}}
	metrics, err := c.client.RESTClient().Get().AbsPath("/metrics").SetHeader("Accept", "text/plain").DoRaw(ctx)
	if err != nil {
		return u, fmt.Errorf("reading the API server's metrics: %w", err)
	}
	if u.requests, u.conflict, err = requests(string(metrics)); err != nil {
		return u, err
	}
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return u, fmt.Errorf("processor time of the machine: %w", err)
	}
	if u.machine, err = machineTicks(string(stat)); err != nil {
		return u, err
	}
	for _, component := range []string{apiServer, etcd, c.subject.process} {
		if u.seconds[component], err = processorTime(c.pids[component]); err != nil {
			return u, fmt.Errorf("processor time of %s: %w", component, err)
		}
	}
	return u, nil
}

// processorTime is what a process has used, in seconds.
func processorTime(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return statSeconds(string(text))
}

// statSeconds reads user and system time, the 14th and 15th field. The 2nd is the program's name in
// parentheses, which may contain blanks.
func statSeconds(stat string) (float64, error) {
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("%q is no line of /proc/PID/stat", stat)
	}
	ticks := 0
	for _, field := range fields[11:13] {
		n, err := strconv.Atoi(field)
		if err != nil {
			return 0, fmt.Errorf("%q is no line of /proc/PID/stat: %w", stat, err)
		}
		ticks += n
	}
	return float64(ticks) / ticksPerSecond, nil
}

// machineTicks reads the sum of all processors, the first line of /proc/stat. The fourth number is
// the idle time, and the fifth the time waiting for a disk, which is idle too. The eighth is time
// that the machine's host gave to others. The later numbers are contained in earlier ones.
func machineTicks(stat string) (found machineTime, err error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return found, fmt.Errorf("%q is no first line of /proc/stat", line)
	}
	for i, field := range fields[1:9] {
		n, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return found, fmt.Errorf("%q is no first line of /proc/stat: %w", line, err)
		}
		switch found.all += n; i {
		case 3, 4:
			found.idle += n
		case 7:
			found.stolen += n
		}
	}
	return found, nil
}

// counted are the resources whose requests are counted.
var counted = map[string]bool{"persistentvolumes": true, "persistentvolumeclaims": true, "events": true}

// etcdGet begins the name for the API server's own reads of single objects in etcd. They are
// counted beside the requests that it answers.
const etcdGet = "etcd-get "

// requests reads apiserver_request_total from the API server's metrics, and from
// etcd_requests_total the reads of single objects.
func requests(metrics string) (byVerb map[string]int, conflicts int, err error) {
	byVerb = map[string]int{}
	for line := range strings.Lines(metrics) {
		metric, rest, _ := strings.Cut(line, "{")
		if metric != "apiserver_request_total" && metric != "etcd_requests_total" {
			continue
		}
		labels, value := sample(rest)
		name := nameOf(metric, labels)
		if name == "" {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return nil, 0, fmt.Errorf("reading a metric of the API server, %q: %w", strings.TrimSpace(line), err)
		}
		byVerb[name] += int(n)
		if labels["code"] == "409" {
			conflicts += int(n)
		}
	}
	return byVerb, conflicts, nil
}

// nameOf is the name under which requests are counted; "" for those that are not.
func nameOf(metric string, labels map[string]string) string {
	resource, sub := labels["resource"], labels["subresource"]
	switch {
	case !counted[resource]:
		return ""
	case metric == "etcd_requests_total" && labels["operation"] == "get":
		return etcdGet + resource
	case metric == "etcd_requests_total":
		return ""
	case sub != "":
		return labels["verb"] + " " + resource + "/" + sub
	}
	return labels["verb"] + " " + resource
}

// sample parses the part of a metrics line after the first brace. No value contains a comma.
func sample(rest string) (labels map[string]string, value string) {
	text, value, _ := strings.Cut(rest, "} ")
	labels = map[string]string{}
	for pair := range strings.SplitSeq(text, ",") {
		key, quoted, _ := strings.Cut(pair, "=")
		labels[key] = strings.Trim(quoted, `"`)
	}
	return labels, strings.TrimSpace(value)
}
