package watch

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/hamlet-federation/coredns-federation/federation/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/mirror"
)

// openTerminal opens a terminal, and returns both ends of it.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("there is no pseudo-terminal: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetUint32(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

func TestProgressCountsServices(t *testing.T) {
	master, slave := openTerminal(t)
	resize := func(width uint16) {
		if err := unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: 24}); err != nil {
			t.Fatal(err)
		}
	}
	resize(80)
	p := newProgress("owner:1", slave, newLines("owner:1", io.Discard, io.Discard))
	if err := p.show(mirror.Changes{Status: mirror.Status{Status: catalog.Status{Services: 2}}}); err != nil {
		t.Fatal(err)
	}
	p.tell(3 * time.Second)
	fmt.Fprintln(p, "federationctl: refused: this")
	p.tell(4 * time.Second)
	resize(12)
	p.tell(5 * time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.run(ctx); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"", "2 services from owner:1, 3 s\x1b[K",
		"\x1b[Kfederationctl: refused: this", "\n",
		"2 services from owner:1, 4 s\x1b[K",
		"2 services \x1b[K",
		"\x1b[K",
	}
	got := make([]byte, len(strings.Join(want, "\r")))
	if _, err := io.ReadFull(master, got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, strings.Split(string(got), "\r")); diff != "" {
		t.Errorf("unexpected output (-want +got):\n%s", diff)
	}
}
