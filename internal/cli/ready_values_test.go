package cli

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"tarn.dev/tarn/jinja"
	"tarn.dev/tarn/provisioners"
)

// validated runs the validation script of a ready provisioner on this machine, and gives its output.
// The environment of the pod has the values.
func validated(t *testing.T, provisioner string, values map[string]string) (said string, valid bool) {
	t.Helper()
	o, err := provisioners.Provisioner(provisioner)
	if err != nil {
		t.Fatal(err)
	}
	containers, _, err := unstructured.NestedSlice(o.Object, "spec", "volumeValidation", "podTemplate", "spec", "containers")
	if err != nil {
		t.Fatal(err)
	}
	script, err := jinja.Evaluate(t.Context(), containers[0].(map[string]any)["args"].([]any)[0], map[string]any{}, jinja.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	text := strings.NewReplacer("/pav/", dir+"/", "/tmp", dir).Replace(script.(string))
	command := exec.CommandContext(t.Context(), "bash", "-c", text)
	command.Env = append(command.Environ(), "STEP=validation", "SECRET=${pvc.namespace} login", "FIXED=")
	for name, value := range values {
		command.Env = append(command.Env, name+"="+value)
	}
	out, err := command.CombinedOutput()
	return string(out), err == nil
}

func TestNoValueOfAClaimIsAnOptionOrACommandForGit(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("this machine has no git")
	}
	const fine = "https://example.org/a.git"
	for _, c := range []struct{ repository, ref, follow, modes, wrong string }{
		{fine, "main", "", "ReadOnlyMany", ""},
		{"http://ada@example.org:8080/a/~b%20c", "v1.2+x", "5m", "ReadOnlyMany", ""},
		{"ssh://git@[fd00::1]:22/a", "refs/heads/feature/x", "", "ReadWriteOnce", ""},
		{"git@example.org:team/a.git", "0123456789012345678901234567890123456789", "", "ReadWriteOnce", ""},
		{"git://example.org/a", "HEAD", "10s", "ReadOnlyMany", ""},
		{"", "main", "", "ReadOnlyMany", "annotate the claim"},
		{"ext::sh -c id", "main", "", "ReadOnlyMany", "repository"},
		{"file:///etc", "main", "", "ReadOnlyMany", "repository"},
		{"/etc", "main", "", "ReadOnlyMany", "repository"},
		{"--upload-pack=id", "main", "", "ReadOnlyMany", "repository"},
		{"ssh://-oProxyCommand=id/a", "main", "", "ReadOnlyMany", "repository"},
		{"-oProxyCommand=id@example.org:a", "main", "", "ReadOnlyMany", "repository"},
		{"git@-oProxyCommand=id:a", "main", "", "ReadOnlyMany", "repository"},
		{"git@example.org:-a", "main", "", "ReadOnlyMany", "repository"},
		{"https://ada:hush@example.org/a", "main", "", "ReadOnlyMany", "keep passwords in a Secret"},
		{fine + "\n--upload-pack=id", "main", "", "ReadOnlyMany", "repository"},
		{fine + " $(id)", "main", "", "ReadOnlyMany", "repository"},
		{"gopher://example.org/a", "main", "", "ReadOnlyMany", "repository"},
		{fine, "--upload-pack=id", "", "ReadOnlyMany", "ref"},
		{fine, "+main", "", "ReadOnlyMany", "ref"},
		{fine, "main:refs/heads/x", "", "ReadOnlyMany", "ref"},
		{fine, "a..b", "", "ReadOnlyMany", "ref"},
		{fine, "main\n-x", "", "ReadOnlyMany", "ref"},
		{fine, "main", "1s", "ReadOnlyMany", "at least 5s"},
		{fine, "main", "08s; id", "ReadOnlyMany", "follow"},
		{fine, "main", "60s", "ReadWriteOnce", "a working copy does not follow"},
	} {
		said, valid := validated(t, "git", map[string]string{"REPOSITORY": c.repository, "REF": c.ref, "FOLLOW": c.follow, "MODES": c.modes})
		if valid != (c.wrong == "") || !strings.Contains(said, c.wrong) {
			t.Errorf("%q at %q, follow %q, %s: valid %v, said %s", c.repository, c.ref, c.follow, c.modes, valid, said)
		}
	}
	for secret, want := range map[string]bool{" ": false, "vault login": false, "vault ${pvc.namespace}": false, "${pvc.namespace} x": true} {
		said, valid := validated(t, "git", map[string]string{"REPOSITORY": "ssh://git@example.org/a", "REF": "main", "SECRET": secret})
		if valid != want {
			t.Errorf("Secret %q: valid %v, said %s", secret, valid, said)
		}
	}
}

func TestNoValueOfAClaimIsAnOptionOrACommandForSSHFS(t *testing.T) {
	fine := map[string]string{"SERVER": "example.org", "PORT": "22", "LOGIN": "ada", "DIRECTORY": "/srv/my files", "OWNER": "0", "GROUP": "1000"}
	for _, c := range []struct{ name, value, wrong string }{
		{"SERVER", "10.0.0.1", ""},
		{"SERVER", "[fd00::1]", ""},
		{"DIRECTORY", "", ""},
		{"SERVER", "", "annotate the claim"},
		{"SERVER", "-oProxyCommand=id", "host"},
		{"SERVER", "a:/etc", "host"},
		{"PORT", "22 -o x", "port"},
		{"LOGIN", "-oProxyCommand=id", "user"},
		{"LOGIN", "a@b", "user"},
		{"DIRECTORY", "/a;id", "path"},
		{"DIRECTORY", "/a\n/b", "path"},
		{"OWNER", "0,suid", "uid"},
		{"GROUP", "x", "gid"},
		{"SECRET", "vault login", "the class names no Secret"},
		{"SECRET", " ", "the class names no Secret"},
	} {
		values := map[string]string{}
		for name, value := range fine {
			values[name] = value
		}
		values[c.name] = c.value
		said, valid := validated(t, "sshfs", values)
		if valid != (c.wrong == "") || !strings.Contains(said, c.wrong) {
			t.Errorf("%s %q: valid %v, said %s", c.name, c.value, valid, said)
		}
	}
}

func TestAClassWithAWrongValueIsToldFieldValueAndRemedy(t *testing.T) {
	type params = map[string]any
	s3 := func(name, value string) params { return params{"size": "unlimited", name: value} }
	for _, c := range []struct {
		provisioner string
		params      params
		// want is what the claim is told, empty if the class is valid and no pod is needed.
		want string
	}{
		{"btrfs", params{}, ""},
		{"btrfs", params{"compress": "zstd", "poolSize": "1.5Gi", "folder": "/srv"}, ""},
		{"btrfs", params{"compress": "gzip"}, `compress: "gzip" is none of zstd, lzo, zlib, none; create the class again`},
		{"btrfs", params{"poolSize": "10 GB"}, `poolSize: "10 GB" is no size`},
		{"btrfs", params{"folder": "pool"}, `folder: "pool" is no absolute path`},
		{"xfs", params{}, ""},
		{"xfs", params{"csi.storage.k8s.io/fstype": "ext4", "folder": "/srv"}, ""},
		{"xfs", params{"csi.storage.k8s.io/fstype": "zfs"}, `csi.storage.k8s.io/fstype: "zfs" is none of xfs, ext4; create the class again`},
		{"xfs", params{"folder": "data"}, `folder: "data" is no absolute path`},
		{"shared", params{}, ""},
		{"shared", params{"folder": "export"}, `folder: "export" is no absolute path; create the class again`},
		{"encrypted", params{"csi.storage.k8s.io/node-publish-secret-name": "x"}, ""},
		{"encrypted", params{}, `csi.storage.k8s.io/node-publish-secret-name: the class names no Secret`},
		{"bucket", s3("endpoint", "http://10.0.0.1:9000"), ""},
		{"bucket", s3("bucketPrefix", "team-a.b_9"), ""},
		{"bucket", s3("storageType", "s4"), `storageType: "s4" is none of s3, gcs; create the class again`},
		{"bucket", s3("pathStyle", "yes"), `pathStyle: "yes" is none of true, false`},
		{"bucket", s3("endpoint", "s3.example.org"), `endpoint: "s3.example.org" is no URL`},
		{"bucket", s3("deleteContents", "yes"), `deleteContents: "yes" is none of true, false`},
		{"bucket", s3("bucket", "a/b"), `bucket: "a/b" is no name of a bucket`},
		{"bucket", s3("bucketPrefix", "Team"), `bucketPrefix: "Team" is not at most 23 small letters`},
		{"bucket", s3("bucketPrefix", "a-prefix-that-is-too-long"), `bucketPrefix: "a-prefix-that-is-too-long" is not at most 23`},
	} {
		o, err := provisioners.Provisioner(c.provisioner)
		if err != nil {
			t.Fatal(err)
		}
		template, found, err := unstructured.NestedString(o.Object, "spec", "volumeValidation", "podTemplate")
		if err != nil || !found {
			t.Fatalf("%s has no template of a validation pod: %v", c.provisioner, err)
		}
		pod, err := jinja.Evaluate(t.Context(), template, map[string]any{"params": c.params, "requestedMaxCapacity": nil}, jinja.Limits{})
		if err != nil {
			t.Errorf("%s %v: %v", c.provisioner, c.params, err)
			continue
		}
		said := ""
		if pod, ok := pod.(map[string]any); ok {
			command := pod["spec"].(map[string]any)["containers"].([]any)[0].(map[string]any)["command"].([]any)
			file := t.TempDir() + "/error"
			script := strings.Replace(command[2].(string), "/pav/error", file, 1)
			if err := exec.CommandContext(t.Context(), "bash", "-c", script).Run(); err == nil {
				t.Errorf("%s %v: the pod succeeds", c.provisioner, c.params)
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			said = string(text)
		} else if pod != nil {
			t.Errorf("%s %v: the template gives %v", c.provisioner, c.params, pod)
		}
		if (said == "") != (c.want == "") || !strings.Contains(said, c.want) {
			t.Errorf("%s %v: the claim is told %q, want %q", c.provisioner, c.params, said, c.want)
		}
	}
}
