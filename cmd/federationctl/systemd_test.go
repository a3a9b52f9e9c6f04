package main

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// notifySocket has systemd told at a socket, and returns what waits for the next state that it is told.
func notifySocket(t *testing.T) (told func() string) {
	t.Helper()
	address := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"}
	socket := must.Get(net.ListenUnixgram(address.Net, address))(t)
	t.Cleanup(func() { socket.Close() })
	must.Do(t, socket.SetDeadline(time.Now().Add(patience)))
	t.Setenv("NOTIFY_SOCKET", address.Name)
	return func() string {
		state := make([]byte, 100)
		n := must.Get(socket.Read(state))(t)
		return string(state[:n])
	}
}

// systemd is told when the owner serves, and when it begins to end.
func TestServeTellsSystemd(t *testing.T) {
	dir := pkiIn(t)
	told := notifySocket(t)
	r, _ := runServe(t, dir, write(t, filepath.Join(dir, "catalog.yaml"), catalogText))
	if got := told(); got != "READY=1" {
		t.Errorf("told %q first, want READY=1", got)
	}
	if code := r.stop(); code != 0 {
		t.Errorf("exit code %d, want 0:\n%s", code, r.errs)
	}
	if got := told(); got != "STOPPING=1" {
		t.Errorf("told %q at the end, want STOPPING=1", got)
	}
}

// An owner whose systemd cannot be told serves all the same, and says so.
func TestServeWithoutSystemd(t *testing.T) {
	dir := pkiIn(t)
	t.Setenv("NOTIFY_SOCKET", filepath.Join(dir, "gone"))
	r, _ := runServe(t, dir, write(t, filepath.Join(dir, "catalog.yaml"), catalogText))
	if code := r.stop(); code != 0 {
		t.Errorf("exit code %d, want 0:\n%s", code, r.errs)
	}
	if text := r.errs.String(); !strings.Contains(text, "systemd cannot be told") {
		t.Errorf("the log has nothing about systemd:\n%s", text)
	}
}
