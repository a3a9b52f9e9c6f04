package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// allowed removes what a terminal may get: ends of lines, the way home, and colours.
var allowed = strings.NewReplacer("\x1b[K", "", "\x1b[H", "", "\x1b[J", "", "\x1b[31m", "", "\x1b[32m", "", "\x1b[33m", "", "\x1b[0m", "")

// terminal is a pseudo-terminal, and what was written to it.
type terminal struct {
	slave *os.File // the end that programs write to

	mu   sync.Mutex // guards text
	text strings.Builder
}

// newTerminal opens a terminal, or skips the test where there is none.
func newTerminal(t *testing.T) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("there is no pseudo-terminal: %v", err)
	}
	must.Do(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	number := must.Get(unix.IoctlGetUint32(int(master.Fd()), unix.TIOCGPTN))(t)
	slave := must.Get(os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0))(t)
	v := &terminal{slave: slave}
	var reading sync.WaitGroup
	reading.Go(func() {
		chunk := make([]byte, 4096)
		for {
			n, err := master.Read(chunk)
			v.mu.Lock()
			v.text.Write(chunk[:n])
			v.mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		slave.Close()
		reading.Wait() // reads fail once the last slave is closed
		master.Close()
		if left := allowed.Replace(v.text.String()); strings.ContainsFunc(left, func(r rune) bool { return r < ' ' && r != '\r' && r != '\n' }) {
			t.Errorf("the terminal got controls that it should not: %q", left)
		}
	})
	return v
}

// shows waits until a text has been written so often.
func (v *terminal) shows(t *testing.T, text string, times int) {
	t.Helper()
	await.Until(t, patience, func() string {
		v.mu.Lock()
		defer v.mu.Unlock()
		if got := v.text.String(); strings.Count(got, text) < times {
			return fmt.Sprintf("expected on the terminal, %d times: %q; it shows\n%s", times, text, got)
		}
		return ""
	})
}

// TestStatusOnATerminal has colours where they are wanted, and with --watch the same place
// for each table.
func TestStatusOnATerminal(t *testing.T) {
	at := statusAt(t, &manyOwners{owners: followed()})
	for _, tt := range []struct{ term, noColor, want string }{
		{"xterm", "", "\x1b[31mact\x1b[0m    mesh-c.example"},
		{"xterm", "1", "\nact    mesh-c.example"},
		{"dumb", "", "\nact    mesh-c.example"},
	} {
		t.Setenv("TERM", tt.term)
		t.Setenv("NO_COLOR", tt.noColor)
		v := newTerminal(t)
		if code := runCommandLine(t.Context(), []string{"status", "--at", at}, v.slave, v.slave); code != exitDone {
			t.Errorf("exit code %d", code)
		}
		v.shows(t, tt.want, 1)
	}
	t.Setenv("TERM", "xterm")
	v := newTerminal(t)
	ctx, cancel := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	watch.Go(func() {
		if code := runCommandLine(ctx, []string{"status", "--at", at, "--watch", "--interval", "1ms"}, v.slave, v.slave); code != exitDone {
			t.Errorf("exit code %d", code)
		}
	})
	v.shows(t, "\x1b[HCoreDNS", 2) // tables at one place
	cancel()
	watch.Wait()
}
