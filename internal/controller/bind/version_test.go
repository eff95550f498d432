package bind

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	apiversion "k8s.io/apimachinery/pkg/version"
)

func TestAnAPIServerThatIsNewerThanTheBinderIsToldOf(t *testing.T) {
	for name, c := range map[string]struct {
		major, minor string
		err          error
		told         string
	}{
		"the same":            {major: "1", minor: "36"},
		"of a cloud":          {major: "1", minor: "36+"},
		"an older one":        {major: "1", minor: "32"},
		"a newer one":         {major: "1", minor: "37", told: "newer than this binder"},
		"a much newer one":    {major: "2", minor: "0", told: "newer than this binder"},
		"one that cannot say": {err: errors.New("no route"), told: "no route"},
	} {
		t.Run(name, func(t *testing.T) {
			var told []string
			log := funcr.New(func(_, args string) { told = append(told, args) }, funcr.Options{})
			warnIfNewer(context.Background(), func() (*apiversion.Info, error) {
				return &apiversion.Info{Major: c.major, Minor: c.minor, GitVersion: "v" + c.major + "." + c.minor}, c.err
			}, log)
			if all := strings.Join(told, "\n"); (all == "") != (c.told == "") || !strings.Contains(all, c.told) {
				t.Errorf("the log has %q, want %q", all, c.told)
			}
		})
	}
}

// When the libraries are updated, this test shows that newestMinor must change too.
func TestTheNewestKnownVersionIsThatOfTheLibraries(t *testing.T) {
	modules, err := os.ReadFile("../../../go.mod") // a test binary has no build information of its modules
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("k8s.io/api v0.%d.", newestMinor); !strings.Contains(string(modules), want) {
		t.Errorf("go.mod has no %q, which newestMinor says", want)
	}
}
