package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2/unstable"
)

// unreadable says why a text must not be decoded, and from which byte on. why is empty if it may
// be.
func unreadable(text []byte) (why string, at int) {
	switch {
	case len(text) > MaxBytes:
		return fmt.Sprintf("the file has %d bytes; the limit is %d", len(text), MaxBytes), MaxBytes
	case !utf8.Valid(text):
		return "the file is not UTF-8 text", notUTF8(text)
	}
	return "", 0
}

// withoutMark returns text without the byte order mark that some editors write at the start.
func withoutMark(text []byte) []byte { return bytes.TrimPrefix(text, []byte("\ufeff")) }

// notUTF8 returns the first byte that is not UTF-8.
func notUTF8(text []byte) int {
	at := 0
	for at < len(text) {
		letter, size := utf8.DecodeRune(text[at:])
		if letter == utf8.RuneError && size == 1 {
			break
		}
		at += size
	}
	return at
}

// placed returns a problem in TOML at a byte, converted to line and column.
func placed(text []byte, at int, why string) Problems {
	before := text[:at]
	return Problems{{Line: bytes.Count(before, []byte("\n")) + 1, Column: at - bytes.LastIndexByte(before, '\n'), Message: why}}
}

var crowded = fmt.Sprintf("the file has too many keys and list items; the limit is %d", maxKeys)

// sparse rejects TOML with too many keys. The decoder compares each key with all earlier ones, so a
// text of MaxBytes could take it half a minute.
func sparse(text []byte) Problems {
	var parser unstable.Parser
	parser.Reset(text)
	for n := 0; parser.NextExpression(); {
		node := parser.Expression()
		if n = keysIn(node, n); n > maxKeys {
			return placed(text, begins(node), crowded)
		}
	}
	return nil
}

// begins returns the byte at which the first key of a TOML line starts.
func begins(node *unstable.Node) int {
	keys := node.Key()
	keys.Next()
	return int(keys.Node().Raw.Offset)
}

// keysIn adds the keys and list items of a node to n. It stops counting above maxKeys.
func keysIn(node *unstable.Node, n int) int {
	for children := node.Children(); n <= maxKeys && children.Next(); {
		child := children.Node()
		if child.Kind == unstable.Key || node.Kind == unstable.Array && child.Kind != unstable.Comment {
			n++
		}
		n = keysIn(child, n)
	}
	return n
}

// scanner finds what the JSON decoder does not report.
type scanner struct {
	decoder *json.Decoder
	// n counts values.
	n     int
	twice []Problem
}

// errCrowded ends a scan of a text with too many values.
var errCrowded = errors.New("too many values")

// scanJSON finds keys that an object has twice; the decoder would silently use the last one. It
// also rejects a text with too many values. A text that is not JSON is left to the decoder.
func scanJSON(text []byte) (twice []Problem, refused Problems) {
	s := scanner{decoder: json.NewDecoder(bytes.NewReader(text))}
	s.decoder.UseNumber()
	if errors.Is(s.value(""), errCrowded) {
		return nil, Problems{{Message: crowded}}
	}
	return s.twice, nil
}

// value reads the value at a path.
func (s *scanner) value(path string) error {
	if s.n++; s.n > maxKeys {
		return errCrowded
	}
	token, err := s.decoder.Token()
	if err != nil || token != json.Delim('{') && token != json.Delim('[') {
		return err
	}
	seen := map[string]bool{}
	for i := 0; s.decoder.More(); i++ {
		name := strconv.Itoa(i)
		if token == json.Delim('{') {
			key, err := s.decoder.Token()
			if err != nil {
				return err
			}
			name, _ = key.(string) // a key is always a string
			if seen[name] {
				s.twice = append(s.twice, Problem{Key: spoken(join(path, name)), Message: "is set twice: remove one"})
			}
			seen[name] = true
		}
		if err := s.value(join(path, name)); err != nil {
			return err
		}
	}
	_, err = s.decoder.Token()
	return err
}
