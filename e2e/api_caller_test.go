//go:build e2e

package e2e

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// restCaller calls the REST API of applications as a service account.
type restCaller struct {
	s          *scenario
	url, token string
	// authority is the file with the server's certificate authority, "" without TLS.
	authority string
	http      *http.Client
}

// restCaller makes a caller that may edit the case's namespace. It skips the case on a cluster
// whose API cannot be reached.
func (s *scenario) restCaller() *restCaller {
	s.t.Helper()
	c, why := s.restCallerIfAny()
	if c == nil {
		s.t.Skip(why)
	}
	return c
}

// restCallerIfAny makes a caller, or says why that is not possible.
func (s *scenario) restCallerIfAny() (c *restCaller, why string) {
	s.t.Helper()
	if !suite.machine.here() {
		return nil, "the cluster is not on this machine, so nobody says where its REST API answers"
	}
	if inPods() {
		return (&restCaller{s: s, url: s.serviceURL(), http: patient(nil)}).as("deployer", "edit"), ""
	}
	out, err := suite.machine.run("status", "--output", "json")
	if err != nil {
		s.t.Fatal(err)
	}
	var status struct{ Apps, AppsCA string }
	if err := json.Unmarshal([]byte(out), &status); err != nil {
		s.t.Fatal(err)
	}
	if status.Apps == "" {
		return nil, "this cluster runs without the REST API"
	}
	authority, err := os.ReadFile(status.AppsCA)
	if err != nil {
		s.t.Fatal(err)
	}
	return (&restCaller{s: s, url: status.Apps, authority: status.AppsCA, http: patient(authority)}).as("deployer", "edit"), ""
}

// by gives a caller with another token; "" for none.
func (c *restCaller) by(token string) *restCaller {
	return &restCaller{s: c.s, url: c.url, token: token, authority: c.authority, http: c.http}
}

// as gives a caller for another service account of the case's namespace. It binds the account to
// role, unless role is empty.
func (c *restCaller) as(name, role string) *restCaller {
	c.s.t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: c.s.name, Name: name}}
	c.s.create(account)
	if role != "" {
		c.s.create(&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: c.s.name, Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: c.s.name, Name: name}},
		})
		c.s.allowed("system:serviceaccount:"+c.s.name+":"+name, authorizationv1.ResourceAttributes{Namespace: c.s.name, Verb: "list", Resource: "persistentvolumeclaims"})
	}
	request := &authenticationv1.TokenRequest{}
	if err := suite.live.SubResource("token").Create(c.s.ctx, account, request); err != nil {
		c.s.t.Fatal(err)
	}
	return c.by(request.Status.Token)
}

// allowed waits until a subject may do what was granted. The API server authorizes from watched
// roles and bindings, a moment after it stores them.
func (s *scenario) allowed(who string, granted authorizationv1.ResourceAttributes) {
	s.t.Helper()
	s.await("the rights of "+who, func() (bool, string) {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: who, ResourceAttributes: &granted}}
		err := suite.live.Create(s.ctx, review)
		return err == nil && review.Status.Allowed, fmt.Sprintf("%+v (%v)", review.Status, err)
	})
}

// patient trusts an authority and limits the wait for an answer. A stream may last as long as it
// has events.
func patient(authority []byte) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: x509.NewCertPool()}
	transport.TLSClientConfig.RootCAs.AppendCertsFromPEM(authority)
	return &http.Client{Timeout: 3 * soon, Transport: transport}
}

// send makes a call. It fails where the server does not answer.
func (c *restCaller) send(method, path, kind, body string) (*http.Response, error) {
	request, err := http.NewRequest(method, c.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	if kind != "" {
		request.Header.Set("Content-Type", kind)
	}
	return c.http.Do(request)
}

// call makes a call, wants the given status, and gives the answer.
func (c *restCaller) call(want int, method, path, kind, body string) string {
	c.s.t.Helper()
	response, err := c.send(method, path, kind, body)
	if err != nil {
		c.s.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != want {
		c.s.t.Fatalf("%s %s answered %s, want %d: %s %v", method, path, response.Status, want, text, err)
	}
	return string(text)
}

func (c *restCaller) get(path string) string {
	c.s.t.Helper()
	return c.call(http.StatusOK, http.MethodGet, path, "", "")
}

// post and put send JSON.
func (c *restCaller) post(want int, path, body string) string {
	c.s.t.Helper()
	return c.call(want, http.MethodPost, path, "application/json", body)
}

func (c *restCaller) put(want int, path, body string) string {
	c.s.t.Helper()
	return c.call(want, http.MethodPut, path, "application/json", body)
}

// deploy sends a paas.toml to /deploy or /plan of an application.
func (c *restCaller) deploy(want int, path, toml string) string {
	c.s.t.Helper()
	return c.call(want, http.MethodPost, path, "application/toml", toml)
}

// fails wants an answer to be an error with the given code and message.
func (s *scenario) fails(answer, code, message string) {
	s.t.Helper()
	var got struct {
		Error struct{ Code, Message string }
	}
	if err := json.Unmarshal([]byte(answer), &got); err != nil || got.Error.Code != code || got.Error.Message != message {
		s.t.Errorf("answered %s, want %s %q", answer, code, message)
	}
}

// refuses makes a call and wants an error with the given code.
func (c *restCaller) refuses(status int, code, method, path, kind, body string) {
	c.s.t.Helper()
	c.s.says(c.call(status, method, path, kind, body), `"code":"`+code+`"`)
}

// says wants an answer to contain each text.
func (s *scenario) says(answer string, texts ...string) {
	s.t.Helper()
	for _, text := range texts {
		if !strings.Contains(answer, text) {
			s.t.Errorf("answered %s, want %s in it", answer, text)
		}
	}
}

// follow reads the events of an application to the last. It wants the last to be of the given kind,
// and gives its data.
func (c *restCaller) follow(path, want string) string {
	c.s.t.Helper()
	told := c.listens(path)(want)
	return told[len(told)-1]
}

// listens opens the events of an application. The returned function reads them to the last, wants
// that to be of the given kind, and gives the data of all.
func (c *restCaller) listens(path string) (ends func(want string) []string) {
	c.s.t.Helper()
	response, err := c.send(http.MethodGet, path, "", "")
	if err != nil {
		c.s.t.Fatal(err)
	}
	c.s.t.Cleanup(func() { _ = response.Body.Close() })
	return func(want string) []string {
		c.s.t.Helper()
		var kinds, told []string
		lines := bufio.NewScanner(response.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if kind, is := strings.CutPrefix(lines.Text(), "event: "); is {
				kinds = append(kinds, kind)
			}
			if data, is := strings.CutPrefix(lines.Text(), "data: "); is {
				told = append(told, data)
			}
		}
		if err := lines.Err(); err != nil || len(kinds) == 0 || kinds[len(kinds)-1] != want || len(told) != len(kinds) {
			c.s.t.Fatalf("the events were %q, %v; want %s at last", kinds, err, want)
		}
		if before := kinds[:len(kinds)-1]; slices.ContainsFunc(before, func(kind string) bool { return kind != "progress" }) {
			c.s.t.Errorf("the events were %q", kinds)
		}
		return told
	}
}
