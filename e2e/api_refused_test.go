//go:build e2e

package e2e

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// waitingFile is application waiting. It has no pods for which volumes of the class could be made.
func waitingFile(class string, volumes ...string) string {
	text := "[app]\nimage = \"busybox:1.36\"\nreplicas = 0\n"
	for _, v := range volumes {
		text += fmt.Sprintf("\n[[volumes]]\nname = %[1]q\nmountPath = \"/%[1]s\"\nsize = \"1Gi\"\nstorageClass = %[2]q\n", v, class)
	}
	return text
}

func TestTheRESTAPITellsWhatWaitsAndWhatKubernetesRefuses(t *testing.T) {
	t.Parallel()
	s := begin(t, "app-waits")
	class := s.classWith("", s.name, func(class *storagev1.StorageClass) { // nothing makes volumes of this class
		class.VolumeBindingMode, class.AllowVolumeExpansion = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer), ptr.To(true)
	})
	s.app("waiting")
	c := s.restCaller()
	const waiting = "/v1/apps/waiting"
	c.post(http.StatusCreated, "/v1/apps", `{"id": "waiting"}`)
	c.deploy(http.StatusAccepted, waiting+"/deploy", waitingFile(class, "data"))

	// A volume that does not exist yet cannot be resized.
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "paas-app-waiting-data"}}
	s.await("the claim to be Pending", func() (bool, string) {
		if err := s.get(claim); err != nil {
			return false, err.Error()
		}
		return claim.Status.Phase == corev1.ClaimPending, "it is " + string(claim.Status.Phase)
	})
	s.fails(c.put(http.StatusConflict, waiting+"/volumes/data", `{"new_size_gi": 2}`), "conflict", "volume 'data' is Pending: try again when it is Bound")
	s.says(c.get(waiting+"/volumes"), `"name":"data","pvc_name":"paas-app-waiting-data","size_gi":1,"status":"Pending"`)

	// Kubernetes may reject an accepted deploy. The events then end with that error.
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "small"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourceRequestsStorage: size("500Mi")[corev1.ResourceStorage]}}}
	s.create(quota)
	s.quotaCounted(quota)
	c.deploy(http.StatusAccepted, waiting+"/deploy", waitingFile(class, "data", "more"))
	s.says(c.follow(waiting+"/events", "settled"), `"status":"Refused","message":"`, "paas-app-waiting-more", "exceeded quota: small", `"settled":true`)
	s.says(c.get(waiting), `"status":"Refused"`)

	// The next deploy does not repeat the error.
	s.delete(quota)
	c.deploy(http.StatusAccepted, waiting+"/deploy", waitingFile(class))
	s.says(c.follow(waiting+"/events", "settled"), `"status":"Ready"`, `"detached":[{"name":"data"`)
}

// tokenFor gives a token of a service account of the case, for the audiences; none means the API
// server's own.
func (s *scenario) tokenFor(account string, audiences ...string) string {
	s.t.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}
	if err := suite.live.SubResource("token").Create(s.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: account}}, request); err != nil {
		s.t.Fatal(err)
	}
	return request.Status.Token
}

// resigned gives a token as the cluster would have signed it with another expiry. The shortest
// token that can be requested outlives a case.
func (s *scenario) resigned(token string, ends time.Time) string {
	s.t.Helper()
	s.needsThisMachine()
	text, err := os.ReadFile(filepath.Join(filepath.Dir(os.Getenv("KUBECONFIG")), "pki", "service-account.key"))
	if err != nil {
		s.t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		s.t.Fatal("the key that signs tokens is not PEM")
	}
	signer, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		signer, err = x509.ParseECPrivateKey(block.Bytes)
	}
	key, is := signer.(*ecdsa.PrivateKey)
	if err != nil || !is {
		s.t.Fatalf("the key that signs tokens is %T (%v)", signer, err)
	}
	parts := strings.Split(token, ".")
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		s.t.Fatal(err)
	}
	says := map[string]any{}
	numbers := json.NewDecoder(bytes.NewReader(payload))
	numbers.UseNumber()
	if err := numbers.Decode(&says); err != nil {
		s.t.Fatal(err)
	}
	begins := ends.Add(-time.Hour).Unix()
	says["iat"], says["nbf"], says["exp"] = begins, begins, ends.Unix()
	if payload, err = json.Marshal(says); err != nil {
		s.t.Fatal(err)
	}
	signed := parts[0] + "." + base64.RawURLEncoding.EncodeToString(payload)
	sum := sha256.Sum256([]byte(signed))
	r, v, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		s.t.Fatal(err)
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	v.FillBytes(signature[32:])
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}

func TestATokenThatIsNotGoodIsRefused(t *testing.T) {
	t.Parallel()
	s := begin(t, "app-tokens")
	c := s.restCaller()
	token := s.tokenFor("deployer")
	c.by(s.resigned(token, time.Now().Add(30*time.Minute))).get("/v1/apps") // so only the time is wrong below
	middle := len(token) - 40
	altered := token[:middle] + string(rune('A'+(token[middle]+1)%26)) + token[middle+1:]
	for what, bad := range map[string]string{
		"no token at all":        "nonsense",
		"one that has expired":   s.resigned(token, time.Now().Add(-5*time.Minute)),
		"one with its end moved": altered,
		"one for somebody else":  s.tokenFor("deployer", "https://elsewhere.example.com"),
	} {
		t.Log(what)
		for _, call := range [][2]string{{http.MethodGet, "/v1/apps"}, {http.MethodGet, "/v1/apps/shop/events"}, {http.MethodDelete, "/v1/apps/shop"}} {
			s.fails(c.by(bad).call(http.StatusUnauthorized, call[0], call[1], "", ""), "unauthorized", "the token is not valid or has expired: get a new one, for example with `kubectl create token ACCOUNT`")
		}
	}
	s.fails(c.by("").call(http.StatusUnauthorized, http.MethodGet, "/v1/apps", "", ""), "unauthorized", "send a Kubernetes token: Authorization: Bearer TOKEN")

	// A revoked token may stay valid for as long as it is cached, and no longer.
	c.get("/v1/apps")
	s.delete(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "deployer"}})
	over, again := time.NewTimer(s.limit()), time.NewTicker(time.Second)
	defer over.Stop()
	defer again.Stop()
	for {
		response, err := c.send(http.MethodGet, "/v1/apps", "", "")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		if response.StatusCode == http.StatusUnauthorized && err == nil {
			s.fails(string(text), "unauthorized", "the token is not valid or has expired: get a new one, for example with `kubectl create token ACCOUNT`")
			return
		}
		if response.StatusCode != http.StatusOK || err != nil {
			t.Fatalf("answered %s: %s %v", response.Status, text, err)
		}
		select {
		case <-again.C:
		case <-over.C:
			t.Fatal("the token of an account that is gone is good still")
		}
	}
}
