package spec

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// checker turns a document into a File and collects its problems.
type checker struct {
	doc      document
	problems []Problem
	warnings []Problem
}

func check(doc document) (*File, []Problem, error) {
	c := &checker{doc: doc, problems: doc.twice}
	root := section{c: c, values: doc.values}
	root.known("app", "volumes")
	f := &File{App: c.app(root)}
	f.Volumes = c.volumes(root)
	c.together(f)
	if len(c.problems) > 0 {
		return nil, sorted(c.warnings), Problems(sorted(c.problems))
	}
	return f, sorted(c.warnings), nil
}

func (c *checker) app(root section) App {
	app := App{Replicas: 1}
	s, ok := root.table("app")
	if !ok {
		return app
	}
	s.known("name", "image", "command", "args", "port", "env", "secrets", "replicas")
	app.Name = s.text("name")
	if app.Name != "" {
		s.refuse("name", cmp.Or(notLabel(app.Name), tooLong(app.Name, LongestName)))
	}
	switch known := c.doc.app; {
	case known != "" && app.Name != "" && app.Name != known:
		s.problem("name", fmt.Sprintf("%q is not the application %q: write that, or leave it out", app.Name, known))
	case known != "":
		app.Name = known
	}
	app.Image = s.text("image")
	switch {
	case !s.has("image"):
		s.problem("image", "is missing: name the container image to run")
	case s.isText("image") && (app.Image == "" || strings.ContainsFunc(app.Image, hidden)):
		s.problem("image", fmt.Sprintf("%q is not an image: write it as registry.example.com/shop:1.4", app.Image))
	default:
		s.refuse("image", tooLong(app.Image, longestImage))
	}
	app.Command, app.Args = s.texts("command"), s.texts("args")
	if n, ok := s.whole("port", 1, 65535); ok {
		app.Port = int32(n)
	}
	if n, ok := s.whole("replicas", 0, MaxReplicas); ok {
		app.Replicas = int32(n)
	}
	app.Env, app.Secrets = c.env(s), c.secrets(s)
	return app
}

// hidden says whether a character is invisible.
func hidden(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)

func (c *checker) env(app section) map[string]string {
	s, ok := app.table("env")
	if !ok {
		return nil
	}
	env := make(map[string]string, len(s.values))
	for _, name := range slices.Sorted(maps.Keys(s.values)) {
		if !envName.MatchString(name) {
			s.problem(name, "is not a valid name of an environment variable: write letters, digits, _, . and -, beginning with a letter or _")
		}
		if text := s.text(name); s.isText(name) {
			if strings.ContainsRune(text, 0) {
				s.problem(name, "contains a zero byte, which an environment variable cannot")
			}
			env[name] = text
		}
	}
	return env
}

// secretKey matches SECRET/KEY, with the names that Kubernetes allows.
var secretKey = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[-._a-zA-Z0-9]{1,253}$`)

func (c *checker) secrets(app section) map[string]string {
	s, ok := app.table("secrets")
	if !ok {
		return nil
	}
	if len(s.values) > MaxSecrets {
		app.problem("secrets", fmt.Sprintf("there are %d; an application may have %d", len(s.values), MaxSecrets))
		return nil
	}
	given, _ := app.table("env")
	secrets := make(map[string]string, len(s.values))
	for _, name := range slices.Sorted(maps.Keys(s.values)) {
		if !envName.MatchString(name) {
			s.problem(name, "is not a valid name of an environment variable: write letters, digits, _, . and -, beginning with a letter or _")
		}
		if _, twice := given.values[name]; twice {
			s.problem(name, "is in [app.env] too: remove it from one of them")
		}
		from := s.text(name)
		if !s.isText(name) {
			continue
		}
		if secret, _, _ := strings.Cut(from, "/"); !secretKey.MatchString(from) || len(secret) > 253 {
			s.problem(name, fmt.Sprintf("%q is not SECRET/KEY: name a Secret of the namespace and a key in it, as in shop-db/password", from))
		}
		secrets[name] = from
	}
	return secrets
}

func (c *checker) volumes(root section) []Volume {
	tables := root.tables("volumes")
	if len(tables) > MaxVolumes {
		root.problem("volumes", fmt.Sprintf("there are %d; an application may have %d", len(tables), MaxVolumes))
		return nil
	}
	volumes := make([]Volume, 0, len(tables))
	for _, s := range tables {
		volumes = append(volumes, c.volume(s))
	}
	return volumes
}

func (c *checker) volume(s section) Volume {
	s.known("name", "mountPath", "size", "accessMode", "storageClass", "preserveOnDelete")
	v := Volume{AccessMode: ReadWriteOnce}
	v.Name = s.required("name", `as in name = "data"`)
	if v.Name != "" {
		s.refuse("name", notLabel(v.Name))
	}
	v.MountPath = s.required("mountPath", `as in mountPath = "/data"`)
	if v.MountPath != "" {
		s.refuse("mountPath", badMountPath(v.MountPath))
	}
	v.SizeGi = s.size()
	if mode := s.text("accessMode"); s.isText("accessMode") {
		switch AccessMode(mode) {
		case ReadWriteOnce, ReadWriteMany:
			v.AccessMode = AccessMode(mode)
		default:
			s.warn("accessMode", fmt.Sprintf("%q is unknown, so the volume is block storage (rwo); write rwo or rwx", mode))
		}
	}
	v.StorageClass = s.text("storageClass")
	if v.StorageClass != "" && len(validation.IsDNS1123Subdomain(v.StorageClass)) > 0 {
		s.problem("storageClass", fmt.Sprintf("%q is not a valid storage class: write lower-case letters, digits, - and .", v.StorageClass))
	}
	v.PreserveOnDelete = s.flag("preserveOnDelete")
	return v
}

// size reads a size: a quantity as "10Gi", or a bare number of GiB.
func (s section) size() int64 {
	const remedy = `write a whole number of Gi from 1 to 1000, as in size = "10Gi"`
	switch value := s.values["size"].(type) {
	case nil:
		s.problem("size", "is missing: "+remedy)
	case int64:
		if value >= MinSizeGi && value <= MaxSizeGi {
			return value
		}
		s.problem("size", fmt.Sprintf("%d is out of bounds: %s", value, remedy))
	case string:
		quantity, err := resource.ParseQuantity(value)
		if err != nil {
			s.problem("size", fmt.Sprintf("%q is not a size: %s", value, remedy))
			return 0
		}
		const gi = 1 << 30
		bytes, exact := quantity.AsInt64()
		if exact && bytes%gi == 0 && bytes >= MinSizeGi*gi && bytes <= MaxSizeGi*gi {
			return bytes / gi
		}
		s.problem("size", fmt.Sprintf("%q is out of bounds or between two: %s", value, remedy))
	default:
		s.problem("size", fmt.Sprintf("is %s: %s", kind(value), remedy))
	}
	return 0
}

// together checks what concerns more than one table.
func (c *checker) together(f *File) {
	for i := range f.Volumes {
		v, here := &f.Volumes[i], "volumes."+strconv.Itoa(i)
		if f.App.Name != "" && v.Name != "" {
			if name := ClaimName(f.App.Name, v.Name); len(name) > maxClaimName {
				c.problem(here+".name", fmt.Sprintf("its claim would be %s, %d characters long; the limit is %d: shorten this name or that of the application", name, len(name), maxClaimName))
			}
		}
		for j := range i {
			c.pair(f, j, i)
		}
	}
}

// pair checks two volumes against each other. A problem is reported for the later one.
func (c *checker) pair(f *File, first, second int) {
	a, b, here := &f.Volumes[first], &f.Volumes[second], "volumes."+strconv.Itoa(second)
	if a.Name != "" && a.Name == b.Name {
		c.problem(here+".name", fmt.Sprintf("%q is also the name of an earlier volume: give each its own", b.Name))
	}
	switch {
	case a.MountPath == "" || b.MountPath == "":
	case a.MountPath == b.MountPath:
		c.problem(here+".mountPath", fmt.Sprintf("%q is also the mountPath of volume %q: give each its own", b.MountPath, a.Name))
	case within(a.MountPath, b.MountPath):
		c.problem(here+".mountPath", fmt.Sprintf("%q is inside %q of volume %q, and one would hide the other: put them side by side", b.MountPath, a.MountPath, a.Name))
	case within(b.MountPath, a.MountPath):
		c.problem(here+".mountPath", fmt.Sprintf("%q of volume %q is inside %q, and one would hide the other: put them side by side", a.MountPath, a.Name, b.MountPath))
	}
}

func (c *checker) problem(path, message string) {
	c.problems = append(c.problems, c.said(path, message))
}

// said gives a message its place: that of the key, or of the table where the key is missing. The
// place of a missing table is the beginning of the file.
func (c *checker) said(path, message string) Problem {
	at, known := c.doc.at[path]
	for table := path; !known; at, known = c.doc.at[table] {
		end := strings.LastIndexByte(table, '.')
		if end < 0 {
			if c.doc.at != nil {
				at = position{1, 1}
			}
			break
		}
		table = table[:end]
	}
	return Problem{Line: at.line, Column: at.column, Key: spoken(path), Message: message}
}

var number = regexp.MustCompile(`\.(\d+)(\.|$)`)

// spoken returns a path as users write it: volumes[1].size.
func spoken(path string) string { return number.ReplaceAllString(path, "[$1]$2") }

func notLabel(name string) string {
	if len(validation.IsDNS1123Label(name)) == 0 {
		return ""
	}
	return fmt.Sprintf("%q is not a valid name: write lower-case letters, digits and -, beginning and ending with a letter or digit, at most 63", name)
}

// tooLong rejects a text with more than most characters.
func tooLong(text string, most int) string {
	n := utf8.RuneCountInString(text)
	if n <= most {
		return ""
	}
	return fmt.Sprintf("%.20q... has %d characters: write at most %d", text, n, most)
}

// reserved are directories that a container needs unchanged, or that are Tarn's.
var reserved = []string{"/proc", "/sys", "/dev", "/pav", "/run/secrets", "/var/run/secrets"}

func badMountPath(path string) string {
	const remedy = `write an absolute path, as in mountPath = "/data"`
	switch long := tooLong(path, longestPath); {
	case long != "":
		return long
	case path == "/":
		return `"/" would hide the whole image: ` + remedy
	case !strings.HasPrefix(path, "/"):
		return fmt.Sprintf("%q is relative: %s", path, remedy)
	case strings.ContainsFunc(path, func(r rune) bool { return r == ':' || r != ' ' && hidden(r) }):
		return fmt.Sprintf("%q contains a character that a mount path cannot: %s", path, remedy)
	case path != clean(path):
		if bad := badMountPath(clean(path)); bad != "" { // the proposed path must not be rejected in turn
			return fmt.Sprintf("%q is %q in its plain form: %s", path, clean(path), bad)
		}
		return fmt.Sprintf("%q is not the plain form of the path: write %q", path, clean(path))
	}
	for _, folder := range reserved {
		if path == folder || within(folder, path) || within(path, folder) {
			return fmt.Sprintf("%q is reserved, or hides %s, which is: %s", path, folder, remedy)
		}
	}
	return ""
}

// within says whether a clean path lies below a directory.
func within(folder, path string) bool { return strings.HasPrefix(path, folder+"/") }

// kind words the type of a value for messages.
func kind(value any) string {
	switch v := value.(type) {
	case string:
		return "a string"
	case bool:
		return "true or false"
	case int64:
		return "a number"
	case float64:
		if v != math.Trunc(v) {
			return "a fraction"
		}
		return "a number with a point"
	case []any:
		return "a list"
	case map[string]any:
		return "a table"
	case nil:
		return "nothing"
	}
	return "a date or time"
}
