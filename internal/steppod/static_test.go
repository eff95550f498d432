package steppod

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

// byHand is a volume of 1Gi written by hand, bound to a claim that may only be written
// by one node, and its stage.
func byHand(changes ...func(*corev1.PersistentVolume)) (*tarnv1.PavStage, *corev1.PersistentVolume, *corev1.PersistentVolumeClaim) {
	claim := testkit.Claim("ns", "data", "u1", "prov")
	vol := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-7"}}
	vol.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	vol.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteMany}
	vol.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "prov", VolumeHandle: "shelf-7", VolumeAttributes: map[string]string{"room": "3"}}
	for _, change := range changes {
		change(vol)
	}
	stage := &tarnv1.PavStage{ObjectMeta: metav1.ObjectMeta{Name: "stage-1", UID: "s1"}}
	stage.Spec.NodeName = "n1"
	return stage, vol, claim
}

func block(vol *corev1.PersistentVolume) { vol.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }

func TestTheTimeUntilAVolumeIsThereIsItsSections(t *testing.T) {
	for _, c := range []struct {
		name, value string
		want        int64
		wantError   string // of the section that was evaluated; empty for none
		wantProblem bool
	}{
		{"a number", `900`, 900, "", false},
		{"a template", `"{{ 15 * 60 }}"`, 900, "", false},
		{"digits in a string", `"900"`, 900, "", false},
		{"nothing", `null`, 0, "", false},
		{"no time at all", `0`, 0, "from 1 to 31536000, not 0", true},
		{"a fraction", `1.5`, 0, "not 1.5", true},
		{"a word", `"soon"`, 0, `not "soon"`, true},
		{"a template that gives a word", `"{{ node.metadata.name }}"`, 0, `not "n1"`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := testkit.Provisioner("prov")
			p.Spec.VolumeStaging = testkit.Section(`{"deadlineSeconds": ` + c.value + `, "podTemplate": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}`)
			if problems := Check(p, nil); (len(problems) > 0) != c.wantProblem || c.wantProblem && problems[0].Field != "spec.volumeStaging.deadlineSeconds" {
				t.Errorf("problems %v, want some: %t", problems, c.wantProblem)
			}
			stage, vol, claim := byHand()
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
			prepared, err := (&Steps{}).PrepareStage(t.Context(), tarnv1.StepStaging, p, stage, vol, claim, node, 1)
			if c.wantError != "" {
				if err == nil || !strings.Contains(err.Error(), c.wantError) {
					t.Errorf("got %v, want an error with %q", err, c.wantError)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if o := Observe(prepared.Pod, stage.UID, metav1.Now().Time); o.Inputs.DeadlineSeconds != c.want {
				t.Errorf("its pod has %d s, want %d", o.Inputs.DeadlineSeconds, c.want)
			}
		})
	}
}

func TestAVolumeWrittenByHandIsHeldAgainstVolumeValidation(t *testing.T) {
	for _, c := range []struct {
		name    string
		section string
		change  func(*corev1.PersistentVolume)
		want    string // in the error; empty for none
	}{
		{"it fits", `{"minCapacity": "1Gi", "maxCapacity": "1Gi", "accessModes": ["ReadWriteOnce"]}`, nil, ""},
		{"without the section anything does", ``, block, ""},
		{"with the section only file systems do, unless it says otherwise", `{}`, block, `spec.volumeMode is Block, PavProvisioner "prov" has Filesystem in spec.volumeValidation.volumeModes`},
		{"a volume mode it has", `{"volumeModes": ["Block"]}`, block, ""},
		{"an access mode of its claim is none of the provisioner's", `{"accessModes": ["ReadOnlyMany"]}`, nil, `claim ns/data has ReadWriteOnce in spec.accessModes, PavProvisioner "prov" has ReadOnlyMany`},
		{"one of its own that the claim does not ask for does no harm", `{"accessModes": ["ReadWriteOnce"]}`, nil, ""},
		{"too large", `{"maxCapacity": "1Mi"}`, nil, `PersistentVolume "pv-7": spec.capacity.storage is 1Gi, PavProvisioner "prov" has 1Mi in spec.volumeValidation.maxCapacity`},
		{"too small", `{"minCapacity": "2Gi"}`, nil, `has 2Gi in spec.volumeValidation.minCapacity`},
		{"limits that cannot be", `{"minCapacity": 2, "maxCapacity": 1}`, nil, `minCapacity (2) must not be greater than maxCapacity (1)`},
		{"a limit by the volume's own words", `{"maxCapacity": "{{ 2 * requestedMaxCapacity if handle == 'shelf-7' and pv.metadata.name == 'pv-7' and params.room == '3' else 1 }}"}`, nil, ""},
		{"there is no class", `{"maxCapacity": "{{ sc.parameters.most }}"}`, nil, `'sc' is undefined`},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := testkit.Provisioner("prov")
			if c.section != "" {
				p.Spec.VolumeValidation = testkit.Section(c.section)
			}
			stage, vol, claim := byHand()
			if c.change != nil {
				c.change(vol)
			}
			prepared, err := (&Steps{}).PrepareStatic(t.Context(), p, stage, vol, claim)
			switch {
			case c.want == "" && (err != nil || prepared.Pod != nil):
				t.Errorf("got %+v, %v, want neither pod nor error", prepared, err)
			case c.want != "" && (AsStepError(err) == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want a StepError with %q", err, c.want)
			}
		})
	}
}

func TestTheValidationPodOfAVolumeWrittenByHandBelongsToItsStage(t *testing.T) {
	p := testkit.Provisioner("prov")
	p.Spec.Topology = pavv1.TopologyNode
	p.Spec.VolumeValidation = testkit.Section(`{"podTemplate": {"spec": {"containers": [{"name": "c", "args": ["{{ handle }} {{ requestedMinCapacity }} {{ requestedMaxCapacity }}"]}]}}}`)
	stage, vol, claim := byHand()
	prepared, err := (&Steps{}).PrepareStatic(t.Context(), p, stage, vol, claim)
	if err != nil {
		t.Fatal(err)
	}
	pod := prepared.Pod
	if got, want := pod.Spec.Containers[0].Args[0], "shelf-7 1073741824 1073741824"; got != want {
		t.Errorf("it is told %q, want %q", got, want)
	}
	if pod.Name != "pav-validation-s1-1" || !OwnedBy(pod, "s1") || pod.Labels[tarnv1.LabelStage] != "s1" || !hasResults(pod) {
		t.Errorf("pod %s, owners %v, labels %v, volumes %v", pod.Name, pod.OwnerReferences, pod.Labels, pod.Spec.Volumes)
	}
	terms := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 1 || terms[0].MatchFields[0].Values[0] != "n1" {
		t.Errorf("it may run on %v, want the stage's node alone", terms)
	}
}

const staged = `{"podTemplate": {"spec": {"containers": [{"name": "c", "args": ["%s"]}]}}}`

func TestOfWhatAStagingTakesNoNoticeIsWarned(t *testing.T) {
	nfs := func(vol *corev1.PersistentVolume) { vol.Spec.MountOptions = []string{"noexec", "nfsvers=4.1"} }
	xfs := func(vol *corev1.PersistentVolume) { vol.Spec.CSI.FSType = "xfs" }
	asParameter := func(vol *corev1.PersistentVolume) {
		xfs(vol)
		vol.Spec.CSI.VolumeAttributes[FSTypeParameter] = "xfs"
	}
	for _, c := range []struct {
		name   string
		reads  string
		change func(*corev1.PersistentVolume)
		want   string // empty for nothing
	}{
		{"nothing is asked for", "plain", func(*corev1.PersistentVolume) {}, ""},
		{"mount options", "plain", nfs, `PersistentVolume "pv-7" is staged without its spec.mountOptions "noexec,nfsvers=4.1": spec.volumeStaging of PavProvisioner "prov" does not use it; let the template read mountOptions, or remove it from the volume (and its StorageClass)`},
		{"both", "plain", func(vol *corev1.PersistentVolume) { nfs(vol); xfs(vol) }, `PersistentVolume "pv-7" is staged without its spec.mountOptions "noexec,nfsvers=4.1" and spec.csi.fsType "xfs": spec.volumeStaging of PavProvisioner "prov" does not use it; let the template read mountOptions and fsType, or remove it from the volume (and its StorageClass)`},
		{"options are read", "{{ mountOptions | join(',') }}", nfs, ""},
		{"the volume is read", "{{ pv.spec.mountOptions | join(',') }}", nfs, ""},
		{"a file system", "{{ mountOptions | tojson }}", xfs, `PersistentVolume "pv-7" is staged without its spec.csi.fsType "xfs": spec.volumeStaging of PavProvisioner "prov" does not use it; let the template read fsType, or remove it from the volume (and its StorageClass)`},
		{"the file system is read", "mkfs.{{ fsType }}", xfs, ""},
		{"the file system is read as a parameter", "mkfs.{{ params['csi.storage.k8s.io/fstype'] }}", asParameter, ""},
		{"a device has neither", "plain", func(vol *corev1.PersistentVolume) { nfs(vol); xfs(vol); block(vol) }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := testkit.Provisioner("prov")
			p.Spec.VolumeStaging = testkit.Section(strings.Replace(staged, "%s", c.reads, 1))
			stage, vol, claim := byHand(c.change)
			prepared, err := (&Steps{StateDir: "/state"}).PrepareStage(t.Context(), tarnv1.StepStaging, p, stage, vol, claim, &corev1.Node{}, 1)
			if err != nil {
				t.Fatal(err)
			}
			if prepared.Warning != c.want {
				t.Errorf("it is warned %q, want %q", prepared.Warning, c.want)
			}
		})
	}
}

func TestStagingIsToldMountOptionsAndFileSystem(t *testing.T) {
	p := testkit.Provisioner("prov")
	p.Spec.VolumeStaging = testkit.Section(strings.Replace(staged, "%s", `mount -t {{ fsType or 'ext4' }}{% if mountOptions %} -o {{ mountOptions | join(',') }}{% endif %}`, 1))
	p.Spec.VolumeUnstaging = p.Spec.VolumeStaging
	for want, change := range map[string]func(*corev1.PersistentVolume){
		"mount -t ext4": func(*corev1.PersistentVolume) {},
		"mount -t xfs -o discard,noexec": func(vol *corev1.PersistentVolume) {
			vol.Spec.MountOptions, vol.Spec.CSI.FSType = []string{"discard", "noexec"}, "xfs"
		},
	} {
		stage, vol, claim := byHand(change)
		for _, step := range []tarnv1.Step{tarnv1.StepStaging, tarnv1.StepUnstaging} {
			prepared, err := (&Steps{StateDir: "/state"}).PrepareStage(t.Context(), step, p, stage, vol, claim, &corev1.Node{}, 1)
			if err != nil {
				t.Fatal(err)
			}
			if got := prepared.Pod.Spec.Containers[0].Args[0]; got != want {
				t.Errorf("the %s pod is told %q, want %q", step, got, want)
			}
		}
	}
}

// reading builds a provisioner whose creation pod has this argument.
func reading(argument string) *pavv1.PavProvisioner {
	return testkit.Provisioner("prov", func(p *pavv1.PavProvisioner) {
		p.Spec.VolumeCreation = testkit.Section(`{"podTemplate": {"spec": {"containers": [{"name": "c", "args": ["` + argument + `"]}]}}}`)
	})
}

func TestASecretOfAClassIsReadOrNamed(t *testing.T) {
	const stage, expand = "csi.storage.k8s.io/node-stage-secret-name", "csi.storage.k8s.io/controller-expand-secret-name"
	both := map[string]string{stage: "s", "csi.storage.k8s.io/node-stage-secret-namespace": "n", expand: "e", "tier": "gold"}
	for _, c := range []struct {
		name       string
		argument   string
		parameters map[string]string
		want       string
	}{
		{"no Secret", "x", map[string]string{"tier": "gold", FSTypeParameter: "ext4"}, ""},
		{"no parameter is read", "{{ requestedMinCapacity }}", both, expand},
		{"a word is no reading", "params sc pv", both, expand},
		{"it is read", "{{ params['" + expand + "'] }}", both, ""},
		{"it may be read by a name put together", "{{ params['csi.storage.k8s.io/' ~ step ~ '-secret-name'] }}", both, ""},
		{"all are gone through", "{% for k in params -%}{{ k }}{%- endfor %}", both, ""},
		{"those of the class", "{{ sc['parameters'] | tojson }}", both, ""},
		{"those that the volume has", "{{ pv.spec.csi.volumeAttributes | tojson }}", both, ""},
	} {
		class := testkit.Class("prov", func(s *storagev1.StorageClass) { s.Parameters = c.parameters })
		if got := UnreadSecret(reading(c.argument), class); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want it to name %q", c.name, got, c.want)
		}
	}
}

func TestAParameterThatNoTemplateReadsIsNamed(t *testing.T) {
	const key = "compres"
	for _, c := range []struct {
		name, argument, want string
	}{
		{"the nearest name", "{{ params.compress }} {{ params.poolSize }}", "did you mean compress?"},
		{"all names, if none is near", "{{ params.region }} {{ params['csi.storage.k8s.io/fstype'] }}", "known are csi.storage.k8s.io/fstype, region"},
		{"no name", "{{ handle }}", "it reads no parameters"},
		{"other fields of the class and the volume", "{{ sc.metadata.name }} {{ pv.spec.csi.readOnly }}", "it reads no parameters"},
		{"a parameter of the class as an object", "{{ sc.parameters.compress }}", "did you mean compress?"},
		{"an attribute of the volume", "{{ pv.spec.csi.volumeAttributes.get('compress') }}", "did you mean compress?"},
		{"it is read", "{{ params." + key + " }}", ""},
		{"it is asked for", "{{ '" + key + "' in params }}", ""},
		{"it is read from the class", "{{ sc['parameters'].get('" + key + "') }}", ""},
		{"perhaps, by a name put together", "{{ params['com' ~ handle] }}", ""},
		{"perhaps, in a loop", "{% for k in params -%}{{ k }}{%- endfor %}", ""},
		{"perhaps, with the whole volume", "{{ pv.spec | tojson }}", ""},
		{"another field of another volume", "{{ get_pv(handle).spec.csi.driver }}", "it reads no parameters"},
		{"perhaps, from another volume", "{{ get_pv(handle) | tojson }}", ""},
	} {
		class := testkit.Class("prov", func(s *storagev1.StorageClass) {
			s.Parameters = map[string]string{key: "zstd", "csi.storage.k8s.io/x": "y"}
		})
		got := UnknownParameters(reading(c.argument), class)
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], `"`+key+`"`) || !strings.HasSuffix(got[0], c.want)) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestASecretOfAVolumeIsReadOrRefused(t *testing.T) {
	ref := &corev1.SecretReference{Namespace: "vault", Name: "key"}
	block := corev1.PersistentVolumeBlock
	for field, set := range map[string]func(*corev1.CSIPersistentVolumeSource){
		"controllerPublishSecretRef": func(c *corev1.CSIPersistentVolumeSource) { c.ControllerPublishSecretRef = ref },
		"nodeStageSecretRef":         func(c *corev1.CSIPersistentVolumeSource) { c.NodeStageSecretRef = ref },
		"controllerExpandSecretRef":  func(c *corev1.CSIPersistentVolumeSource) { c.ControllerExpandSecretRef = ref },
		"nodeExpandSecretRef":        func(c *corev1.CSIPersistentVolumeSource) { c.NodeExpandSecretRef = ref },
	} {
		vol := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{VolumeMode: &block}}
		vol.Name, vol.Spec.CSI = "by-hand", &corev1.CSIPersistentVolumeSource{Driver: "prov"}
		if err := checkSecrets(reading("x"), vol); err != nil {
			t.Errorf("without a Secret: %v", err)
		}
		vol.Spec.CSI.NodePublishSecretRef = ref // the staging pod has it in /pav/secrets
		if err := checkSecrets(reading("x"), vol); err != nil {
			t.Errorf("with the Secret of the staging pod: %v", err)
		}
		set(vol.Spec.CSI)
		refused := AsStepError(checkSecrets(reading("{{ params.tier }}"), vol))
		if refused == nil || refused.Reason != ReasonVolumeRefused || !strings.Contains(refused.Message, `"by-hand": spec.csi.`+field+` is "vault/key"`) {
			t.Errorf("%s: got %v", field, refused)
		}
		for _, argument := range []string{"{{ pv.spec.csi." + field + ".name }}", "{{ pv | tojson }}", "{{ pv['spec'].csi.items() }}"} {
			if err := checkSecrets(reading(argument), vol); err != nil {
				t.Errorf("%s, read by %s: %v", field, argument, err)
			}
		}
	}
}

func TestAVolumeWithASecretThatNobodyReadsIsNotStaged(t *testing.T) {
	claim := testkit.Claim("ns", "data", "u1", "prov")
	vol := testkit.Volume(testkit.Record(claim, "prov", tarnv1.VolumeCreated))
	stage := &tarnv1.PavStage{}
	prepare := func(step tarnv1.Step) error {
		_, err := (&Steps{StateDir: "/state"}).PrepareStage(t.Context(), step, reading("x"), stage, vol, claim, &corev1.Node{}, 1)
		return err
	}
	if err := prepare(tarnv1.StepStaging); err != nil {
		t.Fatal(err)
	}
	vol.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: "vault", Name: "key"}
	if refused := AsStepError(prepare(tarnv1.StepStaging)); refused == nil || !strings.Contains(refused.Message, "nodeStageSecretRef") {
		t.Errorf("got %v", refused)
	}
	if err := prepare(tarnv1.StepUnstaging); err != nil {
		t.Errorf("what was staged before cannot be unstaged: %v", err)
	}
	stage.Status.Pod.Staged = true
	if err := prepare(tarnv1.StepStaging); err != nil {
		t.Errorf("what was staged before cannot be staged again when it is lost: %v", err)
	}
}

func TestAVolumeIsStagedApartWhereATemplateReadsReadOnly(t *testing.T) {
	for name, c := range map[string]struct {
		staging, unstaging string
		want               bool
	}{
		"in none":                       {`{"podTemplate": {"spec": {"containers": [{"args": ["{{ handle }} readOnly"], "volumeMounts": [{"readOnly": true}]}]}}}`, `{}`, false},
		"in staging":                    {`{"podTemplate": {"spec": {"containers": [{"args": ["{{ 'ro' if readOnly else 'rw' }}"]}]}}}`, `{}`, true},
		"in unstaging":                  {`{}`, `{"podTemplate": "{% if readOnly %}{% endif %}"}`, true},
		"before it is assigned":         {`{"podTemplate": "{% set readOnly = readOnly or handle == 'x' %}"}`, `{}`, true},
		"where the section is one text": {`"{% set yaml = true %}podTemplate: {spec: {volumes: [{nfs: {readOnly: true}}]}} # {{ pv.spec.csi.readOnly }}"`, `{}`, false},
		"in what is no template":        {`"{% raw %}{{ readOnly }}{% endraw %}{# readOnly #}"`, `{}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := testkit.Provisioner("p", func(p *pavv1.PavProvisioner) {
				p.Spec.VolumeStaging, p.Spec.VolumeUnstaging = testkit.Section(c.staging), testkit.Section(c.unstaging)
			})
			if got := StagesApart(p); got != c.want {
				t.Errorf("staged apart: %v, want %v", got, c.want)
			}
		})
	}
	if StagesApart(testkit.Provisioner("without unstaging")) {
		t.Error("a provisioner without templates stages volumes apart")
	}
}
