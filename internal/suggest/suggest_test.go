package suggest_test

import (
	"slices"
	"strings"
	"testing"

	"tarn.dev/tarn/internal/suggest"
)

func TestNearFindsTheWordThatWasMeant(t *testing.T) {
	keys := []string{"name", "mountPath", "size", "accessMode", "storageClass", "preserveOnDelete"}
	for _, c := range []struct {
		name, word string
		known      []string
		want       []string
	}{
		{"another case", "mountpath", keys, []string{"mountPath"}},
		{"signs between the parts", "access_mode", keys, []string{"accessMode"}},
		{"a letter too many", "sizes", keys, []string{"size"}},
		{"a letter replaced", "storageClasz", keys, []string{"storageClass"}},
		{"the beginning of a word", "preserve", keys, []string{"preserveOnDelete"}},
		{"nothing like it", "colour", keys, nil},
		{"an empty word", "", keys, nil},
		{"a short word is not like any other", "ab", []string{"xy", "zz"}, nil},
		{"the likest first, then by name", "data1", []string{"data22", "data3", "data2", "data1x"}, []string{"data1x", "data2", "data3"}},
		{"letters of more than one byte", "größe", []string{"grösse", "größer"}, []string{"größer"}},
		{"a word too long to be meant", strings.Repeat("a", 300), []string{strings.Repeat("a", 299)}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := suggest.Near(c.word, c.known); !slices.Equal(got, c.want) {
				t.Errorf("Near(%q) = %q, want %q", c.word, got, c.want)
			}
		})
	}
}
