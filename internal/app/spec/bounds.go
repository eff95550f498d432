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

// unreadable says why no decoder should be given a text, and from which byte on; empty
// where one may be.
func unreadable(text []byte) (why string, at int) {
	switch {
	case len(text) > MaxBytes:
		return fmt.Sprintf("the file has %d bytes; the limit is %d", len(text), MaxBytes), MaxBytes
	case !utf8.Valid(text):
		return "the file is not UTF-8 text", notUTF8(text)
	}
	return "", 0
}

// withoutMark is text without the byte order mark that some editors begin a file with.
func withoutMark(text []byte) []byte { return bytes.TrimPrefix(text, []byte("\ufeff")) }

// notUTF8 is where a text ceases to be UTF-8.
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

// placed gives what is wrong with TOML from a byte on its line and column.
func placed(text []byte, at int, why string) Problems {
	before := text[:at]
	return Problems{{Line: bytes.Count(before, []byte("\n")) + 1, Column: at - bytes.LastIndexByte(before, '\n'), Message: why}}
}

var crowded = fmt.Sprintf("the file has too many keys and list items; the limit is %d", maxKeys)

// sparse refuses TOML with too many keys: the decoder compares each with those before
// it, so that a text of MaxBytes could keep it busy for half a minute.
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

// begins is the byte at which a line of TOML has its first key.
func begins(node *unstable.Node) int {
	keys := node.Key()
	keys.Next()
	return int(keys.Node().Raw.Offset)
}

// keysIn adds the keys and list items of a node to a number, up to where they are too many.
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

// scanner reads a JSON text for what its decoder would not tell of.
type scanner struct {
	decoder *json.Decoder
	// n counts values.
	n     int
	twice []Problem
}

// errCrowded ends a scan of a text with too many values.
var errCrowded = errors.New("too many values")

// scanJSON finds the keys that an object has twice, of which the decoder would take the
// last, and refuses too many. A text that is no JSON it leaves to the decoder.
func scanJSON(text []byte) (twice []Problem, refused Problems) {
	s := scanner{decoder: json.NewDecoder(bytes.NewReader(text))}
	s.decoder.UseNumber()
	if errors.Is(s.value(""), errCrowded) {
		return nil, Problems{{Message: crowded}}
	}
	return s.twice, nil
}

// value reads the value of a path.
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
			name, _ = key.(string) // nothing else is a key
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
