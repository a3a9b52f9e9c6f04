package agent_test

import (
	"flag"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

var update = flag.Bool("update", false, "write the golden files of TestOutages; read the difference before you keep it")

// TestOutages lets streams fail in the ways that take time, or another network than that of
// a test, or a list of who may subscribe, and explains a name: with the reason, and what to do about it. For the other ways
// see TestWhy of the folder test.
func TestOutages(t *testing.T) {
	t.Parallel()
	hang := func(w *world) (happen func()) {
		cut := make(chan struct{})
		w.wrap = func(conn net.Conn) net.Conn { return &cable{Conn: conn, cut: cut, closed: make(chan struct{})} }
		w.serve(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
		return func() { close(cut) }
	}
	nowhere := func(err error) func(*world) func() {
		return func(w *world) func() {
			w.nowhere = err
			return func() {}
		}
	}
	for name, tt := range map[string]struct {
		prepare func(w *world) (happen func())
		reason  string
	}{
		"not-allowed": {func(w *world) func() {
			other := must.Get(federation.ParseID("other.example"))(w.t)
			s := must.Get(owner.New(owner.Config{
				Registry: registry.New(), Credentials: w.source(ownerAddress).Server(), Logger: slog.New(slog.DiscardHandler), Allow: []federation.ID{other},
			}))(w.t)
			w.run(ownerAddress, s)
			return func() {}
		}, "may not subscribe"},
		"hung":           {hang, "keepalive ping failed"},
		"hung-handshake": {hang, "TLS handshake: context deadline exceeded"},
		"timeout":        {nowhere(os.ErrDeadlineExceeded), "i/o timeout"},
		"no-route":       {nowhere(os.NewSyscallError("connect", syscall.EHOSTUNREACH)), "no route to host"},
		"no-such-host":   {nowhere(&net.DNSError{Err: "no such host", Name: "owner.example", IsNotFound: true}), "no such host"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				happen := tt.prepare(w)
				b := w.attach(w.block("one", w.owner(ownerAddress)))
				time.Sleep(30 * time.Second)
				synctest.Wait()
				happen()
				var why status.Why
				for range 60 * 60 * 10 { // which is an hour
					time.Sleep(100 * time.Millisecond)
					synctest.Wait()
					why = status.Why{
						Role: status.Consumer, Now: time.Now(), Name: "web.fed.example.", Type: "A",
						Answers: []status.Answer{explain(b, "web.fed.example")},
					}
					if strings.Contains(why.Answers[0].Owners[0].Failure, tt.reason) {
						break
					}
				}
				checkGolden(t, name, strings.Join(why.Lines(), "\n")+"\n")
				if u := w.agent.Owners(time.Now())[0]; u.Remedy == "" || u.Remedy != why.Answers[0].Owners[0].Remedy {
					t.Errorf("the status says %q, to do: %q", u.Failure, u.Remedy)
				}
			})
		})
	}
}

// varies is what differs between two runs: delays have a jitter, on which the times depend.
var varies = regexp.MustCompile(`next attempt (?:now|in \d+ (?:s|min))|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC|\b\d+ (s|min|h|days)\b( \d+ min)?|serial \d+`)

func checkGolden(t *testing.T, name, got string) {
	t.Helper()
	got = varies.ReplaceAllString(got, "...")
	path := filepath.Join("testdata", "outages", name+".txt")
	if *update {
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.Do(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want := must.Get(os.ReadFile(path))(t)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// cable is a connection that can be cut without either end being told.
type cable struct {
	net.Conn
	cut    <-chan struct{}
	closed chan struct{}
	once   sync.Once
}

func (c *cable) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	select {
	case <-c.cut:
		<-c.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func (c *cable) Write(p []byte) (int, error) {
	select {
	case <-c.cut:
		return len(p), nil
	default:
		return c.Conn.Write(p)
	}
}

func (c *cable) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
