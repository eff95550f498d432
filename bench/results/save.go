// Package results saves the results of the benchmarks, as JSON beside this file. It must not know
// their content.
package results

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// ErrMissed says that a measured goal was not reached. Programs return it last, when everything is
// measured, printed and saved.
var ErrMissed = errors.New("a goal is not reached")

// Save writes a report beside the earlier ones of its kind, named by the time it began. It prints
// the path on standard error. With an empty folder it saves nothing.
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
