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
)

// TestFaults makes each thing go wrong, and looks whether the pager, and what a person on
// call asks first, lead to the cause.
func TestFaults(t *testing.T) {
	t.Parallel()
	if os.Getenv("REAL_SERVERS") != "required" {
		t.Skip("needs the programs in bin, and takes long: REAL_SERVERS=required runs it")
	}
	for _, f := range faults() {
		t.Run(strings.ReplaceAll(f.name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			w, err := newWorld(ctx, t.TempDir())
			if w != nil {
				defer w.end()
			}
			if err != nil {
				t.Fatal(err)
			}
			firing, err := w.goWrong(ctx, f)
			if err != nil {
				t.Fatal(err)
			}
			if f.alert == "" && len(firing) > 0 {
				t.Errorf("alerts fire: %q", firing)
			}
			err = eventually(ctx, func(ctx context.Context) error { // an owner that is lost has to be tried again first
				said := w.why(ctx, t, f.ask, w.dns.status)
				for _, o := range []*owner{w.east, w.west} {
					if f.atOwner == o.name {
						said += w.why(ctx, t, f.ask, o.status)
					}
				}
				for _, clue := range f.clues {
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
func (w *world) why(ctx context.Context, t *testing.T, name, at string) string {
	t.Helper()
	var out bytes.Buffer
	command := exec.CommandContext(ctx, filepath.Join(w.bin, "federationctl"), "why", name, "--at", "http://"+at)
	command.Stdout, command.Stderr = &out, &out
	if err := command.Run(); err != nil {
		t.Errorf("federationctl why: %v: %s", err, &out)
	}
	return out.String()
}
