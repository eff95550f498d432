// Package suggest finds the word that a user probably meant, for better error messages. It knows
// only words, not what they name.
package suggest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	// mostNear is how many words Near returns.
	mostNear = 3
	// longest is the longest word that is compared, in bytes. The effort grows with the square of
	// the length, and no real name is longer.
	longest = 256
)

// Near returns the known words most similar to word, the most similar first, at most three. It
// returns nil if none is similar. Case and the signs _ - . between parts do not count.
func Near(word string, known []string) []string {
	type candidate struct {
		word  string
		steps int
	}
	var like []candidate
	asked := plain(word)
	if asked == "" || len(word) > longest {
		return nil
	}
	for _, k := range known {
		name := plain(k)
		if len(k) > longest || name == "" {
			continue
		}
		steps, most := distance(asked, name), max(1, min(utf8.RuneCountInString(asked), utf8.RuneCountInString(name))/3)
		if len(asked) > 2 && (strings.HasPrefix(name, asked) || strings.HasPrefix(asked, name) && len(name) > 2) {
			steps = min(steps, 1)
		}
		if steps <= most {
			like = append(like, candidate{k, steps})
		}
	}
	slices.SortStableFunc(like, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.steps, b.steps), cmp.Compare(a.word, b.word))
	})
	var near []string
	for _, c := range like[:min(len(like), mostNear)] {
		near = append(near, c.word)
	}
	return near
}

// Hint names the known words nearest to word, or all of them if none is near.
func Hint(word string, known []string) string {
	if near := Near(word, known); near != nil {
		return fmt.Sprintf("did you mean %s?", strings.Join(near, " or "))
	}
	return "known are " + strings.Join(known, ", ")
}

// plain returns a word without the differences that users often get wrong: case and separators.
func plain(word string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "", ".", "", " ", "").Replace(word))
}

// distance returns how many letters must be inserted, removed or replaced to turn one word into the
// other.
func distance(a, b string) int {
	from, to := []rune(a), []rune(b)
	row := make([]int, len(to)+1)
	for j := range row {
		row[j] = j
	}
	for i := range from {
		diagonal := row[0]
		row[0] = i + 1
		for j := range to {
			replaced := diagonal
			if from[i] != to[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(to)]
}
