//go:build e2e

package e2e

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
)

// bucketServer is a server of S3 or Google Cloud Storage on this machine that pods reach. The module
// hack/buckets names the versions.
type bucketServer struct {
	t       *testing.T
	address string
	open    string // another address at which it listens, or nothing
	args    []string
	env     []string
	running *exec.Cmd
	ended   chan struct{}
}

// secretKey is what no object, log or command line may contain.
const secretKey = "not-to-be-seen-anywhere"

// buildServer builds a program of hack/buckets and gives its path.
func buildServer(t *testing.T, pkg string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "server")
	build := exec.Command("go", "build", "-C", "../hack/buckets", "-o", path, pkg)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v: %s", pkg, err, out)
	}
	return path
}

// hostForPods gives the address of this machine at which the cluster's pods reach it.
func hostForPods(t *testing.T) string {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	address, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	return address.Hostname()
}

// freeAddress gives an address of a host that nothing listens on. The kernel gives its port to no
// connection, and Kubernetes to no Service.
func freeAddress(t *testing.T, host string) string {
	t.Helper()
	var err error
	for range 20 {
		address := net.JoinHostPort(host, strconv.Itoa(20000+mathrand.IntN(10000)))
		var listener net.Listener
		if listener, err = net.Listen("tcp", address); err == nil {
			if err := listener.Close(); err != nil {
				t.Fatal(err)
			}
			return address
		}
	}
	t.Fatalf("no free port at %s: %v", host, err)
	return ""
}

// start runs the server until stop or the end of the case. It returns when the server listens.
func (b *bucketServer) start() {
	b.t.Helper()
	said, err := os.CreateTemp(b.t.TempDir(), "said")
	if err != nil {
		b.t.Fatal(err)
	}
	defer said.Close() // the server has its own
	b.running, b.ended = exec.Command(b.args[0], b.args[1:]...), make(chan struct{})
	b.running.Env = append(os.Environ(), b.env...)
	b.running.Stdout, b.running.Stderr = said, said
	if err := b.running.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if text, err := os.ReadFile(said.Name()); b.t.Failed() {
			b.t.Logf("the server at %s said %q (%v)", b.address, text, err)
		}
	})
	go func() {
		_ = b.running.Wait() // stop kills it
		close(b.ended)
	}()
	for _, address := range []string{b.address, b.open} {
		if address == "" {
			continue
		}
		err := wait.PollUntilContextTimeout(b.t.Context(), 50*time.Millisecond, soon, true, func(context.Context) (bool, error) {
			select {
			case <-b.ended:
				return false, errors.New("it has ended")
			default:
			}
			if connection, err := net.Dial("tcp", address); err == nil {
				return true, connection.Close()
			}
			return false, nil // not yet
		})
		if err != nil {
			b.t.Fatalf("the server does not listen at %s: %v", address, err)
		}
	}
}

// stop kills the server.
func (b *bucketServer) stop() {
	if b.running != nil {
		_ = b.running.Process.Kill() // it may have ended
		<-b.ended
		b.running = nil
	}
}

// credentials makes a Secret for a class, and gives its name.
func credentials(t *testing.T, data map[string]string) string {
	t.Helper()
	ctx := context.Background() // that of the test ends before its cleanup
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: namePrefix + "bucket-", Namespace: "tarn-volumes"}, StringData: data}
	if err := suite.live.Create(ctx, secret); err != nil {
		t.Fatalf("creating a Secret: %v", err)
	}
	t.Cleanup(func() {
		if err := suite.live.Delete(ctx, secret); err != nil {
			t.Errorf("deleting Secret %s: %v", secret.Name, err)
		}
	})
	return secret.Name
}

// s3InMemory starts the S3 server of the core cases. The function gives an object as another client
// reads it; any method but GET is carried out.
func s3InMemory(t *testing.T) (parameters map[string]string, object func(method, key string) (int, string)) {
	t.Helper()
	b := &bucketServer{t: t, address: freeAddress(t, hostForPods(t)), env: []string{"ACCESS_KEY=tester", "SECRET_KEY=" + secretKey}}
	b.open = freeAddress(t, "127.0.0.1")
	b.args = []string{buildServer(t, "./s3mem"), b.address, b.open}
	t.Cleanup(b.stop)
	b.start()
	parameters = map[string]string{
		"endpoint": "http://" + b.address, "secret": credentials(t, map[string]string{"accessKeyId": "tester", "secretAccessKey": secretKey}),
	}
	return parameters, func(method, key string) (int, string) {
		t.Helper()
		request, err := http.NewRequest(method, "http://"+b.open+"/"+key, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(text)
	}
}

// versitygw starts a real S3 server over a directory, in which buckets are directories and objects
// files.
func versitygw(t *testing.T) (server *bucketServer, dir string, parameters map[string]string) {
	t.Helper()
	dir = t.TempDir()
	b := &bucketServer{t: t, address: freeAddress(t, hostForPods(t)), env: []string{"ROOT_ACCESS_KEY=tester", "ROOT_SECRET_KEY=" + secretKey}}
	b.args = []string{buildServer(t, "github.com/versity/versitygw/cmd/versitygw"), "--quiet", "--port", b.address, "posix", dir}
	t.Cleanup(b.stop)
	b.start()
	return b, dir, map[string]string{
		"endpoint": "http://" + b.address, "secret": credentials(t, map[string]string{"accessKeyId": "tester", "secretAccessKey": secretKey}),
	}
}

// fakeGCS starts an emulator of Google Cloud Storage, and what gives tokens to a service account.
func fakeGCS(t *testing.T) (dir string, parameters map[string]string) {
	t.Helper()
	dir = t.TempDir()
	host := hostForPods(t)
	b := &bucketServer{t: t, address: freeAddress(t, host)}
	_, port, err := net.SplitHostPort(b.address)
	if err != nil {
		t.Fatal(err)
	}
	b.args = []string{
		buildServer(t, "github.com/fsouza/fake-gcs-server"), "-scheme", "http", "-host", host, "-port", port,
		"-filesystem-root", dir, "-public-host", b.address, "-external-url", "http://" + b.address, "-log-level", "error",
	}
	t.Cleanup(b.stop)
	b.start()

	tokens := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"access_token": "token", "token_type": "Bearer", "expires_in": 3600}`)
	}))
	if err = tokens.Listener.Close(); err != nil {
		t.Fatal(err)
	}
	if tokens.Listener, err = net.Listen("tcp", net.JoinHostPort(host, "0")); err != nil {
		t.Fatal(err)
	}
	tokens.Start()
	t.Cleanup(tokens.Close)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	account, err := json.MarshalIndent(map[string]string{
		"type": "service_account", "client_email": "me@example.org", "token_uri": tokens.URL,
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})),
	}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return dir, map[string]string{
		"storageType": "gcs", "project": "1", "endpoint": "http://" + b.address + "/storage/v1/",
		"secret": credentials(t, map[string]string{"serviceAccount": string(account)}),
	}
}

// keepsItsSecret fails the case if the key is in a pod of the case, a volume, a log or a command
// line of the machine.
func (s *scenario) keepsItsSecret(pods []corev1.Pod, objects ...any) {
	s.t.Helper()
	said := map[string]string{}
	for i := range pods {
		said["the log of "+pods[i].Name] = s.printed(&pods[i])
		objects = append(objects, pods[i])
	}
	for i, o := range objects {
		text, err := json.Marshal(o)
		if err != nil {
			s.t.Fatal(err)
		}
		said[fmt.Sprintf("object %d", i)] = string(text)
	}
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(commands) == 0 {
		s.t.Fatalf("no command lines to read: %v", err)
	}
	for _, path := range commands {
		text, _ := os.ReadFile(path) // the process may have ended
		said[path] = string(text)
	}
	for where, text := range said {
		if strings.Contains(text, secretKey) {
			s.t.Errorf("the secret key is in %s", where)
		}
	}
}
