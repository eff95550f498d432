package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
)

// privileges collects what the Pod Security level of a pod's namespace must allow. Kubernetes' own
// evaluator needs a whole pod; here any field may still be a template.
type privileges struct {
	*linter
	namespace string
}

// Pod Security levels that a pod may need. For a level with a version, other versions of it may
// decide differently.
const (
	needsBaseline   = "baseline"
	needsPrivileged = "privileged"
	sinceProbes     = needsPrivileged + " from Kubernetes 1.34 on"
	untilUserSpaces = needsPrivileged + " before Kubernetes 1.35, then baseline"
)

// baselineCapabilities are the capabilities that a container may add at level baseline.
var baselineCapabilities = []string{
	"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}

// baselineSysctls are the sysctls that a pod may set at level baseline.
var baselineSysctls = []string{
	"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports", "net.ipv4.ip_unprivileged_port_start",
	"net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes",
	"net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_rmem", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem",
}

// baselineSecurity are the fields of a pod's or container's security context that level baseline
// restricts. Each must have one of these values, or be unset.
var baselineSecurity = []struct {
	of, key string
	values  []string
}{
	{"seccompProfile", "type", []string{"RuntimeDefault", "Localhost"}},
	{"appArmorProfile", "type", []string{"RuntimeDefault", "Localhost"}},
	{"seLinuxOptions", "type", []string{"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}},
	{"seLinuxOptions", "user", []string{""}},
	{"seLinuxOptions", "role", []string{""}},
	{"windowsOptions", "hostProcess", []string{"false"}},
}

// note records the level that a field needs. Where the field is a template, the note says that it
// may need it.
func (p *privileges) note(path string, value any, what, level string) {
	if text, ok := value.(string); ok && isTemplate(text) {
		what += ", if its template says so"
	}
	p.say(levelNote, path, "%s: namespace %q must allow the Pod Security level %s", what, p.namespace, level)
}

func (p *privileges) check(step tarnv1.Step, at string, template fields) {
	metadata, _ := template["metadata"].(fields)
	spec, _ := template["spec"].(fields)
	p.checkAnnotations(at+".metadata.annotations", metadata)
	at += ".spec"
	for _, key := range []string{"hostNetwork", "hostPID", "hostIPC"} {
		if asked(spec[key]) {
			p.note(at+"."+key, spec[key], "needs "+key, needsPrivileged)
		}
	}
	for i, volume := range items(spec["volumes"]) {
		if host, ok := volume["hostPath"]; ok {
			where := "a hostPath"
			if of, _ := host.(fields); of["path"] != nil {
				where = fmt.Sprintf("hostPath %v", of["path"])
			}
			p.note(fmt.Sprintf("%s.volumes[%d].hostPath", at, i), host, "needs "+where, needsPrivileged)
		}
	}
	p.checkSecurity(at+".securityContext", spec)
	for _, c := range containers(at, spec) {
		p.checkContainer(c, spec["hostUsers"] == false)
	}
	switch step {
	case tarnv1.StepStaging, tarnv1.StepUnstaging, tarnv1.StepNodeExpansion:
		p.note(at, nil, fmt.Sprintf("needs the hostPath that Tarn mounts at %s in each %s pod", reservedMount, step), needsPrivileged)
	}
}

// checkAnnotations checks the AppArmor profiles of containers in annotations. They were written
// there before Kubernetes had fields for them.
func (p *privileges) checkAnnotations(at string, metadata fields) {
	annotations, _ := metadata["annotations"].(fields)
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		profile := fmt.Sprint(annotations[key])
		if strings.HasPrefix(key, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix) && profile != "" &&
			profile != corev1.DeprecatedAppArmorBetaProfileRuntimeDefault && !strings.HasPrefix(profile, corev1.DeprecatedAppArmorBetaProfileNamePrefix) {
			p.note(steppod.JoinField(at, key), annotations[key], "needs AppArmor profile "+profile, needsPrivileged)
		}
	}
}

// checkSecurity checks the security context of a pod or a container.
func (p *privileges) checkSecurity(at string, of fields) {
	security, _ := of["securityContext"].(fields)
	for _, f := range baselineSecurity {
		inner, _ := security[f.of].(fields)
		if value := inner[f.key]; value != nil && !slices.Contains(f.values, fmt.Sprint(value)) {
			p.note(fmt.Sprintf("%s.%s.%s", at, f.of, f.key), value, fmt.Sprintf("needs %s.%s %v", f.of, f.key, value), needsPrivileged)
		}
	}
	for i, sysctl := range items(security["sysctls"]) {
		if name, _ := sysctl["name"].(string); name != "" && !slices.Contains(baselineSysctls, name) {
			p.note(fmt.Sprintf("%s.sysctls[%d].name", at, i), name, "needs sysctl "+name, needsPrivileged)
		}
	}
}

// checkContainer checks a container. ownUsers says that the pod has a user namespace of its own.
func (p *privileges) checkContainer(c container, ownUsers bool) {
	security, _ := c.fields["securityContext"].(fields)
	at := c.path + ".securityContext"
	if asked(security["privileged"]) {
		p.note(at+".privileged", security["privileged"], "needs privileged", needsPrivileged)
	}
	if proc := security["procMount"]; proc != nil && proc != string(corev1.DefaultProcMount) {
		level := needsPrivileged
		if ownUsers {
			level = untilUserSpaces
		}
		p.note(at+".procMount", proc, fmt.Sprintf("needs procMount %v", proc), level)
	}
	capabilities, _ := security["capabilities"].(fields)
	added, _ := capabilities["add"].([]any)
	for i, capability := range added {
		level := needsPrivileged
		if slices.Contains(baselineCapabilities, fmt.Sprint(capability)) {
			level = needsBaseline
		}
		p.note(fmt.Sprintf("%s.capabilities.add[%d]", at, i), capability, fmt.Sprintf("needs capability %v", capability), level)
	}
	p.checkSecurity(at, c.fields)
	for i, port := range items(c.fields["ports"]) {
		if host := port["hostPort"]; host != nil && fmt.Sprint(host) != "0" {
			p.note(fmt.Sprintf("%s.ports[%d].hostPort", c.path, i), host, fmt.Sprintf("needs hostPort %v", host), needsPrivileged)
		}
	}
	lifecycle, _ := c.fields["lifecycle"].(fields)
	for _, key := range []string{"livenessProbe", "readinessProbe", "startupProbe"} {
		p.checkHandler(c.path+"."+key, c.fields[key])
	}
	for _, key := range []string{"postStart", "preStop"} {
		p.checkHandler(c.path+".lifecycle."+key, lifecycle[key])
	}
}

// checkHandler checks the host that the kubelet probes. Without a host it probes the pod, which
// every level allows.
func (p *privileges) checkHandler(at string, value any) {
	handler, _ := value.(fields)
	for _, kind := range []string{"httpGet", "tcpSocket"} {
		of, _ := handler[kind].(fields)
		if host := of["host"]; host != nil && host != "" {
			p.note(fmt.Sprintf("%s.%s.host", at, kind), host, fmt.Sprintf("needs %s.host %v", kind, host), sinceProbes)
		}
	}
}

// asked says whether a switch is on, or whether a template may switch it on.
func asked(value any) bool {
	text, _ := value.(string)
	return value == true || isTemplate(text)
}
