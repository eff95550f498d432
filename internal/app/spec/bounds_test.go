package spec_test

import (
	"fmt"
	"strings"
	"testing"

	appspec "tarn.dev/tarn/internal/app/spec"
)

func TestATextThatWouldKeepTheDecoderBusyIsRefused(t *testing.T) {
	const want = "the file has too many keys and list items; the limit is 2000"
	keys := func(format string) string {
		var b strings.Builder
		for i := range 2001 {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	for name, c := range map[string]struct{ text, at string }{
		"keys":            {keys("k%d = 1\n"), "2001:1"},
		"keys of a table": {"[app.env]\n" + keys("k%d = '1'\n"), "2000:1"},
		"tables":          {keys("[t%d]\n"), "2001:2"},
		"lists of tables": {keys("[[volumes]]\nname = 'v%d'\n"), "2001:3"},
		"items":           {"[app]\nargs = [" + keys("'%d',") + "]", "2:1"},
		"inline tables":   {"app = {" + strings.TrimSuffix(keys("k%d = 1,"), ",") + "}", "1:1"},
		"dots":            {" a" + strings.Repeat(".a", 2001) + " = 1", "1:2"},
	} {
		if _, _, err := appspec.ParseTOML("", []byte(c.text)); err == nil || err.Error() != c.at+": "+want {
			t.Errorf("%s: ParseTOML fails with %.200v, want %s: %s", name, err, c.at, want)
		}
	}
	for name, text := range map[string]string{
		"keys":  "{" + strings.TrimSuffix(keys(`"k%d": 1,`), ",") + "}",
		"items": `{"app": {"args": [` + keys(`"%d",`) + `""]}}`,
		"depth": strings.Repeat(`{"a":`, 2001),
	} {
		if _, _, err := appspec.ParseJSON("", []byte(text)); err == nil || err.Error() != want {
			t.Errorf("%s: ParseJSON fails with %.200v, want %s", name, err, want)
		}
	}
}

func TestAFileMayHaveManyVolumesAndVariables(t *testing.T) {
	text := strings.Builder{}
	text.WriteString("[app]\nimage = 'shop:1'\n[app.env]\n")
	for i := range 1000 {
		fmt.Fprintf(&text, "V%d = 'x'\n", i)
	}
	for i := range appspec.MaxVolumes {
		fmt.Fprintf(&text, "[[volumes]]\nname = 'v%d'\nmountPath = '/v%d'\nsize = 1\naccessMode = 'rwx'\nstorageClass = 'fast'\npreserveOnDelete = true\n", i, i)
	}
	f, _, err := appspec.ParseTOML("", []byte(text.String()))
	if err != nil || len(f.Volumes) != appspec.MaxVolumes || len(f.App.Env) != 1000 {
		t.Errorf("ParseTOML = %.200v, want all of it", err)
	}
}

func TestAKeyThatJSONHasTwiceIsNoSilentChoice(t *testing.T) {
	_, _, err := appspec.ParseJSON("", []byte(`{"app": {"image": "shop:1", "image": "shop:2"}, "volumes": [{"name": "a", "size": 1, "size": 2, "mountPath": "/a"}], "app": {"image": "shop:3"}}`))
	want := "app.image: is set twice: remove one\nvolumes[0].size: is set twice: remove one\napp: is set twice: remove one"
	if err == nil || err.Error() != want {
		t.Errorf("ParseJSON fails with %v, want %s", err, want)
	}
}
