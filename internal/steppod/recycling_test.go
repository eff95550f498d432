package steppod

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

const recyclingSection = `{"methods": ["Files", "Zero"], "podTemplate": {"metadata": {"namespace": "tarn-system"}, "spec": {"containers": [
 {"name": "c", "args": ["{{ method }} {{ handle }} {{ capacity }} {{ pv.metadata.name }} {{ sc.parameters.tier }} {{ pvc.metadata.name }}"]}]}}}`

// aPassage is a released volume of 2Gi, which was made with 1Gi.
func aPassage(section string, method tarnv1.RecycleMethod) (*pavv1.PavProvisioner, Passage) {
	claim := testkit.Claim("ns", "data", "u1", "prov")
	record := testkit.Record(claim, "prov", tarnv1.VolumeCreated)
	record.Status.Handle, record.Status.Capacity = "h", 2<<30
	p := testkit.Provisioner("prov")
	if section != "" {
		p.Spec.VolumeRecycling = testkit.Section(section)
	}
	return p, Passage{Record: record, Volume: testkit.Volume(record), Claim: "scrub", Method: method}
}

func TestAProvisionerRecyclesByTheMethodsItNames(t *testing.T) {
	own, recreation := []tarnv1.Step{tarnv1.StepRecycling}, []tarnv1.Step{tarnv1.StepDeletion, tarnv1.StepCreation}
	const pod = `"podTemplate": {"spec": {}}`
	for _, c := range []struct {
		name, section string
		method        tarnv1.RecycleMethod
		change        func(*pavv1.PavProvisioner)
		want          []tarnv1.Step
	}{
		{name: "a method of its list", section: recyclingSection, method: tarnv1.RecycleZero, want: own},
		{name: "not another", section: recyclingSection, method: tarnv1.RecycleDiscard},
		{name: "any where it has no list", section: `{` + pod + `}`, method: tarnv1.RecycleDiscard, want: own},
		{name: "perhaps one of a list that is a template", section: `{"methods": "{{ params.m }}", ` + pod + `}`, method: tarnv1.RecycleDiscard, want: own},
		{name: "perhaps one of a list with a template", section: `{"methods": ["{{ params.m }}"], ` + pod + `}`, method: tarnv1.RecycleDiscard, want: own},
		{name: "perhaps by a section that is a template", section: `"{{ params.all }}"`, method: tarnv1.RecycleFiles, want: own},
		{name: "not without the section", method: tarnv1.RecycleFiles},
		{name: "not without a pod", section: `{"methods": ["Files"]}`, method: tarnv1.RecycleFiles},
		{name: "not by a method that nobody knows", section: `{` + pod + `}`, method: "Shred"},
		{name: "Recreate by deletion and creation", method: tarnv1.RecycleRecreate, want: recreation},
		{name: "Recreate not where nothing is deleted", method: tarnv1.RecycleRecreate, change: func(p *pavv1.PavProvisioner) { p.Spec.VolumeDeletion = nil }},
		{name: "Recreate not where nothing is run to create", method: tarnv1.RecycleRecreate, change: func(p *pavv1.PavProvisioner) {
			p.Spec.VolumeCreation = testkit.Section(`{"capacity": 1}`)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, _ := aPassage(c.section, c.method)
			if c.change != nil {
				c.change(p)
			}
			if got := RecycleSteps(p, c.method); !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestARecyclingPodKnowsTheVolumeAndTheMethod(t *testing.T) {
	p, passage := aPassage(recyclingSection, tarnv1.RecycleZero)
	pod, err := (&Steps{}).PrepareRecycling(context.Background(), tarnv1.StepRecycling, p, passage)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := pod.Spec.Containers[0].Args[0], "Zero h 2147483648 pvc-u1 gold data"; got != want {
		t.Errorf("it is told %q, want %q", got, want)
	}
	if pod.Name != "pav-recycling-scrub-1" || pod.Labels[tarnv1.LabelRecord] != string(passage.Record.UID) || !hasResults(pod) || pod.Spec.RestartPolicy != corev1.RestartPolicyNever {
		t.Errorf("pod %s has labels %v, volumes %v", pod.Name, pod.Labels, pod.Spec.Volumes)
	}
}

func TestASectionThatDoesNotDoTheMethodOrHasNoPodRefuses(t *testing.T) {
	for section, want := range map[string]string{
		`{"methods": ["{{ 'Files' }}"], "podTemplate": {"spec": {}}}`: "does Files, not Zero",
		`"{% set yaml = true %}{}"`:                                   "evaluates to nothing",
	} {
		p, passage := aPassage(section, tarnv1.RecycleZero)
		_, err := (&Steps{}).PrepareRecycling(context.Background(), tarnv1.StepRecycling, p, passage)
		if s := AsStepError(err); s == nil || !strings.Contains(s.Message, want) {
			t.Errorf("%s: got %v, want a refusal with %q", section, err, want)
		}
	}
}

func TestAVolumeIsMadeAnewUnderItsHandleAndInItsSize(t *testing.T) {
	const args = `{"capacity": "{{ requestedMinCapacity }}", "podTemplate": {"spec": {"containers": [{"name": "c", "args": ["{{ requestedMinCapacity }}"]}]}}}`
	p, passage := aPassage("", tarnv1.RecycleRecreate)
	p.Spec.VolumeCreation = testkit.Section(args)
	p.Spec.VolumeDeletion = testkit.Section(`{"podTemplate": {"spec": {"containers": [{"name": "c", "args": ["{{ handle }} {{ capacity }}"]}]}}}`)
	for _, c := range []struct {
		step           tarnv1.Step
		handle         string
		wantName, want string
	}{
		{tarnv1.StepDeletion, "", "pav-deletion-scrub-1", "h 2147483648"},
		{tarnv1.StepCreation, "", "pav-creation-scrub-1", "2147483648"},
		{tarnv1.StepDeletion, "other", "pav-deletion-scrub-2", "other 2147483648"},
	} {
		passage.Handle = c.handle
		pod, err := (&Steps{}).PrepareRecycling(context.Background(), c.step, p, passage)
		if err != nil {
			t.Fatal(err)
		}
		if pod.Name != c.wantName || pod.Spec.Containers[0].Args[0] != c.want {
			t.Errorf("%s of handle %q: pod %s is told %q, want %s and %q", c.step, c.handle, pod.Name, pod.Spec.Containers[0].Args[0], c.wantName, c.want)
		}
	}
	name, small := "other", "1Gi"
	if handle, err := Recreated(passage.Record, Observation{Inputs: tarnv1.PodInputs{Capacity: 2 << 30}, Result: &tarnv1.PodResult{Handle: &name}}); handle != name || err != nil {
		t.Errorf("got handle %q, %v", handle, err)
	}
	if handle, err := Recreated(passage.Record, Observation{Result: &tarnv1.PodResult{Handle: &name, Capacity: &small}}); AsStepError(err) == nil || handle != name {
		t.Errorf("made recreation with less than it had: handle %q, %v, want a refusal, and what to delete", handle, err)
	}
}
