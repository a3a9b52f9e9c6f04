package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

const clearLine = "\x1b[K"

// allowed removes what a terminal may get: ends of lines, the way home, and colours.
var allowed = strings.NewReplacer(clearLine, "", "\x1b[H", "", "\x1b[J", "", "\x1b[31m", "", "\x1b[32m", "", "\x1b[33m", "", "\x1b[0m", "")

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

// shown returns the lines as they are in the end, where each was written over.
func (v *terminal) shown() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	lines := strings.Split(strings.ReplaceAll(v.text.String(), "\r\n", "\n"), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSuffix(line[strings.LastIndexByte(line, '\r')+1:], clearLine)
		lines[i] = strings.TrimPrefix(lines[i], clearLine)
	}
	return strings.Join(lines, "\n")
}

// shows waits until a text is on the terminal.
func (v *terminal) shows(t *testing.T, text string) {
	t.Helper()
	v.await(t, text, func(shown string) bool { return strings.Contains(shown, text) })
}

// await waits until what is shown meets a condition.
func (v *terminal) await(t *testing.T, what string, condition func(shown string) bool) {
	t.Helper()
	await.Until(t, promised, patience, func() string {
		if shown := v.shown(); !condition(shown) {
			return fmt.Sprintf("expected on the terminal: %q; it shows\n%s", what, shown)
		}
		return ""
	})
}

// watchOn runs watch with both outputs on the terminal, until the function that it returns
// is called.
func (v *terminal) watchOn(t *testing.T, dir, address string) (stop func()) {
	t.Helper()
	t.Setenv("TERM", "xterm")
	ctx, cancel := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	watch.Go(func() {
		if code := run(ctx, append([]string{"watch", address}, files(dir, "consumer")...), v.slave, v.slave); code != 0 {
			t.Errorf("exit code %d, expected 0", code)
		}
	})
	return func() {
		cancel()
		watch.Wait()
	}
}

// TestWatchOnATerminal follows changes, a hostile one among them, and the loss of the owner.
func TestWatchOnATerminal(t *testing.T) {
	dir := pkiIn(t)
	file := write(t, filepath.Join(dir, "catalog.yaml"), catalogText)
	owner, address := runServe(t, dir, file, append(staying(t), "--allow-addresses", "127.0.0.0/8")...)
	v := newTerminal(t)
	stop := v.watchOn(t, dir, address)
	defer stop()
	v.shows(t, wantTable)
	write(t, file, strings.Replace(catalogText, "192.0.2.20", "192.0.2.21", 1)+`- name: "\u001b[2J\u4e16"
  fqdn: new.fed.example
  endpoints: [{address: 192.0.2.30, port: 80}]
  instances: [{id: v1, protocol: HTTP}]
- name: inside
  fqdn: inside.fed.example
  endpoints: [{address: 127.0.0.1, port: 80}]
  instances: [{id: v1, protocol: HTTP}]
`)
	v.shows(t, "\nupsert  api                   api.fed.example                   v1/HTTP                       192.0.2.21:80\n")
	v.shows(t, "\nupsert  \"\\x1b[2J\\u4e16\"       new.fed.example                   v1/HTTP                       192.0.2.30:80\n")
	v.shows(t, "\nfederationctl: refused: service \"inside\": endpoints[0].address: loopback address 127.0.0.1, which")
	owner.stop()
	v.shows(t, "; trying again\n")
	again := background(t, slices.Concat([]string{"serve", "--listen", address, "--catalog", write(t, file, catalogText), "--allow-any"}, files(dir, "owner"))...)
	again.line()
	v.shows(t, "\nfederationctl: connected to "+address+" again\n")
	v.shows(t, "\ndelete  \"\\x1b[2J\\u4e16\"\n")
	stop()
	v.await(t, "one header, and no progress", func(shown string) bool {
		return strings.Count(shown, "OP  ") == 1 && !strings.Contains(shown, "connecting to") && !strings.Contains(shown, "services from")
	})
}

// TestProgressWhileConnecting has an owner that does not answer, with a terminal for both
// outputs, for standard error, and one that cannot write over a line.
func TestProgressWhileConnecting(t *testing.T) {
	dir := pkiIn(t)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0") // nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	address := listener.Addr().String()
	v := newTerminal(t)
	stop := v.watchOn(t, dir, address)
	v.shows(t, "connecting to "+address+", ")
	stop()
	v.await(t, "no progress", func(shown string) bool { return shown == "" })

	for _, name := range []string{"xterm", "dumb", ""} {
		t.Setenv("TERM", name)
		v := newTerminal(t)
		ctx, cancel := context.WithCancel(t.Context())
		var stdout bytes.Buffer
		var watch sync.WaitGroup
		watch.Go(func() {
			if code := run(ctx, append([]string{"watch", "--once", address}, files(dir, "consumer")...), &stdout, v.slave); code != 1 {
				t.Errorf("TERM=%s: exit code %d, expected 1", name, code)
			}
		})
		if name == "xterm" {
			v.shows(t, "connecting to "+address+", ")
		}
		cancel()
		watch.Wait()
		want := "federationctl: interrupted before the catalog of " + address + " was complete\n"
		v.await(t, want, func(shown string) bool { return shown == want })
		if stdout.Len() > 0 {
			t.Errorf("TERM=%s: standard output %q", name, &stdout)
		}
	}
}

// TestProgressOfCommands has commands that take long: they read what does not come, or ask who
// does not answer. What they do is on the terminal of their errors until they end, and not
// in the text that they write.
func TestProgressOfCommands(t *testing.T) {
	t.Setenv("TERM", "xterm")
	asked := make(chan struct{}) // is closed when the process may answer
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-asked:
		case <-r.Context().Done():
		}
	}))
	defer slow.Close()
	defer close(asked)
	reader, writer, err := os.Pipe()
	must.Do(t, err)
	defer writer.Close()
	defer reader.Close()
	old := os.Stdin
	os.Stdin = reader
	defer func() { os.Stdin = old }()
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"lint", "-"}, "checking 1 file, 0 s"},
		{[]string{"dump", "--at", slow.URL}, "asking " + slow.URL + ", 0 s"},
		{[]string{"wait", "gone.example", "--dns", emptyDNS(t)}, "gone.example: "},
	} {
		v := newTerminal(t)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { run(ctx, tt.args, v.slave, v.slave) })
		v.shows(t, tt.want)
		cancel()
		running.Wait()
		v.await(t, "no progress", func(shown string) bool { return !strings.Contains(shown, tt.want) })
	}
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
		if code := run(t.Context(), []string{"status", "--at", at}, v.slave, v.slave); code != exitDone {
			t.Errorf("exit code %d", code)
		}
		v.shows(t, tt.want)
	}
	t.Setenv("TERM", "xterm")
	v := newTerminal(t)
	ctx, cancel := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	watch.Go(func() {
		if code := run(ctx, []string{"status", "--at", at, "--watch", "--interval", "1ms"}, v.slave, v.slave); code != exitDone {
			t.Errorf("exit code %d", code)
		}
	})
	v.await(t, "two tables at one place", func(shown string) bool { return strings.Count(shown, "\x1b[HCoreDNS") > 1 })
	cancel()
	watch.Wait()
}
