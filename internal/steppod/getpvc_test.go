package steppod

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

// claims is a live reader of claims and volumes. It maps namespace/name to the volume of each
// claim, and gives volumes by name. It counts the reads, and returns the error in fails if that is
// set.
type claims struct {
	client.Reader
	volumes map[string]string
	pvs     map[string]corev1.PersistentVolumeSpec
	fails   error
	asked   int
}

func (c *claims) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	c.asked++
	if c.fails != nil {
		return c.fails
	}
	if vol, ok := object.(*corev1.PersistentVolume); ok {
		spec, there := c.pvs[key.Name]
		if !there {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "persistentvolumes"}, key.Name)
		}
		vol.Name, vol.Annotations, vol.Spec, vol.Status.Phase = key.Name, map[string]string{"a": "b"}, spec, corev1.VolumeBound
		if spec.ClaimRef.UID == "gone" {
			vol.Status.Phase = corev1.VolumeReleased
		}
		return nil
	}
	volume, there := c.volumes[key.String()]
	if !there {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "persistentvolumeclaims"}, key.Name)
	}
	claim := object.(*corev1.PersistentVolumeClaim)
	claim.Namespace, claim.Name, claim.Spec.VolumeName = key.Namespace, key.Name, volume
	if from := map[string]string{"open": "shop, ns", "public": "*", "closed": "shop"}[key.Name]; from != "" {
		claim.Annotations = map[string]string{tarnv1.AnnotationReadableFrom: from}
	}
	return nil
}

// theClaims are the claims of the tests. The volume's own namespace is ns.
func theClaims() *claims {
	of := func(driver, namespace string, uid types.UID) corev1.PersistentVolumeSpec {
		spec := corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: namespace, Name: "other", UID: uid}}
		spec.CSI = &corev1.CSIPersistentVolumeSource{
			Driver: driver, VolumeHandle: "vol-7", NodeStageSecretRef: &corev1.SecretReference{Name: "key", Namespace: "ns"},
		}
		return spec
	}
	path := of("", "ns", "u2")
	path.PersistentVolumeSource = corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/a"}}
	return &claims{
		volumes: map[string]string{"ns/other": "pv-mine", "team/other": "pv-theirs", "team/open": "pv-theirs", "team/public": "pv-theirs", "team/closed": "pv-theirs"},
		pvs: map[string]corev1.PersistentVolumeSpec{
			"pv-mine": of("prov", "ns", "u2"), "pv-theirs": of("prov", "team", "u3"), "pv-released": of("prov", "ns", "gone"),
			"pv-foreign": of("other", "ns", "u4"), "pv-path": path,
		},
	}
}

// evaluators evaluate a template where get_pvc is used most, for a claim of namespace ns, and give
// its result.
var evaluators = map[string]func(*testing.T, *claims, pavv1.ClaimAccess, string) (string, error){
	"creation": func(t *testing.T, reader *claims, access pavv1.ClaimAccess, template string) (string, error) {
		t.Helper()
		claim := testkit.Claim("ns", "data", "u1", "prov")
		p := testkit.Provisioner("prov", func(p *pavv1.PavProvisioner) {
			p.Spec.ClaimAccess = access
			p.Spec.VolumeCreation = testkit.Section(fmt.Sprintf(`{"capacity": "1Gi", "handle": %q}`, template))
		})
		prepared, err := (&Steps{Reader: reader}).PrepareCreation(t.Context(), p, testkit.Record(claim, "prov", tarnv1.VolumeCreating), claim, 1)
		if err != nil {
			return "", err
		}
		return prepared.Inputs.Handle, nil
	},
	"stage": func(t *testing.T, reader *claims, access pavv1.ClaimAccess, template string) (string, error) {
		t.Helper()
		claim := testkit.Claim("ns", "data", "u1", "prov")
		p := testkit.Provisioner("prov", func(p *pavv1.PavProvisioner) {
			p.Spec.ClaimAccess = access
			p.Spec.VolumeStaging = testkit.Section(fmt.Sprintf(`{"podTemplate": {"spec": {"containers": [{"name": "c", "args": [%q]}]}}}`, template))
		})
		vol := testkit.Volume(testkit.Record(claim, "prov", tarnv1.VolumeCreated))
		prepared, err := (&Steps{Reader: reader, StateDir: "/state"}).PrepareStage(t.Context(), tarnv1.StepStaging, p, &tarnv1.PavStage{}, vol, claim, &corev1.Node{}, 1)
		if err != nil {
			return "", err
		}
		return prepared.Pod.Spec.Containers[0].Args[0], nil
	},
}

func TestATemplateReadsTheClaimsThatItMay(t *testing.T) {
	const own, another = "{{ get_pvc('other', 'ns').spec.volumeName }}", "{{ get_pvc('other', 'team').spec.volumeName }}"
	times := func(n int) string {
		return fmt.Sprintf("{%% for i in range(%d) %%}{%% set c = get_pvc('other', 'ns') %%}{%% endfor %%}done", n)
	}
	long := strings.Repeat("n", 254)
	for _, c := range []struct {
		name      string
		access    pavv1.ClaimAccess
		template  string
		want      string // what it comes to; empty for a failure of the template
		wantError string // in the message of the failure
		wantAsked int    // how often the API server is
	}{
		{"a claim of the same namespace", pavv1.ClaimAccessNamespace, own, "pv-mine", "", 1},
		{"one of the same namespace where any may be read", pavv1.ClaimAccessAny, own, "pv-mine", "", 1},
		{"one of another namespace", pavv1.ClaimAccessAny, another, "pv-theirs", "", 1},
		{"none of another namespace where that is not allowed", pavv1.ClaimAccessNamespace, another, "",
			`get_pvc may not read namespace "team": spec.claimAccess is ClaimNamespace, and claim "other", if it exists, does not allow namespace "ns" by annotation tarn.dev/readable-from`, 1},
		{"nor does it learn whether there is one", pavv1.ClaimAccessNamespace, "{{ get_pvc('none', 'team') }}", "",
			`get_pvc may not read namespace "team": spec.claimAccess is ClaimNamespace, and claim "none", if it exists, does not allow namespace "ns" by annotation tarn.dev/readable-from`, 1},
		{"nor where the provisioner says nothing", "", another, "", `may not read namespace "team"`, 1},
		{"but one that allows it", pavv1.ClaimAccessNamespace, "{{ get_pvc('open', 'team').spec.volumeName }}", "pv-theirs", "", 1},
		{"or allows all", pavv1.ClaimAccessNamespace, "{{ get_pvc('public', 'team').spec.volumeName }}", "pv-theirs", "", 1},
		{"not one that allows another", pavv1.ClaimAccessNamespace, "{{ get_pvc('closed', 'team').spec.volumeName }}", "", `may not read namespace "team"`, 1},
		{"no claim that is not there", pavv1.ClaimAccessAny, "{{ get_pvc('none', 'ns') }}", "", `get_pvc("none", "ns"): persistentvolumeclaims "none" not found`, 1},
		{"a hundred times", pavv1.ClaimAccessAny, times(100), "done", "", 100},
		{"but no more often", pavv1.ClaimAccessAny, times(101), "", "get_pvc and get_pv were called more than 100 times in one evaluation", 100},
		{"no name that no claim can have", pavv1.ClaimAccessAny, "{{ get_pvc('../secrets/x', 'ns') }}", "", `get_pvc("../secrets/x", "ns"): the name is not valid: `, 0},
		{"nor a namespace of that kind", pavv1.ClaimAccessAny, "{{ get_pvc('other', 'n.s') }}", "", `get_pvc("other", "n.s"): the namespace is not valid: `, 0},
		{"nor an empty name", pavv1.ClaimAccessAny, "{{ get_pvc('', 'ns') }}", "", "the name is not valid: ", 0},
		{"nor one that is too long", pavv1.ClaimAccessAny, "{{ get_pvc('" + long + "', 'ns') }}", "", "the name is not valid: must be no more than 253 ", 0},
		{"nor what is no text", pavv1.ClaimAccessAny, "{{ get_pvc(7, 'ns') }}", "", "the argument 'name' of get_pvc() must be a string", 0},
		{"nor by a name alone", pavv1.ClaimAccessAny, "{{ get_pvc('other') }}", "", "namespace", 0},
		{"a default where there is none", pavv1.ClaimAccessAny, "{{ get_pvc('none', 'ns', none) is none }}", "True", "", 1},
		{"a default of any type, by its name", pavv1.ClaimAccessAny, "{{ get_pvc('none', 'ns', default={'a': 'gone'}).a }}", "gone", "", 1},
		{"no default for a claim that is there", pavv1.ClaimAccessAny, "{{ get_pvc('other', 'ns', none).spec.volumeName }}", "pv-mine", "", 1},
		{"no default for what may not be read", pavv1.ClaimAccessNamespace, "{{ get_pvc('none', 'team', none) }}", "", `may not read namespace "team"`, 1},
		{"the volume of its claim", pavv1.ClaimAccessNamespace, "{{ get_pv(get_pvc('other', 'ns').spec.volumeName).spec.csi.volumeHandle }}", "vol-7", "", 2},
		{"that of another namespace", pavv1.ClaimAccessAny, "{{ get_pv('pv-theirs').spec.csi.volumeHandle }}", "vol-7", "", 1},
		{"none of another namespace where its claim may not be read", pavv1.ClaimAccessNamespace, "{{ get_pv('pv-theirs') }}", "",
			`get_pv("pv-theirs"): PavProvisioner "prov" has no volume of this name that is Bound to a claim of namespace "ns"`, 1},
		{"nor does it learn whether there is one", pavv1.ClaimAccessNamespace, "{{ get_pv('none') }}", "",
			`get_pv("none"): PavProvisioner "prov" has no volume of this name that is Bound to a claim of namespace "ns"`, 1},
		{"nor by a default", pavv1.ClaimAccessNamespace, "{{ get_pv('none', 7) == get_pv('pv-theirs', 7) }}", "True", "", 2},
		{"no volume of another provisioner", pavv1.ClaimAccessAny, "{{ get_pv('pv-foreign') }}", "", `get_pv("pv-foreign"): PavProvisioner "prov" has no volume`, 1},
		{"none without a provisioner", pavv1.ClaimAccessAny, "{{ get_pv('pv-path') }}", "", `get_pv("pv-path"): PavProvisioner "prov" has no volume`, 1},
		{"none whose claim is gone", pavv1.ClaimAccessAny, "{{ get_pv('pv-released', none) is none }}", "True", "", 1},
		{"none by a name that no volume can have", pavv1.ClaimAccessAny, "{{ get_pv('../secrets/x') }}", "", `get_pv("../secrets/x"): the name is not valid: `, 0},
		{"of a volume no annotations and no Secret", pavv1.ClaimAccessAny, "{{ get_pv('pv-mine').metadata | tojson }} {{ get_pv('pv-mine').spec.csi | tojson }}",
			`{"name": "pv-mine"} {"driver": "prov", "volumeHandle": "vol-7"}`, "", 2},
	} {
		for step, evaluate := range evaluators {
			t.Run(c.name+"/"+step, func(t *testing.T) {
				reader := theClaims()
				got, err := evaluate(t, reader, c.access, c.template)
				failed := AsStepError(err)
				switch {
				case c.want != "" && (err != nil || got != c.want):
					t.Errorf("got %q, %v, want %q", got, err, c.want)
				case c.want == "" && (failed == nil || failed.Reason != ReasonTemplate || !strings.Contains(failed.Message, c.wantError)):
					t.Errorf("got %q, %v, want a StepError of reason %s with %q", got, err, ReasonTemplate, c.wantError)
				}
				if reader.asked != c.wantAsked {
					t.Errorf("the API server was asked %d times, want %d", reader.asked, c.wantAsked)
				}
			})
		}
	}
}

// The message must be the same each time: a message that changes is taken for a new failure.
func TestOfTwoWrongNamesTheFirstIsTold(t *testing.T) {
	for range 20 { // a result in map order is right only sometimes
		_, err := evaluators["creation"](t, theClaims(), pavv1.ClaimAccessAny, "{{ get_pvc('A', 'B') }}")
		if err == nil || !strings.Contains(err.Error(), "the name is not valid") {
			t.Fatalf("got %v, want the name to be told", err)
		}
	}
}

// Each evaluation has the full number of reads, so that retries do not use them up.
func TestAnEvaluationDoesNotCountTheReadsOfTheLast(t *testing.T) {
	reader := theClaims()
	for range 2 {
		if _, err := evaluators["creation"](t, reader, pavv1.ClaimAccessAny, "{% for i in range(60) %}{% set c = get_pvc('other', 'ns') %}{% endfor %}x"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWhatTheAPIServerFailsAtIsNoFailureOfTheTemplate(t *testing.T) {
	resource := schema.GroupResource{Resource: "persistentvolumeclaims"}
	for _, c := range []struct {
		name         string
		fails        error
		wantRecorded bool
	}{
		{"an error of the API server", apierrors.NewInternalError(errors.New("etcd is down")), false},
		{"a timeout there", apierrors.NewTimeoutError("too slow", 1), false},
		{"one that it says is its own", apierrors.NewServerTimeout(resource, "get", 1), false},
		{"too many requests", apierrors.NewTooManyRequests("later", 1), false},
		{"it is not there", apierrors.NewServiceUnavailable("starting"), false},
		{"a token that is over", apierrors.NewUnauthorized("expired"), false},
		{"the time of the evaluation is over", context.DeadlineExceeded, false},
		{"the process ends", context.Canceled, false},
		{"no connection", errors.New("dial tcp: connection refused"), false},
		{"but a refusal is", apierrors.NewForbidden(resource, "other", errors.New("no")), true},
		{"and so is what it cannot understand", apierrors.NewBadRequest("no"), true},
	} {
		for step, evaluate := range evaluators {
			t.Run(c.name+"/"+step, func(t *testing.T) {
				reader := theClaims()
				// A default is for an absent object, and must not hide a failed read.
				for _, template := range []string{"{{ get_pvc('other', 'ns', {}).spec.volumeName | default('x') }}", "{{ get_pv('pv-mine', {}).metadata.name | default('x') }}"} {
					reader.fails = c.fails
					_, err := evaluate(t, reader, pavv1.ClaimAccessAny, template)
					if recorded := AsStepError(err) != nil; err == nil || recorded != c.wantRecorded || !recorded && !errors.Is(err, c.fails) {
						t.Errorf("%s: got %v, recorded: %v, want %v", template, err, recorded, c.wantRecorded)
					}
					reader.fails = nil
					if got, err := evaluate(t, reader, pavv1.ClaimAccessAny, template); err != nil || got != "pv-mine" {
						t.Errorf("%s: when it answers again: %q, %v", template, got, err)
					}
				}
			})
		}
	}
}

func TestADeletionWithoutItsBackingClaimNeedsNoPod(t *testing.T) {
	p := testkit.Provisioner("prov", func(p *pavv1.PavProvisioner) {
		p.Spec.VolumeDeletion = testkit.Section(`{"podTemplate": "{% set yaml = true %}{% if get_pvc(params.base, 'ns', none) %}spec: {containers: [{name: c}]}{% endif %}"}`)
	})
	for base, wantPod := range map[string]bool{"other": true, "gone": false} {
		record := testkit.Record(testkit.Claim("ns", "data", "u1", "prov"), "prov", tarnv1.VolumeCreated)
		record.Spec.ClassSnapshot.Raw = fmt.Appendf(nil, `{"parameters": {"base": %q}}`, base)
		prepared, err := (&Steps{Reader: theClaims()}).PrepareDeletion(t.Context(), p, record, 1)
		if err != nil || (prepared.Pod != nil) != wantPod {
			t.Errorf("base %s: got %+v, %v; want a pod: %v", base, prepared, err, wantPod)
		}
	}
}
