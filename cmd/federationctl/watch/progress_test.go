package watch

import (
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
)

// TestProgress follows a catalog until it is complete: the line is written over, makes room
// for others, and never wraps.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var screen strings.Builder
		var width atomic.Int64
		width.Store(80)
		p := &progress{address: "owner:1", terminal: &screen, width: func() int { return int(width.Load()) }}
		done := make(chan error)
		go func() { done <- p.run(t.Context()) }()
		after := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		after(progressInterval)
		p.count(&consumer.Status{Summary: catalog.Summary{Services: 2}})
		after(progressInterval)
		fmt.Fprintln(beside{p, &screen}, "federationctl: refused: this")
		fmt.Fprintln(beside{p, &screen}, "federationctl: refused: that")
		width.Store(12)
		after(progressInterval)
		p.count(&consumer.Status{Summary: catalog.Summary{Services: 3, State: catalog.Synced}})
		if err := <-done; err != nil {
			t.Error(err)
		}
		want := []string{
			"", "connecting to owner:1, 0 s\x1b[K",
			"2 services from owner:1, 1 s\x1b[K",
			"\x1b[Kfederationctl: refused: this\nfederationctl: refused: that\n",
			"2 services \x1b[K",
			"\x1b[K",
		}
		if diff := cmp.Diff(want, strings.Split(screen.String(), "\r")); diff != "" {
			t.Errorf("unexpected output (-want +got):\n%s", diff)
		}
		if _, err := io.WriteString(beside{p, &screen}, "end"); err != nil || !strings.HasSuffix(screen.String(), "\r\x1b[Kend") {
			t.Errorf("after the end it writes %q, with the error %v", screen.String(), err)
		}
	})
}
