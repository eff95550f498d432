//go:build integration

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/testkit"
)

func TestLintHasTheAPIServerCheckThePods(t *testing.T) {
	config := testkit.APIServer(t)
	c := testkit.Client(t, config)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}}
	if err := c.Create(t.Context(), account); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	const staging = "containers: [{name: a, image: b}]}}\n"
	for _, test := range []struct {
		name string
		// from is the text in the provisioner to replace by to.
		from, to string
		// as is the user who calls; empty for an administrator.
		as        string
		wantLevel level
		// wantField is the end of the finding's path, wantMessage a part of it. Both are empty for
		// no finding.
		wantField, wantMessage string
	}{
		{"nothing", "", "", "", "", "", ""},
		{"a value of the staging pod", staging, "containers: [{name: a, image: b, imagePullPolicy: Sometimes}]}}\n", "",
			levelError, "spec.volumeStaging.podTemplate.spec.containers[0].imagePullPolicy", `"Sometimes"`},
		{"a value of the creation pod, by a template", "    handle: x\n", "    handle: x\n    podTemplate: {spec: {containers: [{name: a, image: b, ports: [{containerPort: '{{ requestedMinCapacity }}'}]}]}}\n", "",
			levelNote, "spec.volumeCreation.podTemplate", "the API server did not check its pod"},
		{"two values of one pod", staging, "containers: [{name: a, image: b, terminationMessagePolicy: Never}], dnsPolicy: Mine}}\n", "",
			levelError, "spec.volumeStaging.podTemplate.spec.dnsPolicy", `"Mine"`},
		{"a namespace that is not there yet", "metadata: {}", "metadata: {namespace: not-there}", "",
			levelNote, "spec.volumeStaging.podTemplate", `no namespace "not-there" yet`},
		{"by somebody who may not create pods", staging, "containers: [{name: a, image: b, imagePullPolicy: Sometimes}]}}\n", "somebody",
			levelNote, ".podTemplate", `the pods in namespace "tarn-volumes", in which you may not create any`},
	} {
		t.Run(test.name, func(t *testing.T) {
			text := dynamic
			if test.from != "" {
				at := strings.LastIndex(dynamic, test.from)
				if at < 0 {
					t.Fatalf("there is no %q", test.from)
				}
				text = dynamic[:at] + test.to + dynamic[at+len(test.from):]
			}
			file := filepath.Join(t.TempDir(), "provisioner.yaml")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			lint := newPavLintCommand()
			lint.Flags().StringSlice(stepNamespacesFlag, []string{tarnv1.StepNamespace, "*"}, "")
			p, m, err := readProvisioner(lint, file, "")
			if err != nil {
				t.Fatal(err)
			}
			asking := rest.CopyConfig(config)
			asking.Impersonate.UserName = test.as
			live, err := client.New(asking, client.Options{Scheme: kube.Scheme()})
			if err != nil {
				t.Fatal(err)
			}
			found := (&lintServer{client: client.WithFieldValidation(live, "Strict")}).checkPods(t.Context(), p, m, sample{})
			if test.wantMessage == "" {
				if len(found) > 0 {
					t.Errorf("found %v", found)
				}
				return
			}
			right := false
			for _, f := range found {
				right = right || f.Level == test.wantLevel && strings.HasSuffix(f.Field, test.wantField) && strings.Contains(f.Message, test.wantMessage)
			}
			if !right || test.wantLevel != levelError && len(found.only(levelError)) > 0 {
				t.Errorf("found %v, want a %s about %s with %q", found, test.wantLevel, test.wantField, test.wantMessage)
			}
		})
	}
	pods := &corev1.PodList{}
	if err := c.List(t.Context(), pods); err != nil || len(pods.Items) > 0 {
		t.Errorf("there are pods %v (%v), want none", pods.Items, err)
	}
}
