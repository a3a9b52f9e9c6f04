package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/tty"
)

// terminal is a pseudo-terminal and the screen that it shows.
type terminal struct {
	t      *testing.T
	master *os.File
	slave  *os.File

	mu       sync.Mutex // guards the fields below
	changed  chan struct{}
	width    int
	height   int
	main     screen
	other    screen // the alternate one, for full-screen programs
	onOther  bool
	noCursor bool
	noWrap   bool
	coloured bool     // something was coloured at some time
	unknown  []string // characters and sequences that it does not know
}

// screen is the characters of a screen and the position of the cursor.
type screen struct {
	cells [][]rune
	x, y  int
}

// newTerminal opens a terminal, or skips the test where there is none.
func newTerminal(t *testing.T, width, height int) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("there is no pseudo-terminal: %v", err)
	}
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetUint32(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	v := &terminal{t: t, master: master, slave: slave, changed: make(chan struct{})}
	v.resize(width, height)
	var reader sync.WaitGroup
	reader.Go(v.read)
	t.Cleanup(func() {
		slave.Close()
		reader.Wait() // reads fail once the last slave is closed
		master.Close()
		v.mu.Lock()
		defer v.mu.Unlock()
		if len(v.unknown) > 0 {
			t.Errorf("the terminal got controls that it should not: %q", v.unknown)
		}
	})
	return v
}

// resize changes the size of the terminal.
func (v *terminal) resize(width, height int) {
	v.t.Helper()
	v.mu.Lock()
	v.width, v.height = width, height
	if v.onOther { // a real one drops what is outside
		s := &v.other
		s.cells = s.cells[:min(len(s.cells), height)]
		for i, cells := range s.cells {
			s.cells[i] = cells[:min(len(cells), width)]
		}
		s.x, s.y = min(s.x, width-1), min(s.y, height-1)
	}
	v.mu.Unlock()
	size := &unix.Winsize{Col: uint16(width), Row: uint16(height)}
	if err := unix.IoctlSetWinsize(int(v.master.Fd()), unix.TIOCSWINSZ, size); err != nil {
		v.t.Fatal(err)
	}
}

// typed sends text as if it was typed.
func (v *terminal) typed(text string) {
	v.t.Helper()
	if _, err := v.master.WriteString(text); err != nil {
		v.t.Fatal(err)
	}
}

// start runs a command on the terminal.
func (v *terminal) start(command *exec.Cmd) {
	v.t.Helper()
	command.Stdin = v.slave
	for _, file := range []*io.Writer{&command.Stdout, &command.Stderr} {
		if *file == nil {
			*file = v.slave
		}
	}
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	command.Env = append(command.Environ(), "TERM=xterm")
	if err := command.Start(); err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(func() { _ = command.Process.Kill() }) // in case the test has failed
}

// shows waits until the text is on the screen, and returns the screen.
func (v *terminal) shows(text string) string {
	v.t.Helper()
	return v.await(text, func(shown string) bool { return strings.Contains(shown, text) })
}

// await waits until the screen meets a condition, which may read the fields that mu
// guards. It returns the screen.
func (v *terminal) await(what string, condition func(shown string) bool) string {
	v.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		v.mu.Lock()
		shown, changed := v.shown(), v.changed
		met := condition(shown)
		v.mu.Unlock()
		if met {
			return shown
		}
		select {
		case <-changed:
		case <-deadline.C:
			v.t.Fatalf("the terminal does not show %q, but\n%s", what, shown)
		}
	}
}

// restored reports whether the terminal is as a shell expects it.
func (v *terminal) restored() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return !v.onOther && !v.noCursor && !v.noWrap
}

// wasColoured reports whether there has been colour.
func (v *terminal) wasColoured() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.coloured
}

// shown returns the screen without trailing spaces.
func (v *terminal) shown() string {
	var lines []string
	for _, cells := range v.current().cells {
		lines = append(lines, strings.TrimRight(string(cells), " "))
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}

// current returns the screen that is shown. The caller holds mu.
func (v *terminal) current() *screen {
	if v.onOther {
		return &v.other
	}
	return &v.main
}

// read emulates what is written to the terminal until its end.
func (v *terminal) read() {
	var pending []byte
	chunk := make([]byte, 4096)
	for {
		n, err := v.master.Read(chunk)
		v.mu.Lock()
		pending = append(pending, chunk[:n]...)
		for {
			size := v.take(pending)
			if size == 0 {
				break
			}
			pending = pending[size:]
		}
		close(v.changed)
		v.changed = make(chan struct{})
		v.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// take obeys the first character or control sequence, and returns its length, or 0
// while it is not complete.
func (v *terminal) take(text []byte) int {
	s := v.current()
	switch {
	case len(text) == 0:
		return 0
	case text[0] == '\r':
		s.x = 0
		return 1
	case text[0] == '\n':
		s.y++
		return 1
	case text[0] == '\x1b':
		return v.control(text)
	case !utf8.FullRune(text):
		return 0
	}
	r, size := utf8.DecodeRune(text)
	if r < ' ' || r == utf8.RuneError {
		v.unknown = append(v.unknown, string(text[:size]))
		return size
	}
	if s.x >= v.width {
		if v.noWrap {
			s.x = v.width - 1
		} else {
			s.x, s.y = 0, s.y+1
		}
	}
	s.put(r)
	return size
}

// put writes a character at the cursor.
func (s *screen) put(r rune) {
	for len(s.cells) <= s.y {
		s.cells = append(s.cells, nil)
	}
	for len(s.cells[s.y]) <= s.x {
		s.cells[s.y] = append(s.cells[s.y], ' ')
	}
	s.cells[s.y][s.x] = r
	s.x++
}

// control is take for a control sequence.
func (v *terminal) control(text []byte) int {
	end := bytes.IndexFunc(text, func(r rune) bool { return r >= '@' && r <= '~' && r != '[' })
	if end < 0 {
		return 0
	}
	s := v.current()
	// As on a real one, the cursor is on the last column after that was written.
	x := min(s.x, v.width-1)
	switch sequence := string(text[1 : end+1]); sequence {
	case "[H":
		s.x, s.y = 0, 0
	case "[K":
		if s.y < len(s.cells) && x < len(s.cells[s.y]) {
			s.cells[s.y] = s.cells[s.y][:x]
		}
	case "[J":
		if s.y < len(s.cells) {
			s.cells = s.cells[:s.y+1]
			s.cells[s.y] = s.cells[s.y][:min(x, len(s.cells[s.y]))]
		}
	case "[2J":
		s.cells = nil
	case "[?1049h", "[?1049l":
		v.onOther = sequence == "[?1049h"
		v.other = screen{}
	case "[?25h", "[?25l":
		v.noCursor = sequence == "[?25l"
	case "[?7h", "[?7l":
		v.noWrap = sequence == "[?7l"
	case "[0m", "[1m":
	case "[31m", "[32m", "[33m":
		v.coloured = true
	default:
		v.unknown = append(v.unknown, sequence)
	}
	return end + 1
}

// exitCode waits for a command to end, and returns its exit code.
func exitCode(t *testing.T, command *exec.Cmd) int {
	t.Helper()
	err := command.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return exit.ExitCode()
	}
	if err != nil {
		t.Fatalf("%q ended with %v", command.Args, err)
	}
	return 0
}

// onTerminal returns a command that runs the real binary, for terminal.start.
func onTerminal(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	return exec.CommandContext(context.WithoutCancel(t.Context()), realBinary(t), args...)
}

const (
	wantFirst = `synced  ADDRESS  2 services

  FQDN              NAME  INSTANCES            ENDPOINTS
  api.fed.example   api   v1/HTTP              192.0.2.20:80
  shop.fed.example  shop  v1/HTTPS,"v 2"/GRPC  192.0.2.10:443,[2001:db8::10]:44…`

	wantNarrow = "api.fed.ex…  v1/HTTP      192.0.2.21:…\n… and 2 more"
)

// TestWatchOnATerminal follows a session through changes, another size of the terminal,
// the loss of the owner and Ctrl-C.
func TestWatchOnATerminal(t *testing.T) {
	realBinary(t)
	dir := pkiIn(t)
	file := write(t, filepath.Join(dir, "catalog.yaml"), catalogText)
	owner, address := serve(t, dir, file, append(staying(t), "--allow-addresses", "127.0.0.0/8")...)
	v := newTerminal(t, 80, 24)
	command := onTerminal(t, append([]string{"watch", address}, files(dir, "consumer")...)...)
	command.Env = append(os.Environ(), "NO_COLOR=1")
	v.start(command)

	first := strings.Replace(wantFirst, "ADDRESS", address, 1)
	if diff := cmp.Diff(first, v.await("the catalog", func(shown string) bool { return shown == first })); diff != "" {
		t.Error(diff)
	}
	if v.restored() {
		t.Error("the table is not on a screen of its own, without a cursor")
	}

	// A change, a new service, and one that is refused.
	changed := strings.Replace(catalogText, "192.0.2.20", "192.0.2.21", 1) + `- name: "\u001b[2J\u4e16"
  fqdn: new.fed.example
  endpoints: [{address: 192.0.2.30, port: 80}]
  instances: [{id: v1, protocol: HTTP}]
- name: inside
  fqdn: inside.fed.example
  endpoints: [{address: 127.0.0.1, port: 80}]
  instances: [{id: v1, protocol: HTTP}]
`
	write(t, file, changed)
	v.shows(" api.fed.example   api              v1/HTTP              192.0.2.21:80\n") // behind a mark that goes
	v.shows(` new.fed.example   "\x1b[2J\u4e16"  v1/HTTP              192.0.2.30:80`)
	v.shows("1 refused  last change")
	v.shows("refused: service \"inside\": endpoints[0].address: loopback address 127.0.0.1,\nwhich allow_addresses")

	// A smaller terminal.
	v.resize(40, 5)
	v.await("the narrow table", func(shown string) bool { return strings.HasSuffix(shown, wantNarrow) })
	v.resize(80, 24)
	v.shows("shop.fed.example  shop")

	// The owner goes and comes back.
	owner.stop()
	v.shows("trying again")
	if shown := v.shows("lost for "); !strings.Contains(shown, "shop.fed.example") {
		t.Errorf("the services of a lost owner are not shown, but\n%s", shown)
	}
	again := background(t, append([]string{"serve", "--listen", address, "--catalog", write(t, file, catalogText)}, files(dir, "owner")...)...)
	again.line()
	v.shows("synced  " + address + "  2 services")

	v.typed("\x03")
	if code := exitCode(t, command); code != 0 {
		t.Errorf("after Ctrl-C the exit code is %d, expected 0", code)
	}
	shown := v.shows("federationctl: refused: service \"inside\"") // on standard error, which is the terminal
	if !v.restored() || !strings.Contains(shown, "shop.fed.example  shop") {
		t.Errorf("the terminal is restored: %v; it shows\n%s", v.restored(), shown)
	}
	if v.wasColoured() {
		t.Error("there was colour, although NO_COLOR is set")
	}
}

// TestWatchSuspendedByCtrlZ runs watch in a shell with job control.
func TestWatchSuspendedByCtrlZ(t *testing.T) {
	realBinary(t)
	dir := pkiIn(t)
	_, address := serve(t, dir, write(t, filepath.Join(dir, "catalog.yaml"), catalogText))
	v := newTerminal(t, 80, 24)
	script := strings.Join(append([]string{"set -m; federationctl watch", address}, files(".", "consumer")...), " ") +
		"; echo stopped with $?; read line; fg >/dev/null; echo done with $?"
	command := shellCommand(context.WithoutCancel(t.Context()), t, dir, script)
	v.start(command)
	v.shows("synced")
	v.typed("\x1a")
	v.shows("stopped with 14") // 128 and a signal
	if !v.restored() {
		t.Error("the shell has the screen and the cursor of the table")
	}
	v.typed("\n")
	v.shows("synced")
	v.typed("\x03")
	v.shows("done with 0")
	if code := exitCode(t, command); code != 0 || !v.restored() {
		t.Errorf("exit code %d; the terminal is restored: %v", code, v.restored())
	}
	if !v.wasColoured() {
		t.Error("there was no colour")
	}
}

// TestWatchRefusedOnATerminal has an owner that does not allow the consumer.
func TestWatchRefusedOnATerminal(t *testing.T) {
	realBinary(t)
	dir := pkiIn(t)
	_, address := serve(t, dir, write(t, filepath.Join(dir, "catalog.yaml"), catalogText), "--allow-id", pkiOwnerID)
	v := newTerminal(t, 400, 24)
	command := onTerminal(t, append([]string{"watch", address}, files(dir, "consumer")...)...)
	v.start(command)
	if code := exitCode(t, command); code != 1 {
		t.Errorf("exit code %d, expected 1", code)
	}
	v.shows("federationctl: owner " + address + ": Unauthenticated: ")
	v.shows("check --cert, or have the owner allow it with --allow-id")
	if !v.restored() {
		t.Error("the terminal is not restored")
	}
}

// TestWatchOnADumbTerminal shows lines where the cursor cannot be moved.
func TestWatchOnADumbTerminal(t *testing.T) {
	dir := pkiIn(t)
	_, address := serve(t, dir, write(t, filepath.Join(dir, "catalog.yaml"), catalogText))
	v := newTerminal(t, 200, 24)
	for _, name := range []string{"dumb", ""} {
		t.Setenv("TERM", name)
		if tty.CanUpdate(v.slave) {
			t.Errorf("TERM=%s can move its cursor", name)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	watch.Go(func() {
		if code := run(ctx, append([]string{"watch", address}, files(dir, "consumer")...), v.slave, v.slave); code != 0 {
			t.Errorf("exit code %d, expected 0", code)
		}
	})
	v.await("the lines", func(shown string) bool { return shown == strings.TrimRight(wantTable, "\n") })
	cancel()
	watch.Wait()
}

// TestTableInProcess shows the table without a process of its own, for the race
// detector.
func TestTableInProcess(t *testing.T) {
	t.Setenv("TERM", "xterm")
	dir := pkiIn(t)
	file := write(t, filepath.Join(dir, "catalog.yaml"), catalogText)
	_, address := serve(t, dir, file)
	v := newTerminal(t, 80, 24)
	ctx, cancel := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	var stderr bytes.Buffer
	watch.Go(func() {
		if code := run(ctx, append([]string{"watch", address}, files(dir, "consumer")...), v.slave, &stderr); code != 0 {
			t.Errorf("exit code %d, expected 0", code)
		}
	})
	v.shows("synced")
	for i := range 20 {
		write(t, file, strings.Replace(catalogText, "192.0.2.20", "192.0.2."+strconv.Itoa(100+i), 1))
		v.shows("192.0.2." + strconv.Itoa(100+i))
	}
	v.resize(60, 10) // there is no signal for this process: it must notice by itself
	v.await("a narrower table", func(shown string) bool {
		return strings.Contains(shown, "FQDN") && !strings.Contains(shown, "192.0.2.10:443,[")
	})
	cancel()
	watch.Wait()
	v.await("the main screen", func(string) bool { return !v.onOther && !v.noCursor && !v.noWrap })
	if stderr.Len() > 0 {
		t.Errorf("unexpected standard error %q", &stderr)
	}
}

// TestProgressWhileConnecting has a terminal for standard error only.
func TestProgressWhileConnecting(t *testing.T) {
	realBinary(t)
	dir := pkiIn(t)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0") // nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	address := listener.Addr().String()
	v := newTerminal(t, 80, 24)
	command := onTerminal(t, append([]string{"watch", "--once", address}, files(dir, "consumer")...)...)
	var stdout bytes.Buffer
	command.Stdout = &stdout
	v.start(command)
	v.shows("connecting to " + address + ", ")
	v.typed("\x03")
	if code := exitCode(t, command); code != 1 || stdout.Len() > 0 {
		t.Errorf("exit code %d, expected 1; standard output %q", code, &stdout)
	}
	want := "federationctl: interrupted before the catalog of " + address + " was complete"
	v.await(want, func(shown string) bool { return strings.Replace(shown, "^C", "", 1) == want || shown == want })
}
