// Package results keeps what the benchmarks have measured, as JSON beside this file. It
// must not know what that is.
package results

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// ErrMissed says that a goal was measured and not reached. It is told last, when everything is
// measured, printed and kept.
var ErrMissed = errors.New("a goal is not reached")

// Save writes a report beside the earlier ones of its kind, under the moment it began,
// and says where on standard error. An empty folder keeps nothing.
func Save(folder, kind string, began time.Time, report any) error {
	if folder == "" {
		return nil
	}
	raw, err := json.MarshalIndent(report, "", "  ")
	if err == nil {
		err = os.MkdirAll(folder, 0o755)
	}
	if err != nil {
		return fmt.Errorf("saving the results: %w", err)
	}
	path := filepath.Join(folder, kind+"-"+began.Format("20060102T150405Z")+".json")
	if err := os.WriteFile(path, append(raw, '\n'), 0o644); err != nil {
		return fmt.Errorf("saving the results: %w", err)
	}
	fmt.Fprintln(os.Stderr, "saved as", path)
	return nil
}
