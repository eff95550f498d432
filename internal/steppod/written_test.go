package steppod

import (
	"errors"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/jinja"
)

func TestEveryStepHasItsOwnVariables(t *testing.T) {
	for of, c := range map[struct {
		tarnv1.Step
		pavv1.ProvisioningMode
	}]struct{ has, lacks []string }{
		{tarnv1.StepValidation, pavv1.ModeDynamic}: {[]string{"requestedMinCapacity", "sc", "pvc", "params", "source", "get_pvc"}, []string{"handle", "node", "pv"}},
		{tarnv1.StepValidation, pavv1.ModeStatic}:  {[]string{"requestedMinCapacity", "requestedMaxCapacity", "handle", "pv", "pvc", "params"}, []string{"sc", "node", "defaultHandle", "source"}},
		{tarnv1.StepCreation, pavv1.ModeDynamic}:   {[]string{"requestedMaxCapacity", "defaultHandle"}, []string{"handle", "created", "readOnly"}},
		{tarnv1.StepDeletion, pavv1.ModeDynamic}:   {[]string{"handle", "capacity", "created", "sc"}, []string{"pv", "node", "mountOptions"}},
		{tarnv1.StepStaging, pavv1.ModeStatic}: {
			[]string{"handle", "capacity", "pv", "node", "readOnly", "volumeMode", "mountOptions", "fsType", "get_pvc"}, []string{"sc", "requestedMinCapacity"}},
		{tarnv1.StepUnstaging, pavv1.ModeDynamic}:     {[]string{"handle", "node", "mountOptions", "fsType"}, []string{"sc", "defaultHandle"}},
		{tarnv1.StepNodeExpansion, pavv1.ModeDynamic}: {[]string{"newCapacity", "mountOptions", "fsType"}, nil},
	} {
		step := of.Step
		names, err := Variables(step, of.ProvisioningMode)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range c.has {
			if !slices.Contains(names, name) {
				t.Errorf("%s does not know %s, but %v", step, name, names)
			}
		}
		for _, name := range c.lacks {
			if slices.Contains(names, name) {
				t.Errorf("%s knows %s", step, name)
			}
		}
	}
}

func TestOnlySectionsHaveKnownFields(t *testing.T) {
	if got := KnownFields("spec.volumeCreation"); !slices.Equal(got, []string{"handle", "capacity", "podTemplate"}) {
		t.Errorf("volumeCreation knows %v", got)
	}
	if got := KnownFields("spec.provisioningModes"); got != nil {
		t.Errorf("provisioningModes knows %v", got)
	}
}

func TestASectionIsRenderedWithoutACluster(t *testing.T) {
	p := &pavv1.PavProvisioner{}
	p.Spec.VolumeCreation = &apiextensionsv1.JSON{Raw: []byte(`{"capacity": "{% set yaml = true %}{{ requestedMinCapacity }}", "handle": "{{ params.nope }}"}`)}
	p.Spec.VolumeStaging = &apiextensionsv1.JSON{Raw: []byte(`{}`)}
	if found := Sections(p); len(found) != 2 || found[0].Field != "spec.volumeCreation" || found[1].Step != tarnv1.StepStaging {
		t.Errorf("got sections %v, want those of creation and staging", found)
	}
	vars := map[string]any{"requestedMinCapacity": int64(7), "params": map[string]any{"nope": "x"}}
	value, err := (&Steps{}).Render(t.Context(), tarnv1.StepCreation, p, "default", "pvc-1", vars)
	if fields, ok := value.(map[string]any); err != nil || !ok || fields["capacity"] != int64(7) || fields["handle"] != "x" {
		t.Errorf("got %v, %v, want capacity 7 and handle x", value, err)
	}
	vars["params"] = map[string]any{}
	_, err = (&Steps{}).Render(t.Context(), tarnv1.StepCreation, p, "default", "pvc-1", vars)
	var e *jinja.Error
	if !errors.As(err, &e) || e.Path != "spec.volumeCreation.handle" || !strings.Contains(e.Detail(), "^") {
		t.Errorf("got %v, want an error of the template with its path and a caret", err)
	}
	if _, leaked := vars["get_pvc"]; leaked {
		t.Error("the caller's variables were changed")
	}
}

func TestADeletionKnowsWhetherItsVolumeWasCreated(t *testing.T) {
	for phase, capacity := range map[tarnv1.VolumePhase]int64{tarnv1.VolumeUndoing: 0, tarnv1.VolumeDeleting: 1 << 30} {
		record := testkit.Record(testkit.Claim("ns", "data", "u1", "prov"), "prov", phase)
		record.Status.Capacity = capacity
		vars, err := DeletionVars(record)
		if err != nil || vars["created"] != (phase == tarnv1.VolumeDeleting) || vars["capacity"] == int64(0) {
			t.Errorf("%s: created is %v and capacity %v: %v", phase, vars["created"], vars["capacity"], err)
		}
	}
}
