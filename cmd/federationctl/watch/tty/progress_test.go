package tty

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestProgress follows what takes long: the line is written over, makes room for others, is
// never put into one of them, and never wraps. A pager ends it.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var screen, pipe strings.Builder
		var width atomic.Int64
		width.Store(80)
		p := &Progress{terminal: &screen, width: func() int { return int(width.Load()) }}
		terminal := beside{p, &screen, true}
		done, ended := make(chan struct{}), make(chan struct{})
		go func() { p.Run(done); close(ended) }()
		after := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		p.Sayf("connecting to %s", "owner:1")
		after(progressInterval)
		p.Sayf("2 services from owner:1")
		after(progressInterval)
		fmt.Fprintln(terminal, "federationctl: refused: this")
		fmt.Fprint(terminal, "federationctl: ")
		after(progressInterval)
		fmt.Fprintln(terminal, "refused: that")
		width.Store(12)
		after(progressInterval)
		p.Sayf("")
		after(progressInterval)
		p.Sayf("3 services")
		after(progressInterval)
		fmt.Fprint(p.Beside(&pipe), "text")
		after(progressInterval)
		close(done)
		<-ended
		want := []string{
			"", "connecting to owner:1, 0 s\x1b[K",
			"2 services from owner:1, 1 s\x1b[K",
			"\x1b[Kfederationctl: refused: this\nfederationctl: refused: that\n",
			"2 services \x1b[K", "\x1b[K",
			"3 services,\x1b[K", "\x1b[K",
		}
		if diff := cmp.Diff(want, strings.Split(screen.String(), "\r")); diff != "" {
			t.Errorf("unexpected output (-want +got):\n%s", diff)
		}
		if pipe.String() != "text" {
			t.Errorf("the pipe has %q", &pipe)
		}
	})
}

// TestNoProgress has no terminal.
func TestNoProgress(t *testing.T) {
	p := NewProgress(io.Discard)
	p.Sayf("nothing")
	if err := p.During(func() error { return io.EOF }); p != nil || p.Beside(io.Discard) != io.Discard || !errors.Is(err, io.EOF) {
		t.Errorf("progress %v, and the error %v", p, err)
	}
}
