package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"tarn.dev/tarn/cluster/internal/component"
	"tarn.dev/tarn/cluster/internal/layout"
)

func TestATokenIsReplacedLongBeforeItExpires(t *testing.T) {
	l, err := layout.New("x", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	made, down := 0, false
	server := fake.NewClientset()
	server.PrependReactor("create", "serviceaccounts", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if down {
			return true, nil, errors.New("the API server is away")
		}
		made++
		request := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenRequest)
		request.Status.Token = fmt.Sprintf("token %d", made)
		request.Status.ExpirationTimestamp = metav1.NewTime(now.Add(time.Duration(*request.Spec.ExpirationSeconds) * time.Second))
		return true, request, nil
	})
	keeper := &tokens{layout: l, life: time.Hour, client: func() (kubernetes.Interface, error) { return server, nil }, due: map[string]time.Time{}}
	if err := keeper.issue(context.Background(), component.TarnAPI, now); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what  string
		after time.Duration
		down  bool
		want  string
	}{
		{"at once", 0, false, "token 1"},
		{"before half of its life", 29 * time.Minute, false, "token 1"},
		{"after half of its life, without an API server", 2 * time.Minute, true, "token 1"},
		{"a minute later, with one", time.Minute, false, "token 2"},
		{"soon after that", time.Minute, false, "token 2"},
		{"after the machine was suspended for days", 72 * time.Hour, false, "token 3"},
	} {
		now, down = now.Add(c.after), c.down
		if err := keeper.replace(context.Background(), now); (err != nil) != c.down {
			t.Errorf("%s: %v", c.what, err)
		}
		if got, err := os.ReadFile(l.TokenOf(component.TarnAPI)); err != nil || string(got) != c.want {
			t.Errorf("%s the file holds %q (%v), want %q", c.what, got, err, c.want)
		}
	}
	if info, err := os.Stat(l.TokenOf(component.TarnAPI)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v (%v), want mode 0600", info.Mode(), err)
	}
	if tokenLife > 7*24*time.Hour {
		t.Errorf("a token is valid for %s, want days at most", tokenLife)
	}
}

func TestTheAgentsTokenFollowsANodeThatIsRegisteredAgain(t *testing.T) {
	l, err := layout.New("x", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ctx, now := t.Context(), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	server := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: l.NodeName(), UID: "first"}})
	server.PrependReactor("create", "serviceaccounts", func(a clienttesting.Action) (bool, runtime.Object, error) {
		request := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenRequest)
		request.Status.Token = "names " + string(request.Spec.BoundObjectRef.UID)
		request.Status.ExpirationTimestamp = metav1.NewTime(now.Add(time.Hour))
		return true, request, nil
	})
	keeper := &tokens{layout: l, life: time.Hour, client: func() (kubernetes.Interface, error) { return server, nil }, due: map[string]time.Time{}}
	if err := keeper.issue(ctx, component.TarnNode, now); err != nil {
		t.Fatal(err)
	}
	becomes := func(what, want string) {
		t.Helper()
		if err := keeper.replace(ctx, now); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if got, err := os.ReadFile(l.TokenOf(component.TarnNode)); err != nil || string(got) != want {
			t.Errorf("%s the token %q (%v), want %q", what, got, err, want)
		}
	}
	becomes("as long as the Node exists,", "names first")
	nodes := server.CoreV1().Nodes()
	if err := nodes.Delete(ctx, l.NodeName(), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	becomes("while no Node exists,", "names first")
	if _, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: l.NodeName(), UID: "second"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	becomes("once it is registered again,", "names second")
}
