package cli

import (
	"slices"
	"strings"
	"testing"
)

// Each pod is a validation pod, because pods of a node always need Tarn's hostPath. The levels are
// Kubernetes' Pod Security Standards.
func TestLintTellsWhatThePodSecurityLevelMustAllow(t *testing.T) {
	const privileged, pod = ": namespace \"tarn-volumes\" must allow the Pod Security level privileged", "spec.volumeValidation.podTemplate."
	const container = pod + "spec.containers[0]."
	for name, c := range map[string]struct {
		// metadata, spec and container are added to the required fields.
		metadata, spec, container string
		want                      []string
	}{
		"nothing": {},
		"what baseline lets do": {
			metadata: `annotations: {container.apparmor.security.beta.kubernetes.io/main: runtime/default, container.apparmor.security.beta.kubernetes.io/b: localhost/x, other: unconfined}`,
			spec: `hostNetwork: false, securityContext: {seccompProfile: {type: RuntimeDefault}, appArmorProfile: {type: Localhost, localhostProfile: x},
			  seLinuxOptions: {type: container_t, level: "s0:c1,c2"}, windowsOptions: {hostProcess: false}, sysctls: [{name: net.ipv4.tcp_rmem, value: "1"}]}`,
			container: `ports: [{containerPort: 80, hostPort: 0}, {containerPort: 81}], livenessProbe: {httpGet: {port: 80, path: /}},
			  securityContext: {privileged: false, procMount: Default, seccompProfile: {type: Localhost, localhostProfile: x}, seLinuxOptions: {type: ""}}`,
		},
		"hostPort":              {container: `ports: [{containerPort: 80}, {containerPort: 81, hostPort: 8081}]`, want: []string{container + "ports[1].hostPort: needs hostPort 8081" + privileged}},
		"hostPort by template":  {container: `ports: [{containerPort: 80, hostPort: "{{ params.port }}"}]`, want: []string{container + "ports[0].hostPort: needs hostPort {{ params.port }}, if its template says so" + privileged}},
		"seccomp of the pod":    {spec: `securityContext: {seccompProfile: {type: Unconfined}}`, want: []string{pod + "spec.securityContext.seccompProfile.type: needs seccompProfile.type Unconfined" + privileged}},
		"seccomp":               {container: `securityContext: {seccompProfile: {type: Unconfined}}`, want: []string{container + "securityContext.seccompProfile.type: needs seccompProfile.type Unconfined" + privileged}},
		"AppArmor of the pod":   {spec: `securityContext: {appArmorProfile: {type: Unconfined}}`, want: []string{pod + "spec.securityContext.appArmorProfile.type: needs appArmorProfile.type Unconfined" + privileged}},
		"AppArmor":              {container: `securityContext: {appArmorProfile: {type: Unconfined}}`, want: []string{container + "securityContext.appArmorProfile.type: needs appArmorProfile.type Unconfined" + privileged}},
		"AppArmor, annotated":   {metadata: `annotations: {container.apparmor.security.beta.kubernetes.io/main: unconfined}`, want: []string{pod + "metadata.annotations['container.apparmor.security.beta.kubernetes.io/main']: needs AppArmor profile unconfined" + privileged}},
		"procMount":             {container: `securityContext: {procMount: Unmasked}`, want: []string{container + "securityContext.procMount: needs procMount Unmasked" + privileged}},
		"procMount, own users":  {spec: `hostUsers: false`, container: `securityContext: {procMount: Unmasked}`, want: []string{container + "securityContext.procMount: needs procMount Unmasked" + privileged + " before Kubernetes 1.35, then baseline"}},
		"sysctl":                {spec: `securityContext: {sysctls: [{name: net.ipv4.tcp_syncookies, value: "1"}, {name: net.core.somaxconn, value: "1"}]}`, want: []string{pod + "spec.securityContext.sysctls[1].name: needs sysctl net.core.somaxconn" + privileged}},
		"SELinux of the pod":    {spec: `securityContext: {seLinuxOptions: {user: u, role: r}}`, want: []string{pod + "spec.securityContext.seLinuxOptions.user: needs seLinuxOptions.user u" + privileged, pod + "spec.securityContext.seLinuxOptions.role: needs seLinuxOptions.role r" + privileged}},
		"SELinux":               {container: `securityContext: {seLinuxOptions: {type: spc_t}}`, want: []string{container + "securityContext.seLinuxOptions.type: needs seLinuxOptions.type spc_t" + privileged}},
		"hostProcess of a pod":  {spec: `securityContext: {windowsOptions: {hostProcess: true}}`, want: []string{pod + "spec.securityContext.windowsOptions.hostProcess: needs windowsOptions.hostProcess true" + privileged}},
		"hostProcess":           {container: `securityContext: {windowsOptions: {hostProcess: true}}`, want: []string{container + "securityContext.windowsOptions.hostProcess: needs windowsOptions.hostProcess true" + privileged}},
		"a host to be probed":   {container: `readinessProbe: {tcpSocket: {port: 80, host: h}}`, want: []string{container + "readinessProbe.tcpSocket.host: needs tcpSocket.host h" + privileged + " from Kubernetes 1.34 on"}},
		"a host to be told":     {container: `lifecycle: {preStop: {httpGet: {port: 80, host: h}}}`, want: []string{container + "lifecycle.preStop.httpGet.host: needs httpGet.host h" + privileged + " from Kubernetes 1.34 on"}},
		"the host's namespaces": {spec: `hostPID: true`, want: []string{pod + "spec.hostPID: needs hostPID" + privileged}},
		"of an init container": {
			spec: `initContainers: [{name: first, image: i, ports: [{containerPort: 1, hostPort: 1}]}]`,
			want: []string{pod + "spec.initContainers[0].ports[0].hostPort: needs hostPort 1" + privileged},
		},
	} {
		t.Run(name, func(t *testing.T) {
			beside := func(own, more string) string { return "{" + strings.TrimSuffix(own+", "+more, ", ") + "}" }
			spec := beside("containers: ["+beside("name: main, image: i", c.container)+"]", c.spec)
			text := strings.ReplaceAll(provisioner+"  volumeValidation: {podTemplate: {metadata: {"+c.metadata+"}, spec: "+spec+"}}\n", "\t", "")
			out, _, _ := run(t, text, "pav", "lint", "-")
			var got []string
			for line := range strings.Lines(out) {
				if _, note, ok := strings.Cut(strings.TrimSpace(line), ": note: "); ok && strings.HasPrefix(note, pod) {
					got = append(got, note)
				}
			}
			slices.Sort(got)
			slices.Sort(c.want)
			if !slices.Equal(got, c.want) || strings.Contains(out, "unknown field") || strings.Contains(out, "YAML") {
				t.Errorf("notes:\n%s\nwant:\n%s\nall:\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"), out)
			}
		})
	}
}
