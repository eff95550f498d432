//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	pav "tarn.dev/tarn/api/pav/v1alpha1"
	tarn "tarn.dev/tarn/api/v1alpha1"
)

// logTail is how many lines of Tarn's logs a story contains.
const logTail = 60

// story prints everything that may explain a failure, before anything is deleted.
func (s *scenario) story() {
	var text strings.Builder
	fmt.Fprintf(&text, "THE STORY OF %s\n", s.name)
	s.tellObjects(&text)
	s.tellPods(&text)
	fmt.Fprintf(&text, "\nevents of the namespace:\n%s", eventLines(s.namespaceEvents()))
	fmt.Fprintf(&text, "\nevents of the provisioner:\n%s", eventLines(s.events("", s.name)))
	if suite.machine.here() {
		for _, component := range []string{controller, nodeAgent} {
			fmt.Fprintf(&text, "\nlast lines of %s:\n%s", component, suite.machine.log(component, logTail))
		}
		if mounts, err := suite.machine.mounts(kubeletDir); err == nil {
			fmt.Fprintf(&text, "\nmounts of the kubelet:\n")
			for _, m := range mounts {
				fmt.Fprintf(&text, "  %s %s\n", m.point, m.options)
			}
		}
	}
	s.t.Log(text.String())
}

// tellObjects prints the provisioner, the records and the stages of the case.
func (s *scenario) tellObjects(text *strings.Builder) {
	provisioner := &pav.PavProvisioner{ObjectMeta: named(s.name)}
	if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(provisioner), provisioner); err == nil {
		tell(text, describe(provisioner), provisioner.Status)
	}
	var claims corev1.PersistentVolumeClaimList
	if suite.live.List(s.ctx, &claims, client.InNamespace(s.name)) == nil {
		for i := range claims.Items {
			tell(text, describe(&claims.Items[i]), claims.Items[i].Status)
		}
	}
	var records tarn.PavVolumeList
	if suite.live.List(s.ctx, &records) == nil {
		for i := range records.Items {
			if r := &records.Items[i]; r.Spec.Provisioner.Name == s.name {
				tell(text, describe(r), fields{"deleted": r.DeletionTimestamp, "finalizers": r.Finalizers, "status": r.Status})
			}
		}
	}
	var stages tarn.PavStageList
	if suite.live.List(s.ctx, &stages) == nil {
		for i := range stages.Items {
			if g := &stages.Items[i]; g.Spec.Provisioner.Name == s.name {
				tell(text, describe(g), fields{"deleted": g.DeletionTimestamp, "finalizers": g.Finalizers, "spec": g.Spec, "status": g.Status})
			}
		}
	}
}

// tell prints a value as YAML under a heading.
func tell(text *strings.Builder, what string, value any) {
	lines, err := yaml.Marshal(value)
	if err != nil {
		lines = []byte(err.Error() + "\n")
	}
	fmt.Fprintf(text, "\n%s:\n%s", what, indent(string(lines)))
}

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n  ") + "\n"
}

// tellPods prints the pods of the case and those Tarn made for it, with their output.
func (s *scenario) tellPods(text *strings.Builder) {
	var pods corev1.PodList
	if suite.live.List(s.ctx, &pods) != nil {
		return
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Namespace != s.name && p.Labels[tarn.LabelProvisioner] != s.name {
			continue
		}
		fmt.Fprintf(text, "\npod %s/%s, step %q, %s %s\n", p.Namespace, p.Name, p.Labels[tarn.LabelStep], p.Status.Phase, p.Status.Message)
		fmt.Fprintf(text, "  result: %s\n", p.Annotations[tarn.AnnotationResult])
		for _, c := range p.Status.ContainerStatuses {
			tell(text, "container "+c.Name, c.State)
		}
		if p.Status.Phase != corev1.PodPending {
			text.WriteString(indent(s.printed(p)))
		}
		text.WriteString(eventLines(s.events(p.Namespace, p.Name)))
	}
}

func (s *scenario) namespaceEvents() []corev1.Event {
	var list corev1.EventList
	if err := suite.live.List(s.ctx, &list, client.InNamespace(s.name)); err != nil {
		return []corev1.Event{{Message: err.Error()}}
	}
	return list.Items
}

// eventLines gives one line for each Event, oldest first.
func eventLines(events []corev1.Event) string {
	slices.SortStableFunc(events, func(a, b corev1.Event) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	var text strings.Builder
	for _, e := range events {
		from := e.Source.Component
		if from == "" {
			from = e.ReportingController
		}
		fmt.Fprintf(&text, "  %s %s %s/%s: %s (%s, %s)\n", e.CreationTimestamp.Format("15:04:05"), e.Reason,
			e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Message, from, e.Type)
	}
	return text.String()
}
