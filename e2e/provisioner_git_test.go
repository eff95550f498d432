//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// gitServer serves a repository by HTTP, under /public for everybody and under /private for user ada.
type gitServer struct {
	t   *testing.T
	dir string
	// address is where pods find it.
	address string
	// down makes it answer with errors. The channel failed receives a value for each under /public.
	down   atomic.Bool
	failed chan struct{}
}

func newGitServer(t *testing.T, password string) *gitServer {
	t.Helper()
	g := &gitServer{t: t, dir: t.TempDir(), failed: make(chan struct{}, 100)}
	programs := strings.TrimSpace(g.git("--exec-path"))
	backend := filepath.Join(programs, "git-http-backend")
	if _, err := os.Stat(backend); err != nil {
		t.Skipf("this machine cannot serve git: %v", err)
	}
	g.git("init", "-q", "--initial-branch=main", g.dir+"/work")
	g.git("clone", "-q", "--bare", g.dir+"/work", g.dir+"/repo.git")
	handler := func(prefix string) http.Handler {
		return &cgi.Handler{Path: backend, Root: prefix, Env: []string{"GIT_PROJECT_ROOT=" + g.dir, "GIT_HTTP_EXPORT_ALL=1", "HOME=" + g.dir, "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"}}
	}
	mux := http.NewServeMux()
	mux.Handle("/public/", handler("/public"))
	private := handler("/private")
	mux.HandleFunc("/private/", func(w http.ResponseWriter, r *http.Request) {
		if user, got, _ := r.BasicAuth(); user != "ada" || got != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		private.ServeHTTP(w, r)
	})
	host, _, err := net.SplitHostPort(suite.logs.CoreV1().RESTClient().Get().URL().Host)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	all := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.down.Load() {
			http.Error(w, "later", http.StatusServiceUnavailable)
			if strings.HasPrefix(r.URL.Path, "/public/") {
				g.failed <- struct{}{}
			}
			return
		}
		mux.ServeHTTP(w, r)
	})
	server := &http.Server{Handler: all} //nolint:gosec // only the case's pods reach it
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	g.address = listener.Addr().String()
	return g
}

func (g *gitServer) git(args ...string) string {
	g.t.Helper()
	command := exec.CommandContext(g.t.Context(), "git", args...)
	command.Env = append(os.Environ(), "HOME="+g.dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=ada", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=ada", "GIT_COMMITTER_EMAIL=a@b")
	out, err := command.Output()
	if err != nil {
		g.t.Fatalf("git %q: %v: %s", args, err, out)
	}
	return string(out)
}

// commit pushes a commit whose files "one" and "two" have the text.
func (g *gitServer) commit(text string) {
	g.t.Helper()
	for _, name := range []string{"one", "two"} {
		if err := os.WriteFile(filepath.Join(g.dir, "work", name), []byte(text+"\n"), 0o600); err != nil {
			g.t.Fatal(err)
		}
	}
	g.git("-C", g.dir+"/work", "add", "-A")
	g.git("-C", g.dir+"/work", "commit", "-q", "-m", text)
	g.git("-C", g.dir+"/work", "push", "-q", g.dir+"/repo.git", "main")
}

// back makes the ref what it was before the last commit.
func (g *gitServer) back() {
	g.t.Helper()
	g.git("-C", g.dir+"/work", "push", "-q", "--force", g.dir+"/repo.git", "main~1:main")
}

// fails makes the server fail once.
func (g *gitServer) fails(within time.Duration) {
	g.t.Helper()
	g.down.Store(true)
	defer g.down.Store(false)
	select {
	case <-g.failed:
	case <-time.After(within):
		g.t.Fatal("nobody looks whether the ref has moved")
	}
}

func annotated(annotations map[string]string, modes ...corev1.PersistentVolumeAccessMode) func(*corev1.PersistentVolumeClaim) {
	return func(claim *corev1.PersistentVolumeClaim) {
		claim.Annotations, claim.Spec.AccessModes = annotations, modes
		claim.Spec.Resources.Requests = size("32Mi")
	}
}

// secretsByAnnotation names the Secret of each claim in an annotation of it.
func secretsByAnnotation(annotation string) func(*storagev1.StorageClass) {
	return func(class *storagev1.StorageClass) {
		class.Parameters = map[string]string{
			"csi.storage.k8s.io/node-publish-secret-name":      "${pvc.annotations['" + annotation + "']}",
			"csi.storage.k8s.io/node-publish-secret-namespace": "${pvc.namespace}",
		}
	}
}

func (s *scenario) secret(name string, data map[string]string) {
	s.t.Helper()
	s.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: name}, StringData: data})
}

// followsGit is the script of a pod that reads a volume until it is at its third commit. It counts
// what it sees, and tells what no pod may be able to do.
const followsGit = `
	for file in /data/x /data/current/one /data/current/x /data/.commits/x; do
		if (echo no > $file) 2> /dev/null; then echo "changed $file"; fi
	done
	! rm -rf /data/current/ /data/.commits/* 2> /dev/null || echo "removed it"
	ls -A /data/current/
	until [ "$last" = third ]; do
		cd -P /data/current
		if [ "$(cat one)" != "$(cat two)" ]; then echo torn; fi
		[ "$last" = "$(cat one)" ] || { last=$(cat one); n=$((n+1)); echo "$n: now $last"; }
	done; ` + stays

func TestAGitVolumeIsOneCommitFollowsItsRefAndLogsInByASecret(t *testing.T) {
	t.Parallel()
	server := newGitServer(t, "hush")
	server.commit("first")
	s := onTheShelf(t, "git")
	private := s.classWith("-private", s.name, secretsByAnnotation("git.tarn.dev/secret"))
	public, secret := "http://"+server.address+"/public/repo.git", "http://"+server.address+"/private/repo.git"

	// Two pods of a node share what one commit has, and neither can change it.
	claim := s.claimWith("followed", annotated(map[string]string{
		"git.tarn.dev/repository": public, "git.tarn.dev/ref": "main", "git.tarn.dev/follow": "5s",
	}, corev1.ReadOnlyMany))
	reader, other := s.consumer("reader", claim.Name, followsGit), s.consumer("other", claim.Name, followsGit)

	// A claim that would fill the node's disk.
	large := s.claimWith("large", annotated(map[string]string{"git.tarn.dev/repository": public}, corev1.ReadOnlyMany), func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.Resources.Requests = size("1Pi")
	})
	greedy := s.consumer("greedy", large.Name, stays)

	// A working copy of a private repository, first with a wrong password.
	mine := s.claimWith("mine", ofClass(private), annotated(map[string]string{
		"git.tarn.dev/repository": secret, "git.tarn.dev/ref": "main", "git.tarn.dev/secret": "login",
	}, corev1.ReadWriteOnce))
	s.secret("login", map[string]string{"username": "ada", "password": "wrong-word"})
	writer := s.consumer("writer", mine.Name, "cat /data/one; echo changed > /data/one; ls /data/.git/HEAD; if grep -r hush /data/.git; then exit 1; fi; echo done; "+stays)
	s.told(writer, "FailedMount", "Authentication failed for")
	login := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "login"}}
	if err := s.get(login); err != nil {
		t.Fatal(err)
	}
	login.Data["password"] = []byte("hush")
	if err := suite.live.Update(s.ctx, login); err != nil {
		t.Fatal(err)
	}
	// Claims that no repository answers, or that try to run something.
	for name, c := range map[string]struct{ repository, want string }{
		"command": {"ext::sh -c touch% /pav/oops", "is not valid; write a URL"},
		"no-ref":  {public, "has no ref nosuch"},
	} {
		wrong := s.claimWith(name, annotated(map[string]string{"git.tarn.dev/repository": c.repository, "git.tarn.dev/ref": "nosuch"}, corev1.ReadOnlyMany))
		s.told(wrong, "ProvisioningFailed", c.want)
		s.remove(wrong)
	}

	for _, pod := range []*corev1.Pod{reader, other} {
		s.ready(pod)
	}
	s.prints(reader, "now first")
	server.commit("second")
	s.prints(reader, "now second")
	s.prints(other, "now second")
	server.back()
	s.prints(reader, "3: now first")
	s.told(greedy, "FailedMount", "no room for")

	server.fails(s.limit())
	// The staging pod is lost, and the volume follows on.
	for _, pod := range s.stepPods(tarn.StepStaging) {
		if slices.Contains(pod.Spec.Containers[0].Env, corev1.EnvVar{Name: "FOLLOW", Value: "5s"}) {
			s.delete(&pod)
		}
	}
	server.commit("third")
	for _, pod := range []*corev1.Pod{reader, other} {
		out := s.prints(pod, "now third")
		if strings.Contains(out, "torn") || strings.Contains(out, "changed") || strings.Contains(out, "removed") || !strings.Contains(out, "one\ntwo\n") || strings.Contains(out, ".git") {
			t.Errorf("pod %s has printed:\n%s", pod.Name, out)
		}
	}
	s.ready(writer)
	if out := s.prints(writer, "done"); !strings.HasSuffix(out, "\n/data/.git/HEAD\ndone\n") {
		t.Errorf("the writer has printed:\n%s", out)
	}
	for _, pod := range s.stepPods(tarn.StepStaging) {
		if text := fmt.Sprintf("%+v %s", pod, s.printed(&pod)); strings.Contains(text, "hush") {
			t.Errorf("staging pod %s shows the Secret", pod.Name)
		}
	}
}
