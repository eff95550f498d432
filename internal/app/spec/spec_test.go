package spec_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	appspec "tarn.dev/tarn/internal/app/spec"
)

const shop = `# The shop.
[app]
name = "shop"
image = "registry.example.com/shop:1.4"
command = ["/shop"]
args = ["--listen", ":8080"]
port = 8080
replicas = 2

[app.env]
LOG_LEVEL = "info"

[app.secrets]
PASSWORD = "shop-db/password"

[[volumes]]
name = "data"
mountPath = "/var/lib/shop"
size = "10Gi"

[[volumes]]
name = "uploads"
mountPath = "/srv/uploads"
size = 50
accessMode = "rwx"
storageClass = "shared"
preserveOnDelete = true
`

func wantShop() *appspec.File {
	return &appspec.File{
		App: appspec.App{
			Name: "shop", Image: "registry.example.com/shop:1.4", Command: []string{"/shop"}, Args: []string{"--listen", ":8080"},
			Port: 8080, Replicas: 2, Env: map[string]string{"LOG_LEVEL": "info"}, Secrets: map[string]string{"PASSWORD": "shop-db/password"},
		},
		Volumes: []appspec.Volume{
			{Name: "data", MountPath: "/var/lib/shop", SizeGi: 10, AccessMode: appspec.ReadWriteOnce},
			{Name: "uploads", MountPath: "/srv/uploads", SizeGi: 50, AccessMode: appspec.ReadWriteMany, StorageClass: "shared", PreserveOnDelete: true},
		},
	}
}

func TestAFileIsReadWhole(t *testing.T) {
	for _, text := range []string{shop, "\ufeff" + shop} { // some editors begin a file with a byte order mark
		got, warnings, err := appspec.ParseTOML("", []byte(text))
		if err != nil || len(warnings) > 0 || !reflect.DeepEqual(got, wantShop()) {
			t.Errorf("ParseTOML = %+v, %v, %v, want %+v", got, warnings, err, wantShop())
		}
	}
}

func TestJSONSaysTheSame(t *testing.T) {
	got, warnings, err := appspec.ParseJSON("", []byte(`{"app": {"name": "shop", "image": "registry.example.com/shop:1.4", "command": ["/shop"],
		"args": ["--listen", ":8080"], "port": 8080, "replicas": 2, "env": {"LOG_LEVEL": "info"}, "secrets": {"PASSWORD": "shop-db/password"}},
		"volumes": [{"name": "data", "mountPath": "/var/lib/shop", "size": "10Gi"},
		{"name": "uploads", "mountPath": "/srv/uploads", "size": 50, "accessMode": "rwx", "storageClass": "shared", "preserveOnDelete": true}]}`))
	if err != nil || len(warnings) > 0 || !reflect.DeepEqual(got, wantShop()) {
		t.Errorf("ParseJSON = %+v, %v, %v, want %+v", got, warnings, err, wantShop())
	}
}

func TestTheClassesOfAccessModesAreTheContract(t *testing.T) {
	want := map[appspec.AccessMode]string{"rwo": "ovh-csi-rbd", "rwx": "ovh-csi-nfs"}
	if !reflect.DeepEqual(appspec.DefaultClasses, want) {
		t.Errorf("DefaultClasses = %v, want %v", appspec.DefaultClasses, want)
	}
	if got := appspec.ClaimName("shop", "data"); got != "paas-app-shop-data" {
		t.Errorf("ClaimName = %q, want paas-app-shop-data", got)
	}
}

func TestAnUnknownAccessModeBecomesBlockStorageWithAWarning(t *testing.T) {
	got, warnings, err := appspec.ParseTOML("", []byte("[app]\nimage = \"x\"\n[[volumes]]\nname = \"a\"\nmountPath = \"/a\"\nsize = 1\naccessMode = \"rox\"\n"))
	if err != nil || got.Volumes[0].AccessMode != appspec.ReadWriteOnce {
		t.Fatalf("ParseTOML = %+v, %v, want a volume with rwo", got, err)
	}
	want := `7:1: volumes[0].accessMode: "rox" is unknown, so the volume is block storage (rwo); write rwo or rwx`
	if len(warnings) != 1 || warnings[0].String() != want {
		t.Errorf("warnings = %v, want %s", warnings, want)
	}
}

func TestProblemsAreToldAllAtOnceWithTheirPlaces(t *testing.T) {
	const app = "[app]\nimage = \"x\"\n"
	const vol = "[[volumes]]\nname = \"a\"\nmountPath = \"/a\"\nsize = 1\n"
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"an empty file", "", []string{"1:1: app: is missing: begin the file with [app]"}},
		{"no TOML", "[app\n", []string{"this is not TOML"}},
		{"lines that curl has joined", "[app]image = \"x\"", []string{"but got U+0069 'i'; it came as one line: send it as it is, with curl by --data-binary @paas.toml"}},
		{"a key twice", "[app]\nimage = \"x\"\nimage = \"y\"\n", []string{"3:1: this is not TOML"}},
		{"no UTF-8", "[app]\nimage = \"\xff\"", []string{"2:10: the file is not UTF-8 text"}},
		{"too long", app + strings.Repeat("#", appspec.MaxBytes), []string{"3:262127: the file has 262162 bytes; the limit is 262144"}},
		{"too long at once", strings.Repeat("\n", appspec.MaxBytes+1), []string{"262145:1: the file has 262145 bytes"}},
		{"no image", "[app]\n", []string{"app.image: is missing"}},
		{"an image with a blank", "[app]\nimage = \"a b\"\n", []string{`2:1: app.image: "a b" is not an image`}},
		{"a section misspelt", app + "[[volume]]\nname = \"a\"\n", []string{"3:3: volume: is unknown: write volumes"}},
		{"a key in another case", "[app]\nimage = \"x\"\nReplicas = 2\n", []string{"3:1: app.Replicas: is unknown: write replicas"}},
		{"a key nobody knows", "[app]\nimage = \"x\"\nzzz = 2\n", []string{"app.zzz: is unknown: this section has name, image"}},
		{"several problems, in the order of the text", "[app]\nname = \"Shop\"\nimage = 5\nport = 0\n" + "[[volumes]]\nmountpath = \"/x\"\nsize = \"0Gi\"\n", []string{
			`2:1: app.name: "Shop" is not a valid name`, "3:1: app.image: is a number, not a string", "4:1: app.port: is 0: write a whole number from 1 to 65535",
			"5:3: volumes[0].name: is missing", "5:3: volumes[0].mountPath: is missing", "6:1: volumes[0].mountpath: is unknown: write mountPath", `7:1: volumes[0].size: "0Gi" is out of bounds`,
		}},
		{"an environment variable that is a number", "[app]\nimage = \"x\"\nenv.PORT = 8080\n", []string{"3:5: app.env.PORT: is a number, not a string: put it in quotes"}},
		{"an environment variable nobody can have", "[app]\nimage = \"x\"\n[app.env]\n\"a=b\" = \"1\"\n", []string{"4:1: app.env.a=b: is not a valid name of an environment variable"}},
		{"a secret without a key", "[app]\nimage = \"x\"\n[app.secrets]\nP = \"shop-db\"\n", []string{`4:1: app.secrets.P: "shop-db" is not SECRET/KEY`}},
		{"a secret of another namespace", "[app]\nimage = \"x\"\n[app.secrets]\nP = \"team/shop-db/password\"\n", []string{`4:1: app.secrets.P: "team/shop-db/password" is not SECRET/KEY`}},
		{"a variable with a value and a secret", "[app]\nimage = \"x\"\nenv.P = \"1\"\n[app.secrets]\nP = \"db/p\"\n", []string{"5:1: app.secrets.P: is in [app.env] too"}},
		{"a secret for a name nobody can have", "[app]\nimage = \"x\"\n[app.secrets]\n\"a=b\" = \"db/p\"\n", []string{"4:1: app.secrets.a=b: is not a valid name of an environment variable"}},
		{"a list of something else", "[app]\nimage = \"x\"\nargs = [\"a\", 5]\n", []string{"app.args[1]: is a number"}},
		{"replicas below zero", "[app]\nimage = \"x\"\nreplicas = -1\n", []string{"app.replicas: is -1: write a whole number from 0 to 1000"}},
		{"a fraction", "[app]\nimage = \"x\"\nreplicas = 1.5\n", []string{"app.replicas: is a fraction"}},
		{"one table where several may be", app + "[volumes]\nname = \"a\"\n", []string{"volumes: is a table, not a list of tables: write each as [[volumes]]"}},
		{"inline tables have places too", "volumes = [{name = \"a\", mountPath = \"/a\", size = \"x\"}]\n" + app, []string{`1:43: volumes[0].size: "x" is not a size`}},
		{"a size that is none", app + strings.Replace(vol, "1", `"ten"`, 1), []string{`6:1: volumes[0].size: "ten" is not a size`}},
		{"a size between two", app + strings.Replace(vol, "1", `"1500Mi"`, 1), []string{`"1500Mi" is out of bounds or between two`}},
		{"a size too large", app + strings.Replace(vol, "1", "1001", 1), []string{"1001 is out of bounds"}},
		{"no size", app + strings.Replace(vol, "size = 1\n", "", 1), []string{"3:3: volumes[0].size: is missing"}},
		{"a name twice", app + vol + strings.Replace(vol, "/a", "/b", 1), []string{`8:1: volumes[1].name: "a" is also the name of an earlier volume`}},
		{"a mount path twice", app + vol + strings.Replace(vol, `"a"`, `"b"`, 1), []string{`9:1: volumes[1].mountPath: "/a" is also the mountPath of volume "a"`}},
		{"a mount within another", app + vol + "[[volumes]]\nname = \"b\"\nmountPath = \"/a/b\"\nsize = 1\n", []string{`9:1: volumes[1].mountPath: "/a/b" is inside "/a" of volume "a"`}},
		{"a mount around another", app + "[[volumes]]\nname = \"b\"\nmountPath = \"/a/b\"\nsize = 1\n" + vol, []string{`9:1: volumes[1].mountPath: "/a/b" of volume "b" is inside "/a"`}},
		{"a relative path", app + strings.Replace(vol, "/a", "a", 1), []string{`5:1: volumes[0].mountPath: "a" is relative`}},
		{"the root", app + strings.Replace(vol, "/a", "/", 1), []string{"would hide the whole image"}},
		{"a path upwards", app + strings.Replace(vol, "/a", "/a/../b", 1), []string{`5:1: volumes[0].mountPath: "/a/../b" is not the plain form of the path: write "/b"`}},
		{"a path upwards to a folder of the kernel", app + strings.Replace(vol, "/a", "/a/../proc", 1), []string{`"/a/../proc" is "/proc" in its plain form: "/proc" is reserved`}},
		{"a path upwards to the root", app + strings.Replace(vol, "/a", "/a/..", 1), []string{`"/a/.." is "/" in its plain form: "/" would hide the whole image: write an absolute path`}},
		{"a slash at the end", app + strings.Replace(vol, "/a", "/a/", 1), []string{`write "/a"`}},
		{"the kernel's folder", app + strings.Replace(vol, "/a", "/proc/x", 1), []string{"is reserved"}},
		{"above a secret", app + strings.Replace(vol, "/a", "/var/run", 1), []string{"hides /var/run/secrets"}},
		{"a colon", app + strings.Replace(vol, "/a", "/a:b", 1), []string{"a character that a mount path cannot"}},
		{"a path of two lines", app + strings.Replace(vol, "/a", `/a\nb`, 1), []string{`"/a\nb" contains a character that a mount path cannot`}},
		{"an image that hides something", `app.image = "shop\u001b[2J"`, []string{`1:5: app.image: "shop\x1b[2J" is not an image`}},
		{"an argument nobody can be given", "[app]\nimage = \"x\"\ncommand = [\"a\", \"b\\u0000\"]\n", []string{"3:1: app.command[1]: contains a zero byte, which an argument cannot"}},
		{"an application's name too long", "[app]\nname = \"" + strings.Repeat("n", 52) + "\"\nimage = \"x\"\n", []string{`2:1: app.name: "nnnnnnnnnnnnnnnnnnnn"... has 52 characters: write at most 51`}},
		{"an image too long", "[app]\nname = \"a\"\nimage = \"" + strings.Repeat("x", 1025) + "\"\n", []string{`3:1: app.image: "xxxxxxxxxxxxxxxxxxxx"... has 1025 characters: write at most 1024`}},
		{"a mount path too long", app + strings.Replace(vol, "/a", "/"+strings.Repeat("a", 255), 1), []string{`volumes[0].mountPath: "/aaaaaaaaaaaaaaaaaaa"... has 256 characters: write at most 255`}},
		{"a claim's name too long", "[app]\nname = \"" + strings.Repeat("n", 51) + "\"\nimage = \"x\"\n" + strings.Replace(vol, `"a"`, `"abc"`, 1), []string{"its claim would be paas-app-nnn"}},
		{"a flag in quotes", app + vol + "preserveOnDelete = \"yes\"\n", []string{"volumes[0].preserveOnDelete: is a string: write true or false"}},
		{"a class no class can be", app + vol + "storageClass = \"A B\"\n", []string{`"A B" is not a valid storage class`}},
		{"a date", "[app]\nimage = 2020-01-01\n", []string{"is a date or time, not a string"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := appspec.ParseTOML("", []byte(c.text))
			var problems appspec.Problems
			if !errors.As(err, &problems) {
				t.Fatalf("ParseTOML gave no problems but %v", err)
			}
			if len(problems) != len(c.want) {
				t.Fatalf("problems:\n%v\nwant %d", err, len(c.want))
			}
			for i, want := range c.want {
				if got := problems[i].String(); !strings.Contains(got, want) {
					t.Errorf("problem %d = %s, want %s", i, got, want)
				}
			}
		})
	}
}

// The documentation lists the same directories.
func TestAMountPathHidesNoFolderThatAContainerNeeds(t *testing.T) {
	page, err := os.ReadFile("../../../docs/reference/paas-toml.md")
	if err != nil {
		t.Fatal(err)
	}
	for path, refused := range map[string]bool{
		"/": true, "/proc": true, "/sys": true, "/dev": true, "/pav": true, "/run/secrets": true, "/var/run/secrets": true, "/run": true, "/var": true, "/var/run": true,
		"/run/shop": false, "/var/lib/shop": false,
	} {
		_, _, err := appspec.ParseTOML("", fmt.Appendf(nil, "[app]\nimage = \"x\"\n[[volumes]]\nname = \"a\"\nmountPath = %q\nsize = 1\n", path))
		if refused != (err != nil) || err != nil && !strings.Contains(err.Error(), "write an absolute path") {
			t.Errorf("mountPath %s: %v, want it refused: %t", path, err, refused)
		}
		if !strings.Contains(string(page), "`"+path+"`") {
			t.Errorf("docs/reference/paas-toml.md does not say what is with mountPath %s", path)
		}
	}
}

func TestJSONThatIsNoneIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "not a JSON object",
		"[]":                         "not a JSON object",
		`{"app": {"image": "x"}} {}`: "something follows",
		`{"app": {"image": "x", "replicas": 1e400}}`: "app.replicas: is a string",
		`{"app": {"image": null}}`:                   "app.image: is nothing",
	} {
		if _, _, err := appspec.ParseJSON("", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseJSON(%s) = %v, want an error with %q", text, err, want)
		}
	}
}

// A text made to be costly must be rejected, or read, in linear time. An earlier error here used up
// the memory of the machine, not just time.
func TestTextsMadeToBeCostlyAreNot(t *testing.T) {
	const n = 100_000
	for name, text := range map[string]string{
		"nested lists":         "a=" + strings.Repeat("[", n) + strings.Repeat("]", n),
		"nested inline tables": "a=" + strings.Repeat("{a=", n/2) + "1" + strings.Repeat("}", n/2),
		"a key of dots":        "[" + strings.Repeat("a.", n) + "a]\nb=1\n",
		"a dotted key":         strings.Repeat("x.y.", n/2) + "q=1",
		"many tables":          strings.Repeat("[[a]]\n", n/3),
		"many volumes":         "[app]\nimage='x'\n" + strings.Repeat("[[volumes]]\n", n/5),
		"many names":           "[app]\n" + strings.Repeat("image='x'\n", n/5),
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, _, err := appspec.ParseTOML("", []byte(text))
			runtime.ReadMemStats(&after)
			if err == nil {
				t.Error("ParseTOML accepted it")
			}
			if spent := after.TotalAlloc - before.TotalAlloc; spent > 512<<20 {
				t.Errorf("reading %d bytes took %d MiB", len(text), spent>>20)
			}
		})
	}
}

// FuzzParse checks that no text crashes the reader and that every problem has a message. It also
// checks that an accepted file is as File promises.
func FuzzParse(f *testing.F) {
	f.Add([]byte(shop))
	f.Add([]byte("[app]\nimage='x'\nvolumes=[{name='a',mountPath='/a',size=1},[]]\n"))
	f.Add([]byte(`{"app":{"image":"x"},"volumes":[{"name":"a","mountPath":"/a","size":"1Gi"}]}`))
	f.Add([]byte("[[a.b]]\n[a.b.c]\nx=1\n[[a.b]]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, parse := range []func(string, []byte) (*appspec.File, []appspec.Problem, error){appspec.ParseTOML, appspec.ParseJSON} {
			got, _, err := parse("", text)
			var problems appspec.Problems
			switch {
			case err == nil:
				keepsPromises(t, got)
			case !errors.As(err, &problems) || len(problems) == 0:
				t.Fatalf("the error tells nothing: %#v", err)
			}
		}
	})
}

// keepsPromises checks that an accepted file can be deployed, and that it reads the same when
// written as JSON.
func keepsPromises(t *testing.T, f *appspec.File) {
	t.Helper()
	if f.App.Image == "" || f.App.Replicas < 0 || f.App.Port < 0 || f.App.Port > 65535 {
		t.Fatalf("accepted app %+v", f.App)
	}
	for i, v := range f.Volumes {
		if len(validation.IsDNS1123Label(v.Name)) > 0 || !path.IsAbs(v.MountPath) || v.MountPath == "/" || path.Clean(v.MountPath) != v.MountPath ||
			v.SizeGi < appspec.MinSizeGi || v.SizeGi > appspec.MaxSizeGi || appspec.DefaultClasses[v.AccessMode] == "" {
			t.Fatalf("accepted volume %+v", v)
		}
		if f.App.Name != "" && len(validation.IsDNS1123Label(appspec.ClaimName(f.App.Name, v.Name))) > 0 {
			t.Fatalf("accepted volume %q of app %q, whose claim can have no such name", v.Name, f.App.Name)
		}
		for _, w := range f.Volumes[:i] {
			if v.Name == w.Name || strings.HasPrefix(v.MountPath+"/", w.MountPath+"/") || strings.HasPrefix(w.MountPath+"/", v.MountPath+"/") {
				t.Fatalf("accepted volumes %+v and %+v", w, v)
			}
		}
	}
	text := asJSON(t, f)
	if len(text) > 4<<10 {
		return // JSON is longer, and has more items: there may be too many
	}
	again, warnings, err := appspec.ParseJSON("", text)
	if err != nil || len(warnings) > 0 || !reflect.DeepEqual(again, f) {
		t.Fatalf("accepted %+v, which as JSON is %+v, %v, %v:\n%s", f, again, warnings, err, text)
	}
}

// asJSON writes a file with every possible key.
func asJSON(t *testing.T, f *appspec.File) []byte {
	t.Helper()
	app := map[string]any{"image": f.App.Image, "replicas": f.App.Replicas}
	for key, value := range map[string]any{"name": f.App.Name, "command": f.App.Command, "args": f.App.Args, "port": f.App.Port, "env": f.App.Env, "secrets": f.App.Secrets} {
		if v := reflect.ValueOf(value); v.Kind() == reflect.Slice || v.Kind() == reflect.Map {
			if v.IsNil() {
				continue // nil keeps what the image has, an empty list does not
			}
		} else if v.IsZero() {
			continue
		}
		app[key] = value
	}
	volumes := []map[string]any{}
	for _, v := range f.Volumes {
		volumes = append(volumes, map[string]any{
			"name": v.Name, "mountPath": v.MountPath, "size": v.SizeGi, "accessMode": v.AccessMode, "storageClass": v.StorageClass, "preserveOnDelete": v.PreserveOnDelete,
		})
	}
	text, err := json.Marshal(map[string]any{"app": app, "volumes": volumes})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestAFileIsReadForTheApplicationItIsDeployedTo(t *testing.T) {
	nameless := strings.Replace(shop, "name = \"shop\"\n", "", 1)
	got, _, err := appspec.ParseTOML("store", []byte(nameless))
	if err != nil || got.App.Name != "store" {
		t.Fatalf("ParseTOML = %+v, %v; want the name given", got, err)
	}
	if got, _, err := appspec.ParseTOML("shop", []byte(shop)); err != nil || got.App.Name != "shop" {
		t.Errorf("the name that is in the file as well: %+v, %v", got, err)
	}
	for name, c := range map[string]struct{ app, text, want string }{
		"another name":              {"store", shop, `3:1: app.name: "shop" is not the application "store": write that, or leave it out`},
		"a name that is too long":   {strings.Repeat("s", 50), nameless, "16:1: volumes[0].name: its claim would be paas-app-" + strings.Repeat("s", 50) + "-data, 64 characters long"},
		"a name that is not a text": {"store", strings.Replace(shop, `name = "shop"`, "name = 3", 1), "3:1: app.name: is a number, not a string"},
	} {
		if _, _, err := appspec.ParseTOML(c.app, []byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	if _, _, err := appspec.ParseJSON("store", []byte(`{"app": {"name": "shop", "image": "a"}}`)); err == nil || !strings.Contains(err.Error(), "is not the application") {
		t.Errorf("JSON of another application: %v", err)
	}
}
