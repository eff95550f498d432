package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// profileSeconds is the length of a profile, from the first claim on.
const profileSeconds = "5"

// profile writes CPU profiles of the binder and of the API server to a directory, beside a run of
// the first turn. The channel receives the result once.
func (c *cluster) profile(ctx context.Context, folder string, one planned) <-chan error {
	done := make(chan error, 1)
	if folder == "" || one.turn > 1 {
		done <- nil
		return done
	}
	go func() {
		done <- func() error {
			if err := os.MkdirAll(folder, 0o755); err != nil {
				return fmt.Errorf("making the directory of the profiles: %w", err)
			}
			name := fmt.Sprintf("%s-%s-%d", one.subject.name, one.mode, one.n)
			binder := make(chan error, 1)
			go func() { binder <- c.profileBinder(ctx, filepath.Join(folder, name+".pprof")) }()
			raw, err := c.client.RESTClient().Get().AbsPath("/debug/pprof/profile").Param("seconds", profileSeconds).DoRaw(ctx)
			if err == nil {
				err = os.WriteFile(filepath.Join(folder, name+"-apiserver.pprof"), raw, 0o644)
			}
			if binderErr := <-binder; err == nil {
				err = binderErr
			}
			if err != nil {
				return fmt.Errorf("taking a profile: %w", err)
			}
			return nil
		}()
	}()
	return done
}

// profileBinder profiles Tarn's controller. The peer does not offer profiles.
func (c *cluster) profileBinder(ctx context.Context, path string) error {
	if c.pprof == "" {
		return nil
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.pprof+"/debug/pprof/profile?seconds="+profileSeconds, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	raw, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", answer.Status, strings.TrimSpace(string(raw)))
	}
	return os.WriteFile(path, raw, 0o644)
}
