package provisioners

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
)

// each runs a test for every ready provisioner.
func each(t *testing.T, test func(t *testing.T, name string)) {
	t.Helper()
	if len(Names()) == 0 {
		t.Fatal("there is no ready provisioner")
	}
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) { test(t, name) })
	}
}

// text reads a file of a provisioner.
func text(t *testing.T, name, file string) string {
	t.Helper()
	text, err := content(name, file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestEachReadyProvisionerHasAClassOfItsNameThatLetsItsVolumesGrow(t *testing.T) {
	each(t, func(t *testing.T, name string) {
		object, err := Provisioner(name)
		if err != nil {
			t.Fatal(err)
		}
		text, err := object.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		p := &pavv1.PavProvisioner{}
		if err := json.Unmarshal(text, p); err != nil {
			t.Fatal(err)
		}
		object, err = Class(name)
		if err != nil {
			t.Fatal(err)
		}
		class := &storagev1.StorageClass{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, class); err != nil {
			t.Fatal(err)
		}
		if p.Name != name || class.Name != name || class.Provisioner != name {
			t.Errorf("its directory has provisioner %s, and class %s of provisioner %s", p.Name, class.Name, class.Provisioner)
		}
		if grows := ptr.Deref(class.AllowVolumeExpansion, false); grows != (p.Spec.VolumeExpansion != nil) {
			t.Errorf("its class lets volumes grow: %v, its provisioner can make them: %v", grows, !grows)
		}
	})
}

func TestEachReadyProvisionerHasItsFilesAndNoOthers(t *testing.T) {
	each(t, func(t *testing.T, name string) {
		entries, err := files.ReadDir(name)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, entry := range entries {
			got = append(got, entry.Name())
		}
		want := []string{"README.md", "class.yaml", "example.yaml", "provisioner.yaml"}
		if reference, _, err := Image(name); err != nil {
			t.Error(err)
		} else if reference != ToolImage {
			want = slices.Insert(want, 0, "Dockerfile")
		}
		if !slices.Equal(got, want) {
			t.Errorf("it has %v, want %v", got, want)
		}
		if d, err := Description(name); err != nil || d == "" || len(d) > 140 {
			t.Errorf("it is described as %q, %v: write one short sentence", d, err)
		}
	})
}

func TestTheExampleOfAReadyProvisionerClaimsAVolumeOfItsClassAndUsesIt(t *testing.T) {
	each(t, func(t *testing.T, name string) {
		claims, pods := map[string]bool{}, 0
		for _, document := range strings.Split(text(t, name, "example.yaml"), "\n---\n") {
			claim, pod := &corev1.PersistentVolumeClaim{}, &corev1.Pod{}
			if err := yaml.Unmarshal([]byte(document), claim); err != nil {
				t.Fatal(err)
			}
			switch claim.Kind {
			case "PersistentVolumeClaim":
				if ptr.Deref(claim.Spec.StorageClassName, "") == name {
					claims[claim.Name] = true
				}
			case "Pod":
				if err := yaml.Unmarshal([]byte(document), pod); err != nil {
					t.Fatal(err)
				}
				for _, v := range pod.Spec.Volumes {
					if v.PersistentVolumeClaim != nil && claims[v.PersistentVolumeClaim.ClaimName] {
						pods++
					}
				}
			}
		}
		if pods == 0 {
			t.Errorf("no pod uses a claim of the class; claims of it are %v", claims)
		}
	})
}

// parameter is how a template reads a parameter of the class.
var parameter = regexp.MustCompile(`params(?:(?:\.get\(|\[)['"]([^'"]+)|\.(\w+))`)

func TestTheReadmeOfAReadyProvisionerNamesEachParameterThatItsTemplateReads(t *testing.T) {
	each(t, func(t *testing.T, name string) {
		template, readme := text(t, name, "provisioner.yaml"), text(t, name, "README.md")
		comment, _, _ := strings.Cut(template, "apiVersion:")
		for _, found := range parameter.FindAllStringSubmatch(template, -1) {
			if p := found[1] + found[2]; !strings.Contains(readme, "`"+p+"`") || !strings.Contains(comment, "#   "+p+" ") {
				t.Errorf("parameter %s is read, but not explained in README.md and in the comment on top of provisioner.yaml", p)
			}
		}
	})
}

// pods gives every pod spec in an object, by its path.
func pods(object map[string]any, path string) map[string]map[string]any {
	found := map[string]map[string]any{}
	if object["containers"] != nil {
		found[path] = object
	}
	for field, value := range object {
		if below, is := value.(map[string]any); is {
			maps.Copy(found, pods(below, path+"."+field))
		}
	}
	return found
}

func TestThePodsOfAReadyProvisionerRunTheImageOfItsDockerfile(t *testing.T) {
	each(t, func(t *testing.T, name string) {
		reference, packages, err := Image(name)
		if err != nil {
			t.Fatal(err)
		}
		if reference != ToolImage && reference != "tarn.dev/"+name+":1" {
			t.Errorf("its image is %s", reference)
		}
		template := text(t, name, "provisioner.yaml")
		for _, found := range imageField.FindAllStringSubmatch(template, -1) {
			if found[1] != reference {
				t.Errorf("a pod runs %s, another %s", found[1], reference)
			}
		}
		if readme := text(t, name, "README.md"); !strings.Contains(readme, "`"+reference+"`") && !strings.Contains(readme, " "+reference) {
			t.Errorf("README.md does not name the image %s", reference)
		}
		for _, p := range packages {
			if !regexp.MustCompile(`^[a-z0-9][a-z0-9.+-]*$`).MatchString(p) {
				t.Errorf("the Dockerfile installs %q, which is not the name of a package", p)
			}
		}
		object, err := Provisioner(name)
		if err != nil {
			t.Fatal(err)
		}
		for path, pod := range pods(object.Object, "") {
			if pod["automountServiceAccountToken"] != false {
				t.Errorf("the pod at %s gets the token of a service account", path)
			}
		}
	})
}

func TestADockerfileWithSeveralLinesGivesItsPackages(t *testing.T) {
	reference, packages, err := Image("xfs")
	if want := []string{"e2fsprogs", "mount", "util-linux", "xfsprogs"}; err != nil || reference != ToolImage || !slices.Equal(packages, want) {
		t.Errorf("got %s of %v, %v; want %v", reference, packages, err, want)
	}
}

func TestAProvisionerThatDoesNotExistIsRefusedWithThoseThatDo(t *testing.T) {
	_, err := Provisioner("nosuch")
	if err == nil || !strings.Contains(err.Error(), `"nosuch"; the ready ones are `) || !strings.Contains(err.Error(), "shared") {
		t.Errorf("got %v, want an error that lists the names", err)
	}
}
