package steppod

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

const growingSection = `{
 "podTemplate": {"spec": {"containers": [{"name": "c", "args": ["{{ handle }} {{ capacity }} {{ newCapacity }} {{ requestedMinCapacity }} {{ sc.parameters.tier }}"]}]}},
 "nodePodTemplate": {"spec": {"containers": [{"name": "c", "securityContext": {"privileged": true}, "args": ["{{ node.metadata.name }} {{ capacity }} {{ newCapacity }} {{ readOnly }}"]}]}}}`

// aGrowth is a volume of 1Gi of a provisioner with both pods.
func aGrowth(changes ...testkit.With[*pavv1.PavProvisioner]) (*pavv1.PavProvisioner, *tarnv1.PavVolume, *corev1.PersistentVolumeClaim) {
	claim := testkit.Claim("ns", "data", "u1", "prov")
	claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	record := testkit.Record(claim, "prov", tarnv1.VolumeCreated)
	record.Status.Handle, record.Status.Capacity = "h", 1<<30
	p := testkit.Provisioner("prov", changes...)
	p.Spec.VolumeExpansion = testkit.Section(growingSection)
	return p, record, claim
}

func TestAnExpansionPodKnowsTheOldAndTheNewSize(t *testing.T) {
	p, record, claim := aGrowth()
	prepared, err := (&Steps{}).PrepareExpansion(context.Background(), p, record, claim, 2<<30, 3)
	if err != nil {
		t.Fatal(err)
	}
	pod := prepared.Pod
	if got, want := pod.Spec.Containers[0].Args[0], "h 1073741824 2147483648 2147483648 gold"; got != want {
		t.Errorf("it is told %q, want %q", got, want)
	}
	if pod.Name != "pav-expansion-u1-3" || pod.Labels[tarnv1.LabelRecord] != string(record.UID) || !hasResults(pod) {
		t.Errorf("pod %s has labels %v, volumes %v", pod.Name, pod.Labels, pod.Spec.Volumes)
	}
}

func TestANodeExpansionPodSharesTheFolderOfItsStage(t *testing.T) {
	p, record, claim := aGrowth()
	stage := &tarnv1.PavStage{ObjectMeta: metav1.ObjectMeta{UID: "s1"}, Spec: tarnv1.PavStageSpec{NodeName: "n1"}}
	prepared, err := (&Steps{StateDir: "/state"}).PrepareNodeExpansion(context.Background(), p, NodeExpansion{
		Stage: stage, Record: record, Volume: testkit.Volume(record), Claim: claim,
		Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, NewCapacity: 2 << 30, Attempt: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	pod := prepared.Pod
	if got, want := pod.Spec.Containers[0].Args[0], "n1 1073741824 2147483648 False"; got != want {
		t.Errorf("it is told %q, want %q", got, want)
	}
	mount := pod.Spec.Containers[0].VolumeMounts[0]
	if pod.Name != "pav-node-expansion-s1-2" || pod.Spec.NodeName != "n1" || pod.Spec.Volumes[0].HostPath.Path != "/state/stages/s1/pav" ||
		*mount.MountPropagation != corev1.MountPropagationBidirectional || pod.Spec.RestartPolicy != corev1.RestartPolicyNever {
		t.Errorf("pod %s on %s with %v at %v", pod.Name, pod.Spec.NodeName, pod.Spec.Volumes, mount)
	}
}

func TestANodeExpansionOfAVolumeByHandKnowsWhatItsStagingDoes(t *testing.T) {
	p, record, claim := aGrowth()
	p.Spec.VolumeExpansion = testkit.Section(`{"nodePodTemplate": {"spec": {"containers": [{"name": "c", "image": "i",
		"args": ["{{ handle }} {{ node.metadata.name }} {{ capacity }} {{ newCapacity }} {{ requestedMinCapacity }} {{ defaultHandle is defined }} {{ sc is defined }}"]}]}}}`)
	vol := testkit.Volume(record)
	vol.Spec.CSI.VolumeHandle = "shelf-7"
	prepared, err := (&Steps{StateDir: "/state"}).PrepareNodeExpansion(context.Background(), p, NodeExpansion{
		Stage: &tarnv1.PavStage{ObjectMeta: metav1.ObjectMeta{UID: "s1"}, Spec: tarnv1.PavStageSpec{NodeName: "n1"}}, Volume: vol, Claim: claim,
		Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, NewCapacity: 2 << 30, Attempt: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := prepared.Pod.Spec.Containers[0].Args[0], "shelf-7 n1 1073741824 2147483648 2147483648 False False"; got != want {
		t.Errorf("it is told %q, want %q", got, want)
	}
}

func TestAnExpansionKeepsToTheLimitsOfTheCreation(t *testing.T) {
	for _, c := range []struct {
		name       string
		change     func(*pavv1.PavProvisioner, *tarnv1.PavVolume)
		wantReason string
	}{
		{"nothing forbids it", func(*pavv1.PavProvisioner, *tarnv1.PavVolume) {}, ""},
		{"the claim's limit does", func(_ *pavv1.PavProvisioner, r *tarnv1.PavVolume) {
			r.Spec.RequestedMaxCapacity = ptr.To[int64](1 << 30)
		}, ReasonRefused},
		{"maxCapacity does", func(p *pavv1.PavProvisioner, _ *tarnv1.PavVolume) {
			p.Spec.VolumeValidation = testkit.Section(`{"maxCapacity": "1Gi"}`)
		}, ReasonRefused},
		{"maxCapacity is no size", func(p *pavv1.PavProvisioner, _ *tarnv1.PavVolume) {
			p.Spec.VolumeValidation = testkit.Section(`{"maxCapacity": "{{ 'much' }}"}`)
		}, ReasonInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, record, claim := aGrowth()
			c.change(p, record)
			_, err := (&Steps{}).PrepareExpansion(context.Background(), p, record, claim, 2<<30, 1)
			got := ""
			if err != nil {
				got = AsStepError(err).Reason
			}
			if got != c.wantReason {
				t.Errorf("%v, want %q", err, c.wantReason)
			}
		})
	}
}

func TestTheResultOfAnExpansion(t *testing.T) {
	_, record, _ := aGrowth()
	record.Spec.RequestedMaxCapacity = ptr.To[int64](4 << 30)
	for _, c := range []struct {
		name    string
		result  *tarnv1.PodResult
		want    int64
		wantErr string
	}{
		{"without a pod it is what was asked for", nil, 2 << 30, ""},
		{"without a word too", &tarnv1.PodResult{}, 2 << 30, ""},
		{"it may be more", &tarnv1.PodResult{Capacity: ptr.To("3Gi")}, 3 << 30, ""},
		{"but not less", &tarnv1.PodResult{Capacity: ptr.To("1Gi")}, 0, "the claim requests 2Gi"},
		{"nor beyond the limit", &tarnv1.PodResult{Capacity: ptr.To("5Gi")}, 0, "the claim's limit is 4Gi"},
		{"it must be a size", &tarnv1.PodResult{Capacity: ptr.To("much")}, 0, "not a size"},
		{"and readable", &tarnv1.PodResult{Unreadable: "/pav/capacity is a link"}, 0, "is a link"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ExpansionResult(record, 2<<30, c.result)
			if got != c.want || (err == nil) != (c.wantErr == "") || err != nil && !strings.Contains(err.Error(), c.wantErr) {
				t.Errorf("%d, %v, want %d, %q", got, err, c.want, c.wantErr)
			}
		})
	}
}

func TestNodesTakePartWhereTheProvisionerSaysSo(t *testing.T) {
	for text, want := range map[string]bool{
		`{}`: false, `{"podTemplate": {}}`: false, `{"nodePodTemplate": null}`: false, `{"nodePodTemplate": {"spec": {}}}`: true, `"{{ whole }}"`: true,
	} {
		p := &pavv1.PavProvisioner{Spec: pavv1.PavProvisionerSpec{VolumeExpansion: testkit.Section(text)}}
		if got := ExpandsOnNodes(p); got != want {
			t.Errorf("%s: %t, want %t", text, got, want)
		}
	}
}

func TestExpansionIsShownAsTwoStepsOfOneSection(t *testing.T) {
	p, _, _ := aGrowth()
	found := map[tarnv1.Step][]string{}
	for _, s := range Sections(p) {
		if fields, ok := s.Object.(map[string]any); ok && s.Field == "spec.volumeExpansion" {
			found[s.Step] = sortedKeys(fields)
		}
	}
	if !slices.Equal(found[tarnv1.StepExpansion], []string{"podTemplate"}) || !slices.Equal(found[tarnv1.StepNodeExpansion], []string{"nodePodTemplate"}) {
		t.Errorf("the section shows as %v", found)
	}
}

func TestSectionsAboutVolumesThatAreMadeNeedDynamic(t *testing.T) {
	p, _, _ := aGrowth()
	p.Spec.ProvisioningModes = []pavv1.ProvisioningMode{pavv1.ModeStatic}
	p.Spec.VolumeDeletion, p.Spec.VolumeRecycling = p.Spec.VolumeStaging, p.Spec.VolumeStaging
	var refused []string
	for _, problem := range Check(p, nil) {
		if strings.Contains(problem.Message, "needs Dynamic") {
			refused = append(refused, problem.Field)
		}
	}
	slices.Sort(refused)
	if want := []string{"spec.volumeCreation", "spec.volumeDeletion", "spec.volumeExpansion", "spec.volumeRecycling"}; !slices.Equal(refused, want) {
		t.Errorf("without Dynamic refused are %v, want %v", refused, want)
	}
}
