package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/suites/monitoring/faults"
)

// TestFaults makes each thing go wrong, and looks whether the pager, and what a person on
// call asks first, lead to the cause.
func TestFaults(t *testing.T) {
	t.Parallel()
	if os.Getenv("REAL_SERVERS") != "required" {
		t.Skip("needs the programs in bin, and takes long: REAL_SERVERS=required runs it")
	}
	for _, f := range faults.All() {
		t.Run(strings.ReplaceAll(f.Name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			w, err := faults.New(ctx, t.TempDir())
			if w != nil {
				defer w.End()
			}
			must.Do(t, err)
			must.Do(t, w.StartPager(ctx))
			firing, err := w.GoWrong(ctx, f)
			must.Do(t, err)
			if len(f.Alerts) == 0 && len(firing) > 0 {
				t.Errorf("alerts fire: %q", firing)
			}
			err = faults.Eventually(ctx, func(ctx context.Context) error { // an owner that is lost has to be tried again first
				said := why(ctx, t, w, f.Ask, w.DNS.Status)
				for _, o := range []*faults.Owner{w.East, w.West} {
					if f.AtOwner == o.Name {
						said += why(ctx, t, w, f.Ask, o.Status)
					}
				}
				for _, clue := range f.Clues {
					if !strings.Contains(said, clue) {
						return fmt.Errorf("nothing says %q; this is said:\n%s", clue, said)
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// why returns what federationctl says of a name.
func why(ctx context.Context, t *testing.T, w *faults.World, name, at string) string {
	t.Helper()
	var out bytes.Buffer
	command := exec.CommandContext(ctx, filepath.Join(w.Bin, "federationctl"), "why", name, "--at", "http://"+at)
	command.Stdout, command.Stderr = &out, &out
	if err := command.Run(); err != nil {
		t.Errorf("federationctl why: %v: %s", err, &out)
	}
	return out.String()
}
