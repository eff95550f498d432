//go:build integration

package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
)

// stageOf returns the PavStage of a volume on a node.
func stageOf(volume, node string) *tarnv1.PavStage {
	uid := types.UID(fmt.Sprintf("%x", volume))
	return &tarnv1.PavStage{
		ObjectMeta: metav1.ObjectMeta{Name: tarnv1.StageName(uid, node, false), Labels: map[string]string{tarnv1.LabelProvisioner: "privilege"}},
		Spec: tarnv1.PavStageSpec{
			Provisioner: tarnv1.ProvisionerReference{Name: "privilege", UID: "p"},
			VolumeName:  "v", VolumeUID: uid, NodeName: node,
		},
	}
}

// confined lists what the node agent of onNode may and may not do with stages and pods.
func confined(ctx context.Context, agent client.Client, prefix string) []attempt {
	status := func(name, node string) error {
		stage := stageOf(name, node)
		base := stage.DeepCopy()
		stage.Status.Node.Phase = tarnv1.StageStaged
		return agent.Status().Patch(ctx, stage, client.MergeFrom(base))
	}
	label := func(name, node string) error {
		stage := stageOf(name, node)
		base := stage.DeepCopy()
		stage.Finalizers = []string{tarnv1.FinalizerStageNode}
		return agent.Patch(ctx, stage, client.MergeFrom(base))
	}
	annotate := func(pod, patch string) error {
		return agent.Status().Patch(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: prefix + pod}},
			client.RawPatch("application/merge-patch+json", []byte(patch)))
	}
	const result = `{"metadata": {"annotations": {"tarn.dev/result": "{}"}}}`
	return []attempt{
		{"it makes a stage of its node", func() error { return agent.Create(ctx, stageOf(prefix+"own", onNode)) }, true},
		{"it makes no stage of another node", func() error { return agent.Create(ctx, stageOf(prefix+"forged", "node-2")) }, false},
		{"it does not take the name that another node needs", func() error {
			stage := stageOf(prefix+"squat", onNode)
			stage.Name = stageOf(prefix+"squat", "node-2").Name
			return agent.Create(ctx, stage)
		}, false},
		{"it does not take the name that another node had before", func() error {
			stage := stageOf(prefix+"squat", onNode)
			stage.Name = tarnv1.HashedStageName(stage.Spec.VolumeUID, "node-2", false)
			return agent.Create(ctx, stage)
		}, false},
		{"it does not take the name of a node whose name ends as its own", func() error {
			stage := stageOf(prefix+"squat", onNode)
			stage.Name = stageOf(prefix+"squat", "rack."+onNode).Name
			stage.Spec.VolumeUID += ".rack"
			return agent.Create(ctx, stage)
		}, false},
		{"it makes a stage that can only be read", func() error {
			stage := stageOf(prefix+"read", onNode)
			stage.Spec.ReadOnly = true
			stage.Name = tarnv1.StageName(stage.Spec.VolumeUID, onNode, true)
			return agent.Create(ctx, stage, client.DryRunAll)
		}, true},
		{"it makes no stage for which other nodes wait", func() error {
			stage := stageOf(prefix+"ahead", onNode)
			stage.Spec.AheadFor = &tarnv1.StageConsumer{Namespace: "default", Name: "here", UID: "u"}
			return agent.Create(ctx, stage)
		}, false},
		{"it tells how its stage is", func() error { return status(prefix+"own", onNode) }, true},
		{"it does not tell how another's is", func() error { return status(prefix+"other", "node-2") }, false},
		{"it changes its stage", func() error { return label(prefix+"own", onNode) }, true},
		{"it does not change another's", func() error { return label(prefix+"other", "node-2") }, false},
		{"it does not delete another's", func() error { return agent.Delete(ctx, stageOf(prefix+"other", "node-2")) }, false},
		{"it stores the result of a pod of its node", func() error { return annotate("here", result) }, true},
		{"it stores none of a pod of another node", func() error { return annotate("there", result) }, false},
		{"it stores none of a pod of no node", func() error { return annotate("nowhere", result) }, false},
		{"it does not change how a pod of its node is", func() error { return annotate("here", `{"status": {"phase": "Succeeded"}}`) }, false},
		{"it does not make a pod of its node one that a Service calls", func() error { return annotate("here", `{"metadata": {"labels": {"app": "bank"}}}`) }, false},
		{"it does not say anything else of a pod of its node", func() error { return annotate("here", `{"metadata": {"annotations": {"other": "x"}}}`) }, false},
		{"it does not change what others say of one", func() error { return annotate("here", `{"metadata": {"annotations": {"a": "x"}}}`) }, false},
		{"it does not take back what others say of one", func() error { return annotate("here", `{"metadata": {"annotations": {"a": null}}}`) }, false},
		{"it does not keep a pod of its node from going", func() error { return annotate("here", `{"metadata": {"finalizers": ["a/b"]}}`) }, false},
		{"it does not tell what the stage controller has done", func() error {
			stage := stageOf(prefix+"own", onNode)
			base := stage.DeepCopy()
			stage.Status.Pod = tarnv1.PavStagePodStatus{Phase: tarnv1.StagePodRunning, Namespace: "kube-system", Name: "victim"}
			return agent.Status().Patch(ctx, stage, client.MergeFrom(base))
		}, false},
	}
}

func TestTheNodeAgentWritesOnlyWhatIsOfItsNode(t *testing.T) {
	ctx, config, admin := policed(t)
	for prefix, agent := range map[string]client.Client{"told-": as(t, config, asNode), "bound-": withToken(ctx, t, config, admin)} {
		t.Run("by a token that is "+prefix, func(t *testing.T) {
			furnish(ctx, t, admin, prefix)
			judge(t, confined(ctx, agent, prefix), "node.tarn.dev")
			unfurnish(ctx, t, admin, prefix)
		})
	}
	// A thief with a token that names no node can do nothing with it.
	nowhere := rest.CopyConfig(config)
	nowhere.Impersonate = rest.ImpersonationConfig{UserName: asNode, Groups: []string{"system:authenticated"}}
	if err := testkit.Client(t, nowhere).Create(ctx, stageOf("nowhere", onNode)); err == nil || !strings.Contains(err.Error(), "names no node") {
		t.Errorf("a node agent of no node made a stage: %v", err)
	}
}

// placed are the pods of a case, with the node that each is on.
var placed = map[string]string{"here": onNode, "there": "node-2", "nowhere": ""}

func podOn(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{"a": "b"}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "busybox:1.36"}}},
	}
}

func furnish(ctx context.Context, t *testing.T, admin client.Client, prefix string) {
	t.Helper()
	for name, node := range placed {
		if err := admin.Create(ctx, podOn(prefix+name, node)); err != nil {
			t.Fatal(err)
		}
	}
	if err := admin.Create(ctx, stageOf(prefix+"other", "node-2")); err != nil {
		t.Fatal(err)
	}
}

func unfurnish(ctx context.Context, t *testing.T, admin client.Client, prefix string) {
	t.Helper()
	for name := range placed {
		if err := admin.Delete(ctx, podOn(prefix+name, ""), client.GracePeriodSeconds(0)); err != nil {
			t.Error(err)
		}
	}
	for name, node := range map[string]string{"own": onNode, "other": "node-2"} {
		stage := stageOf(prefix+name, node)
		if err := admin.Patch(ctx, stage, client.RawPatch("application/merge-patch+json", []byte(`{"metadata": {"finalizers": null}}`))); err != nil {
			t.Error(err)
		}
		if err := admin.Delete(ctx, stage); err != nil {
			t.Error(err)
		}
	}
}

// withToken returns a client with a token for the node agent of onNode. The API server makes it as
// it does for pods.
func withToken(ctx context.Context, t *testing.T, config *rest.Config, admin client.Client) client.Client {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: onNode}}
	if err := admin.Create(ctx, node); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := admin.Delete(context.WithoutCancel(ctx), node); err != nil {
			t.Error(err)
		}
	})
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: ptr.To[int64](600),
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID},
	}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "tarn-system", Name: "tarn-node"}}
	if err := admin.SubResource("token").Create(ctx, account, request); err != nil {
		t.Fatal(err)
	}
	bearer := rest.AnonymousClientConfig(config)
	bearer.BearerToken = request.Status.Token
	return testkit.Client(t, bearer)
}

func TestNoPartOfTarnHasRightsItDoesNotUse(t *testing.T) {
	ctx, _, admin := policed(t)
	right := func(verb, group, resource, sub, namespace string) authorizationv1.ResourceAttributes {
		return authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: resource, Subresource: sub, Namespace: namespace}
	}
	for _, c := range []struct {
		user string
		what string
		want bool
		authorizationv1.ResourceAttributes
	}{
		{asNode, "creates pods", false, right("create", "", "pods", "", "default")},
		{asNode, "deletes pods", false, right("delete", "", "pods", "", "default")},
		{asNode, "changes pods", false, right("patch", "", "pods", "", "default")},
		{asNode, "runs commands in pods", false, right("create", "", "pods", "exec", "default")},
		{asNode, "reads pods", false, right("get", "", "pods", "", "default")},
		{asNode, "reads claims", false, right("get", "", "persistentvolumeclaims", "", "default")},
		{asNode, "lists pods", false, right("list", "", "pods", "", "default")},
		{asNode, "stores results on pods", true, right("patch", "", "pods", "status", "default")},
		{asNode, "reads Secrets", false, right("get", "", "secrets", "", "default")},
		{asNode, "reads Tarn's own Secrets", false, right("get", "", "secrets", "", "tarn-system")},
		{asNode, "reads ConfigMaps", false, right("get", "", "configmaps", "", "default")},
		{asNode, "changes claims", false, right("patch", "", "persistentvolumeclaims", "", "default")},
		{asNode, "changes volumes", false, right("patch", "", "persistentvolumes", "", "")},
		{asNode, "changes nodes", false, right("patch", "", "nodes", "", "")},
		{asNode, "changes records", false, right("patch", "tarn.dev", "pavvolumes", "", "")},
		{asNode, "changes provisioners", false, right("patch", "pav.albertofaria.github.io", "pavprovisioners", "", "")},
		{asNode, "makes tokens", false, right("create", "", "serviceaccounts", "token", "tarn-system")},
		{asNode, "leads controllers", false, right("update", "coordination.k8s.io", "leases", "", "tarn-system")},
		{asNode, "replaces stages", false, right("update", "tarn.dev", "pavstages", "", "")},
		{asNode, "replaces what stages say", false, right("update", "tarn.dev", "pavstages", "status", "")},
		{asNode, "says what stages do", true, right("patch", "tarn.dev", "pavstages", "status", "")},
		{asController, "replaces Events", false, right("update", "events.k8s.io", "events", "", "default")},
		{asController, "reads Secrets", false, right("get", "", "secrets", "", "default")},
		{asController, "lists Secrets", false, right("list", "", "secrets", "", "")},
		{asController, "runs commands in pods", false, right("create", "", "pods", "exec", "default")},
		{asController, "makes tokens", false, right("create", "", "serviceaccounts", "token", "tarn-system")},
		{asController, "acts as others", false, right("impersonate", "", "users", "", "")},
		{asController, "gives rights", false, right("create", "rbac.authorization.k8s.io", "clusterrolebindings", "", "")},
		{asController, "shows kubelets its own token", false, right("get", "", "nodes", "stats", "")},
		{asController, "calls kubelets through the API server", false, right("get", "", "nodes", "proxy", "")},
		{asController, "changes nodes", false, right("patch", "", "nodes", "", "")},
		{asController, "changes admission policies", false, right("patch", "admissionregistration.k8s.io", "validatingadmissionpolicies", "", "")},
		{asController, "makes claims of tenants, for their Apps", true, right("create", "", "persistentvolumeclaims", "", "default")},
		{asController, "makes claims of its own", true, right("create", "", "persistentvolumeclaims", "", "tarn-system")},
		{asController, "takes the lease of somebody else", false, right("update", "coordination.k8s.io", "leases", "", "tarn-system")},
		{asController, "deletes namespaces", false, right("delete", "", "namespaces", "", "default")},
		{asController, "creates pods", true, right("create", "", "pods", "", "default")},
	} {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: c.user, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:tarn-system", "system:authenticated"},
			ResourceAttributes: &c.ResourceAttributes,
		}}
		if err := admin.Create(ctx, review); err != nil {
			t.Fatal(err)
		}
		if got := review.Status.Allowed; got != c.want {
			t.Errorf("%s %s: allowed is %t, want %t (%s)", c.user, c.what, got, c.want, review.Status.Reason)
		}
	}
}
