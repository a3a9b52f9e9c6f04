package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
)

func TestParseTarget(t *testing.T) {
	for _, tt := range []struct{ target, address, host string }{
		{"owner.example:8008", "owner.example:8008", "owner.example"},
		{"[2001:db8::1]:8008", "[2001:db8::1]:8008", "2001:db8::1"},
		{"https://owner.example:8008", "owner.example:8008", "owner.example"},
		{"https://150.214.141.1:8008/", "150.214.141.1:8008", "150.214.141.1"},
		{"owner.example", "", ""},
		{"owner.example:", "", ""},
		{":8008", "", ""},
		{"https://owner.example", "", ""},
		{"https://user@owner.example:8008", "", ""},
		{"https://owner.example:8008/path", "", ""},
		{"https://owner.example:8008?q", "", ""},
		{"grpc://owner.example:8008", "", ""},
		{"https://%zz:1", "", ""},
	} {
		address, host, err := parseTarget(tt.target)
		if address != tt.address || host != tt.host || (err == nil) != (tt.address != "") {
			t.Errorf("%q is %q at %q with the error %v, expected %q at %q", tt.target, address, host, err, tt.address, tt.host)
		}
	}
}

// TestWatchOnceEnds shows when a catalog counts as complete, and when it is not known.
func TestWatchOnceEnds(t *testing.T) {
	for _, tt := range []struct {
		name   string
		marked bool
		say    func(context.Context, *watcher) error // every second
		want   time.Duration                         // emptyTime is a failure
	}{
		{"nothing at all", false, nil, emptyTime},
		{"a mark that never comes", true, nil, emptyTime},
		{"heartbeats", false, func(ctx context.Context, w *watcher) error {
			return w.Apply(ctx, federation.Event{Operation: federation.Alive})
		}, emptyTime},
		{"services", false, func(ctx context.Context, w *watcher) error {
			return w.Apply(ctx, federation.Event{Operation: federation.Delete, Name: "a"})
		}, 3*time.Second + settleTime},
		{"refused services", false, func(ctx context.Context, w *watcher) error {
			return w.Refused(ctx, &federation.InvalidError{Service: "a"})
		}, emptyTime},
		{"services, and refused ones", false, func(ctx context.Context, w *watcher) error {
			if err := w.Apply(ctx, federation.Event{Operation: federation.Delete, Name: "a"}); err != nil {
				return err
			}
			time.Sleep(time.Second)
			return w.Refused(ctx, &federation.InvalidError{Service: "b"})
		}, 6*time.Second + settleTime},
		{"marked", true, func(ctx context.Context, w *watcher) error {
			if err := w.Apply(ctx, federation.Event{Operation: federation.Delete, Name: "a"}); err != nil {
				return err
			}
			time.Sleep(time.Hour)
			return w.Apply(ctx, federation.Event{Operation: federation.End})
		}, time.Hour + time.Second},
		{"marked and empty", true, func(ctx context.Context, w *watcher) error {
			return w.Apply(ctx, federation.Event{Operation: federation.End})
		}, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, finish := context.WithCancelCause(t.Context())
				w := &watcher{once: true, view: &lines{stdout: io.Discard, stderr: io.Discard, format: table}, stderr: io.Discard, finish: finish}
				begun := time.Now()
				if err := w.Opened(ctx); err != nil {
					t.Fatal(err)
				}
				if tt.marked {
					if err := w.Marked(ctx); err != nil {
						t.Fatal(err)
					}
				}
				for range 3 {
					if tt.say == nil || ctx.Err() != nil {
						break
					}
					time.Sleep(time.Second)
					if err := tt.say(ctx, w); err != nil {
						t.Fatal(err)
					}
				}
				<-ctx.Done()
				complete := errors.Is(context.Cause(ctx), errComplete)
				if got := time.Since(begun); got != tt.want || complete != (tt.want != emptyTime) {
					t.Errorf("the watch ended after %v with %v, expected %v", got, context.Cause(ctx), tt.want)
				}
			})
		})
	}
}

func TestLinesTellALossOnce(t *testing.T) {
	var stderr bytes.Buffer
	l := &lines{address: "owner:1", stdout: io.Discard, stderr: &stderr, format: table}
	refused := func(port int) error {
		return &net.OpError{Op: "read", Source: &net.TCPAddr{Port: port}, Err: syscall.ECONNRESET}
	}
	for _, err := range []error{errors.New("one"), errors.New("one"), refused(1), refused(2), errors.New("one")} {
		l.Lost(t.Context(), err, false)
	}
	for range 2 {
		if err := l.Apply(t.Context(), federation.Event{Operation: federation.Alive}); err != nil {
			t.Fatal(err)
		}
	}
	l.Lost(t.Context(), errors.New("one"), false)
	want := `federationctl: owner owner:1: one; check ADDRESS, and that the owner is up; trying again
federationctl: owner owner:1: read :1: connection reset by peer; check ADDRESS, and that the owner is up; trying again
federationctl: connected to owner:1 again
federationctl: owner owner:1: one; trying again
`
	if diff := cmp.Diff(want, stderr.String()); diff != "" {
		t.Errorf("unexpected standard error (-want +got):\n%s", diff)
	}
}

type broken struct{ err error }

func (b broken) Write([]byte) (int, error) { return 0, b.err }

func TestWatchEndsWhenItCannotWrite(t *testing.T) {
	for _, tt := range []struct{ err, want error }{
		{&os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.EPIPE}, errUnread},
		{&os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.ENOSPC}, syscall.ENOSPC},
	} {
		ctx, finish := context.WithCancelCause(t.Context())
		w := &watcher{view: &lines{stdout: broken{tt.err}, stderr: io.Discard, format: table}, finish: finish}
		if err := w.Apply(ctx, federation.Event{Operation: federation.End}); !errors.Is(err, tt.err) {
			t.Errorf("the error is %v, expected %v", err, tt.err)
		}
		if cause := context.Cause(ctx); !errors.Is(cause, tt.want) {
			t.Errorf("the watch ended with %v, expected %v", cause, tt.want)
		}
	}
}

func TestTableShowsPeersSafely(t *testing.T) {
	var endpoints []federation.Endpoint
	for _, text := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.5"} {
		address, err := federation.ParseAddress(text)
		if err != nil {
			t.Fatal(err)
		}
		endpoints = append(endpoints, federation.Endpoint{Address: address, Port: 80})
	}
	fqdn, err := federation.ParseFQDN("a.example")
	if err != nil {
		t.Fatal(err)
	}
	got, err := table(federation.Event{Operation: federation.Upsert, Name: "\x1b[2J\n", Service: &federation.Service{
		FQDN:      fqdn,
		Endpoints: endpoints,
		Instances: []federation.Instance{{ID: "a,b", Protocol: federation.TCP}, {ID: strings.Repeat("x", 1000), Protocol: federation.TLS}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := `upsert  "\x1b[2J\n"           a.example                         "a,b"/TCP,` + federation.Quote(strings.Repeat("x", 1000)) +
		`/TLS  192.0.2.1:80,192.0.2.2:80,192.0.2.3:80,192.0.2.4:80,... (5)` + "\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("unexpected row (-want +got):\n%s", diff)
	}
}
