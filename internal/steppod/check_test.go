package steppod

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
	"tarn.dev/tarn/jinja"
)

// A list from a template is checked like a list written out. The claim is not rejected for it,
// because only the author of the provisioner can correct it.
func TestAListThatATemplateGivesMustBeOneThatMayBeWrittenOut(t *testing.T) {
	const empty, modes = "must not be empty; leave it out for the default", "is not one of ReadWriteOnce, ReadOnlyMany, ReadWriteMany, ReadWriteOncePod"
	for _, c := range []struct {
		name, section string
		want          string // in the error; empty for none
	}{
		{"no access mode", `{"accessModes": "{% set yaml = true %}[]"}`, "spec.volumeValidation.accessModes: " + empty},
		{"an access mode there is not", `{"accessModes": "{% set yaml = true %}[ReadWriteOnce, ReadWriteMnay]"}`, `spec.volumeValidation.accessModes[1]: "ReadWriteMnay" ` + modes},
		{"an item that comes to nothing", `{"accessModes": ["{% if false %}ReadWriteMany{% endif %}", "ReadWriteOnce"]}`, ""},
		{"one of the list's template", `{"accessModes": "{% set yaml = true %}[ReadWriteOnce, '']"}`, ""},
		{"a volume mode that comes to nothing", `{"volumeModes": ["Filesystem", "{% if false %}Block{% endif %}"]}`, ""},
		{"items that all come to nothing", `{"accessModes": ["{% if false %}ReadWriteMany{% endif %}"]}`, "spec.volumeValidation.accessModes: " + empty},
		{"an item that comes to a blank", `{"accessModes": ["ReadWriteOnce", "{{ ' ' }}"]}`, `spec.volumeValidation.accessModes[1]: " " ` + modes},
		{"an item with a newline", `{"accessModes": ["{{ 'ReadWriteOnce' }}\n\n"]}`, `accessModes[0]: "ReadWriteOnce\n" ` + modes},
		{"an item that is a template again", `{"accessModes": ["{{ '{{ x }}' }}"]}`, `accessModes[0]: "{{ x }}" ` + modes},
		{"an item that is no text", `{"accessModes": "{% set yaml = true %}[ReadWriteOnce, {a: 1}]"}`, `accessModes[1]: {"a":1} ` + modes},
		{"no list", `{"accessModes": "[ReadWriteOnce]"}`, "spec.volumeValidation.accessModes: must be a list, or a template that sets yaml and gives one, not a string"},
		{"nothing, for the default", `{"accessModes": "{% set yaml = true %}null"}`, ""},
		{"access modes", `{"accessModes": "{% set yaml = true %}{{ requestedAccessModes | tojson }}"}`, ""},
		{"no volume mode", `{"volumeModes": "{% set yaml = true %}[]"}`, "spec.volumeValidation.volumeModes: " + empty},
		{"a volume mode there is not", `{"volumeModes": ["{{ 'File' }}"]}`, `spec.volumeValidation.volumeModes[0]: "File" is not one of Filesystem, Block`},
		{"the whole section is a template", `"{% set yaml = true %}{accessModes: []}"`, "spec.volumeValidation.accessModes: " + empty},
	} {
		t.Run(c.name, func(t *testing.T) {
			claim := testkit.Claim("ns", "data", "u1", "prov")
			record := testkit.Record(claim, "prov", tarnv1.VolumePending)
			p := testkit.Provisioner("prov")
			p.Spec.VolumeValidation = testkit.Section(c.section)
			_, err := (&Steps{}).PrepareValidation(t.Context(), p, record, claim, 1)
			wantInvalid(t, err, c.want)
			stage, vol, _ := byHand()
			_, err = (&Steps{}).PrepareStatic(t.Context(), p, stage, vol, claim)
			wantInvalid(t, err, c.want)
		})
	}
}

func TestMethodsThatATemplateGivesMustBeThoseThatMayBeWrittenOut(t *testing.T) {
	for methods, want := range map[string]string{
		`["{{ 'Zero' }}"]`:                  "",
		`["Zero", "{{ '' }}"]`:              "",
		`"{% set yaml = true %}[]"`:         "spec.volumeRecycling.methods: must not be empty",
		`"{% set yaml = true %}[Shredder]"`: `spec.volumeRecycling.methods[0]: "Shredder" is not one of Files, Zero, Discard`,
	} {
		p := testkit.Provisioner("prov")
		p.Spec.VolumeRecycling = testkit.Section(`{"methods": ` + methods + `, "podTemplate": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}`)
		record := testkit.Record(testkit.Claim("ns", "data", "u1", "prov"), "prov", tarnv1.VolumeCreated)
		_, err := (&Steps{}).PrepareRecycling(t.Context(), tarnv1.StepRecycling, p,
			Passage{Record: record, Volume: &corev1.PersistentVolume{}, Claim: "u2", Method: tarnv1.RecycleZero})
		wantInvalid(t, err, want)
	}
}

// wantInvalid requires an error about the section that contains want. An empty want means no error.
func wantInvalid(t *testing.T, err error, want string) {
	t.Helper()
	failed := AsStepError(err)
	switch {
	case want == "" && err != nil:
		t.Errorf("got %v, want no error", err)
	case want != "" && (failed == nil || failed.Reason != ReasonInvalid || !strings.Contains(failed.Message, want)):
		t.Errorf("got %+v, want reason %s and a message with %q", err, ReasonInvalid, want)
	}
}

func TestAnEmptyItemThatIsWrittenOutIsRefused(t *testing.T) {
	p := testkit.Provisioner("prov")
	p.Spec.VolumeValidation = testkit.Section(`{"accessModes": ["ReadWriteOnce", ""]}`)
	const want = `spec.volumeValidation.accessModes[1]: "" is not one of ReadWriteOnce`
	if got := Check(p, nil); len(got) != 1 || !strings.HasPrefix(got[0].String(), want) {
		t.Errorf("problems %q, want %q", got, want)
	}
}

func TestAHandleIsRefusedAsWrittenWhereNoVolumeCanHaveIt(t *testing.T) {
	const field = "spec.volumeCreation.handle: "
	for handle, want := range map[string][]string{
		`""`:                                 {field + "a volume handle must not be empty"},
		`" \n"`:                              {field + "a volume handle must not be empty"},
		`"a\nb"`:                             {field + `volume handle "a\nb" must not contain control characters`},
		`"` + strings.Repeat("x", 129) + `"`: {field + "a volume handle must have at most 128 bytes, this one has 129"},
		`5`:                                  {field + "must be a string, not a number"},
		`"shelf-7\n"`:                        nil, // YAML's "|" ends it so
		`"{{ params.shelf }}"`:               nil,
		`"{% if true %}` + strings.Repeat("x", 129) + `{% endif %}"`: nil,
		`null`: nil,
	} {
		p := testkit.Provisioner("prov")
		p.Spec.VolumeCreation = testkit.Section(`{"capacity": "1Gi", "handle": ` + handle + `}`)
		var got []string
		for _, problem := range Check(p, nil) {
			got = append(got, problem.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("handle %s: problems %q, want %q", handle, got, want)
		}
	}
}

func TestAFieldThatNoPodHasIsRefusedAsWritten(t *testing.T) {
	const field = "spec.volumeStaging.podTemplate."
	for template, want := range map[string][]string{
		`{"spec": {"container": [{"name": "c"}]}}`:                                                                         {field + "spec.container: unknown field; did you mean containers?"},
		`{"spec": {"containers": [{"name": "c", "enviroment": []}]}}`:                                                      {field + "spec.containers[0].enviroment: unknown field; did you mean env?"},
		`{"spec": {"containers": [{"name": "c", "command": "true"}]}}`:                                                     {field + "spec.containers[0].command: must be a list, not a string"},
		`{"metadata": {"lables": {}}, "spec": {"hostNetwork": "{{ x }}"}}`:                                                 {field + "metadata.lables: unknown field; did you mean labels?"},
		`{"metadata": {"labels": {"a.b/c": 1}}}`:                                                                           {field + "metadata.labels['a.b/c']: must be a string, in quotes, not a number"},
		`{"spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80}], "resources": {"limits": {"cpu": 1}}}]}}`: nil,
		`{"spec": {"containers": "{% set yaml = true %}[{name: c, comand: x}]"}}`:                                          nil,
	} {
		p := testkit.Provisioner("prov")
		p.Spec.VolumeStaging = testkit.Section(`{"podTemplate": ` + template + `}`)
		var got []string
		for _, problem := range Check(p, nil) {
			got = append(got, problem.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: problems %q, want %q", template, got, want)
		}
	}
}

func TestTheHandleASectionGivesIsTrimmedAsThatOfThePod(t *testing.T) {
	for _, c := range []struct{ name, handle, want, wantError string }{
		{"as it is", "shelf-7", "shelf-7", ""},
		{"a block of YAML ends with a newline", "shelf-7\n", "shelf-7", ""},
		{"blanks around it", " \t shelf-7 \n\n", "shelf-7", ""},
		{"blanks within it stay", "shelf 7", "shelf 7", ""},
		{"nothing but blanks", " \n", "", "spec.volumeCreation.handle: a volume handle must not be empty"},
		{"two lines", "a\nb\n", "", "control characters"},
		{"too long", strings.Repeat("x", 129), "", "at most 128 bytes"},
		{"not too long without its newline", strings.Repeat("x", 128) + "\n", strings.Repeat("x", 128), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			section, err := json.Marshal(map[string]string{"capacity": "1Gi", "handle": c.handle})
			if err != nil {
				t.Fatal(err)
			}
			p := testkit.Provisioner("prov")
			p.Spec.VolumeCreation = testkit.Section(string(section))
			claim := testkit.Claim("ns", "data", "u1", "prov")
			claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
			prepared, err := (&Steps{}).PrepareCreation(t.Context(), p, testkit.Record(claim, "prov", tarnv1.VolumePending), claim, 1)
			if c.wantError != "" {
				if AsStepError(err) == nil || !strings.Contains(err.Error(), c.wantError) {
					t.Errorf("error %v, want a StepError with %q", err, c.wantError)
				}
				return
			}
			if err != nil || prepared.Inputs.Handle != c.want {
				t.Errorf("handle %+v, %v, want %q", prepared, err, c.want)
			}
		})
	}
}

func TestAClaimIsHeldAgainstVolumeValidation(t *testing.T) {
	asks := func(modes ...corev1.PersistentVolumeAccessMode) func(*tarnv1.PavVolume) {
		return func(r *tarnv1.PavVolume) { r.Spec.AccessModes = modes }
	}
	sizes := func(least, most string) func(*tarnv1.PavVolume) {
		return func(r *tarnv1.PavVolume) {
			size := resource.MustParse(least)
			r.Spec.RequestedMinCapacity = size.Value()
			if most != "" {
				limit := resource.MustParse(most)
				r.Spec.RequestedMaxCapacity = ptr.To(limit.Value())
			}
		}
	}
	blocks := func(r *tarnv1.PavVolume) { r.Spec.VolumeMode = corev1.PersistentVolumeBlock }
	const once, oncePod, many = corev1.ReadWriteOnce, corev1.ReadWriteOncePod, corev1.ReadWriteMany
	for _, c := range []struct {
		name    string
		section string
		record  func(*tarnv1.PavVolume)
		want    string // in the error; empty for none
	}{
		{"file systems by default", `{}`, func(*tarnv1.PavVolume) {}, ""},
		{"no block devices by default", `{}`, blocks, "can only provision volumes with volume mode Filesystem, the claim asks for Block"},
		{"block devices where it says so", `{"volumeModes": ["Block"]}`, blocks, ""},
		{"every access mode by default", `{}`, asks(once, oncePod, many, corev1.ReadOnlyMany), ""},
		{"the mode for one pod where it says so", `{"accessModes": ["ReadWriteOncePod"]}`, asks(oncePod), ""},
		{"one node is not one pod", `{"accessModes": ["ReadWriteOnce"]}`, asks(oncePod), "supporting access mode ReadWriteOnce, the claim asks for ReadWriteOncePod"},
		{"nor the other way about", `{"accessModes": ["ReadWriteOncePod"]}`, asks(once), "supporting access mode ReadWriteOncePod, the claim asks for ReadWriteOnce"},
		{"all that are asked for", `{"accessModes": ["ReadWriteOnce"]}`, asks(once, many), "the claim asks for ReadWriteMany"},
		{"no more than the most", `{"maxCapacity": "1Gi"}`, sizes("1025Mi", ""), "cannot provision volumes with capacity greater than 1Gi, the claim requests 1025Mi"},
		{"the most itself", `{"maxCapacity": "1Gi"}`, sizes("1Gi", ""), ""},
		{"a limit above the least", `{"minCapacity": "1Gi"}`, sizes("1Mi", "1Gi"), ""},
		{"no limit below the least", `{"minCapacity": "1Gi"}`, sizes("1Mi", "1023Mi"), "capacity less than 1Gi, the claim's limit is 1023Mi"},
		{"no limit at all", `{"minCapacity": "1Gi"}`, sizes("1Mi", ""), ""},
		{"limits that leave nothing", `{"minCapacity": "2Gi", "maxCapacity": "1Gi"}`, func(*tarnv1.PavVolume) {}, "minCapacity (2147483648) must not be greater than maxCapacity (1073741824)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			claim := testkit.Claim("ns", "data", "u1", "prov")
			record := testkit.Record(claim, "prov", tarnv1.VolumePending)
			c.record(record)
			p := testkit.Provisioner("prov")
			p.Spec.VolumeValidation = testkit.Section(c.section)
			prepared, err := (&Steps{}).PrepareValidation(t.Context(), p, record, claim, 1)
			switch {
			case c.want == "" && (err != nil || prepared.Pod != nil):
				t.Errorf("got %+v, %v, want neither pod nor error", prepared, err)
			case c.want != "" && (AsStepError(err) == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want a StepError with %q", err, c.want)
			}
		})
	}
}

// The template engine contains no code of Kubernetes, so it parses sizes by itself.
func TestTobytesReadsSizesAsTheFieldCapacityIsRead(t *testing.T) {
	numbers := []string{"", "0", "00", "1", "007", "1.5", ".5", "5.", ".", "0.3", "0.0000000001", "1.0000000001", "-1", "+2", "+", "--1", "1.2.3", "9223372036854775807", "9223372036854775808", "x"}
	suffixes := []string{"", "n", "u", "m", "k", "K", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "ki", "e", "e3", "E3", "E+3", "e-3", "e40", "e41", "e-41", "e99999999999999999999", "e3.5", "i", "GB", "µ", " ", "\n"}
	for _, number := range numbers {
		for _, suffix := range suffixes {
			if len(number) > 18 && strings.HasSuffix(suffix, "i") {
				continue // too large; apimachinery silently takes them for the largest size
			}
			text := number + suffix
			want, wantErr := volume.ParseCapacity(text, volume.RoundUp)
			got, err := jinja.Evaluate(t.Context(), "{% set yaml = true %}{{ size | tobytes }}", map[string]any{"size": text}, jinja.Limits{})
			if (err == nil) != (wantErr == nil) || err == nil && got != want {
				t.Errorf("%q: tobytes gives %v, %v; capacity is %v, %v", text, got, err, want, wantErr)
			}
		}
	}
}
