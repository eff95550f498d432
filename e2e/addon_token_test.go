//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// ofPod gives a client with the kubelet's token for a running pod, as an attacker in the pod would
// have it.
func (s *scenario) ofPod(pod *corev1.Pod) client.Client {
	s.t.Helper()
	pids, err := suite.machine.processes(pod)
	if err != nil {
		s.t.Fatal(err)
	}
	token, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/var/run/secrets/kubernetes.io/serviceaccount/token", pids[0]))
	if err != nil {
		s.t.Fatal(err)
	}
	return s.bearing(strings.TrimSpace(string(token)))
}

// bearing gives a client that authenticates only by a token.
func (s *scenario) bearing(token string) client.Client {
	s.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		s.t.Fatal(err)
	}
	bearer := rest.AnonymousClientConfig(config)
	bearer.BearerToken = token
	c, err := client.New(bearer, client.Options{Scheme: suite.live.Scheme(), Mapper: suite.live.RESTMapper()})
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// agentOn gives the node agent on a node.
func (s *scenario) agentOn(node string) *corev1.Pod {
	s.t.Helper()
	pods := s.parts("node")
	i := slices.IndexFunc(pods, func(p corev1.Pod) bool {
		return p.Spec.NodeName == node && p.DeletionTimestamp == nil && isReadyPod(&p)
	})
	if i < 0 {
		s.t.Fatalf("no node agent runs on %s", node)
	}
	return &pods[i]
}

// stageElsewhere makes a stage for a node that does not exist. The controller would delete it at
// once; a finalizer keeps it until the case ends.
func (s *scenario) stageElsewhere(like *tarn.PavStage) *tarn.PavStage {
	s.t.Helper()
	other := &tarn.PavStage{ObjectMeta: metav1.ObjectMeta{Name: s.name + "-elsewhere", Finalizers: []string{"e2e.tarn.dev/kept"}}, Spec: like.Spec}
	other.Spec.NodeName = s.name + "-elsewhere"
	s.create(other)
	s.t.Cleanup(func() {
		s.deleteIfThere(other)
		if err := client.IgnoreNotFound(suite.live.Patch(s.ctx, other, merges(`{"metadata": {"finalizers": null}}`))); err != nil {
			s.t.Error(err)
		}
		s.gone(other)
	})
	return other
}

func merges(patch string) client.Patch {
	return client.RawPatch("application/merge-patch+json", []byte(patch))
}

// attempt is a request with a token and the reason for its denial; "" where it is allowed.
type attempt struct {
	name, refusal string
	do            func() error
}

// only tries every request, and wants the denied ones to fail for the given reason.
func (s *scenario) only(who string, attempts []attempt) {
	s.t.Helper()
	for _, a := range attempts {
		err := a.do()
		switch {
		case a.refusal == "" && err != nil:
			s.t.Errorf("%s cannot %s: %v", who, a.name, err)
		case a.refusal != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), a.refusal)):
			s.t.Errorf("%s can %s, or is refused for another reason than %q: %v", who, a.name, a.refusal, err)
		}
	}
}

// nobodysSecrets are requests for an existing Secret that no part of Tarn may make.
func nobodysSecrets(ctx context.Context, c client.Client, secret *corev1.Secret) []attempt {
	const no = "cannot"
	return []attempt{
		{"read a Secret", no, func() error { return c.Get(ctx, client.ObjectKeyFromObject(secret), &corev1.Secret{}) }},
		{"list Secrets", no, func() error { return c.List(ctx, &corev1.SecretList{}, client.InNamespace(secret.Namespace)) }},
		{"list Secrets where Tarn lives", no, func() error { return c.List(ctx, &corev1.SecretList{}, client.InNamespace(tarnSystem)) }},
		{"have a token made", no, func() error {
			account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: tarnSystem, Name: controller}}
			return c.SubResource("token").Create(ctx, account, &authenticationv1.TokenRequest{})
		}},
	}
}

// agentWrites are writes of a node agent, to stages and pods of its own node and of others.
func agentWrites(ctx context.Context, c client.Client, own, other *tarn.PavStage, user, nowhere *corev1.Pod) []attempt {
	const (
		elsewhere = "spec.nodeName is not"
		note      = `{"metadata": {"annotations": {"e2e.tarn.dev/note": "written"}}}`
		result    = `{"metadata": {"annotations": {"tarn.dev/result": "{}"}}}`
		status    = `{"status": {"node": {"message": "written"}}}`
	)
	creates := func(node string) func() error {
		return func() error {
			stage := &tarn.PavStage{ObjectMeta: metav1.ObjectMeta{Name: tarn.StageName(own.Spec.VolumeUID, node, true)}, Spec: own.Spec}
			stage.Spec.NodeName, stage.Spec.ReadOnly = node, true
			return c.Create(ctx, stage, client.DryRunAll)
		}
	}
	deletes := func(stage *tarn.PavStage) func() error {
		return func() error { return c.Delete(ctx, stage.DeepCopy(), client.DryRunAll) }
	}
	says := func(stage *tarn.PavStage) func() error {
		return func() error { return c.Status().Patch(ctx, stage.DeepCopy(), merges(status), client.DryRunAll) }
	}
	stores := func(pod *corev1.Pod) func() error {
		return func() error { return c.Status().Patch(ctx, pod.DeepCopy(), merges(result), client.DryRunAll) }
	}
	return []attempt{
		{"write to a stage of its node", "", func() error { return c.Patch(ctx, own.DeepCopy(), merges(note)) }},
		{"say how a stage of its node is", "", says(own)},
		{"make a stage of its node", "", creates(own.Spec.NodeName)},
		{"delete a stage of its node", "", deletes(own)},
		{"store the result of a pod of its node", "", stores(user)},
		{"write to another node's stage", elsewhere, func() error { return c.Patch(ctx, other.DeepCopy(), merges(note)) }},
		{"say how another node's stage is", elsewhere, says(other)},
		{"make a stage of another node", elsewhere, creates(other.Spec.NodeName)},
		{"delete another node's stage", elsewhere, deletes(other)},
		{"store the result of a pod of no node", elsewhere, stores(nowhere)},
		{"make a pod", "cannot create", func() error {
			return c.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: user.Namespace, Name: "made"}, Spec: corev1.PodSpec{Containers: user.Spec.Containers}}, client.DryRunAll)
		}},
		{"list pods", "cannot list", func() error { return c.List(ctx, &corev1.PodList{}, client.InNamespace(user.Namespace)) }},
	}
}

func TestAddOnTheTokenOfARunningNodeAgentWritesForItsOwnNodeAlone(t *testing.T) {
	needsAddOn(t)
	t.Parallel()
	s := begin(t, "agent-token")
	s.needsThisMachine()
	s.create(s.provisioner(fields{"volumeCreation": asRequested, "volumeStaging": greeting}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	user := s.consumer("user", s.bound(s.claim("data")).Name, stays)
	s.ready(user)
	own := s.stageOf("there", func(stage *tarn.PavStage) bool { return stage.Status.Node.Phase == tarn.StageStaged })
	own.Spec.AheadFor = nil // else the stage controller would begin its copy ahead
	other := s.stageElsewhere(own)
	nowhere := s.consumer("nowhere", "", stays, func(pod *corev1.Pod) {
		pod.Spec.SchedulingGates, pod.Spec.Volumes, pod.Spec.Containers[0].VolumeMounts = []corev1.PodSchedulingGate{{Name: "e2e.tarn.dev/kept"}}, nil, nil
	})
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "theirs"}, StringData: map[string]string{"word": "theirs"}}
	s.create(secret)

	suite.machine.kills.Lock() // the token ends with its pod
	defer suite.machine.kills.Unlock()
	agent := s.ofPod(s.agentOn(own.Spec.NodeName))
	whoami := &authenticationv1.SelfSubjectReview{}
	if err := agent.Create(s.ctx, whoami); err != nil {
		t.Fatal(err)
	}
	on := whoami.Status.UserInfo.Extra["authentication.kubernetes.io/node-name"]
	if name := "system:serviceaccount:" + tarnSystem + ":" + nodeAgent; whoami.Status.UserInfo.Username != name || !slices.Equal(on, []string{own.Spec.NodeName}) {
		t.Fatalf("the token is that of %+v, want %s on %s", whoami.Status.UserInfo, name, own.Spec.NodeName)
	}
	s.only("the agent", append(agentWrites(s.ctx, agent, own, other, user, nowhere), nobodysSecrets(s.ctx, agent, secret)...))
	if err := suite.live.Get(s.ctx, client.ObjectKeyFromObject(own), own); err != nil || own.Annotations["e2e.tarn.dev/note"] != "written" {
		t.Errorf("what the agent wrote to its own stage is not there: %v (%v)", own.Annotations, err)
	}

	// A token requested by a user names no node.
	unbound := s.bearing(strings.TrimSpace(s.kubectlSays("create", "token", nodeAgent, "-n", tarnSystem)))
	s.only("whoever has had a token of the agents made", []attempt{{"write to a stage", "names no node", func() error {
		return unbound.Patch(s.ctx, own.DeepCopy(), merges(`{"metadata": {"annotations": {"e2e.tarn.dev/note": "forged"}}}`))
	}}})
}

func TestAddOnNoTokenOfARunningControllerOrAPIReadsSecrets(t *testing.T) {
	needsAddOn(t)
	t.Parallel()
	s := begin(t, "secrets")
	s.needsThisMachine()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "theirs"}, StringData: map[string]string{"word": "theirs"}}
	s.create(secret)
	suite.machine.kills.Lock() // the token ends with its pod
	defer suite.machine.kills.Unlock()
	for _, part := range []string{"controller", "api"} {
		pods := s.parts(part)
		i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.DeletionTimestamp == nil && isReadyPod(&p) })
		if i < 0 {
			t.Fatalf("no pod of tarn's %s is ready", part)
		}
		s.only("the "+part, nobodysSecrets(s.ctx, s.ofPod(&pods[i]), secret))
	}
}
