package watch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/test/bufconn"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/faultowner"
)

// transcript is what a watch writes, and when.
type transcript struct {
	began time.Time // zero: times are left out

	mu   sync.Mutex
	text strings.Builder
}

func newTranscript() *transcript { return &transcript{began: time.Now()} }

// writer returns a writer that adds its lines to the transcript, with the time since
// it began and a name.
func (s *transcript) writer(name string) io.Writer { return transcriptWriter{s, name} }

type transcriptWriter struct {
	*transcript

	name string
}

func (w transcriptWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.began.IsZero() {
		fmt.Fprintf(&w.text, "%v ", time.Since(w.began))
	}
	fmt.Fprintf(&w.text, "%s: %s", w.name, p)
	return len(p), nil
}

func (s *transcript) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// identity is an mtls.Consumer that does not follow its files: a bubble must not wait
// for the file system.
type identity struct{ mtls.Consumer }

func (identity) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// scripted runs an owner that follows a script (package faultowner) on a network in
// memory until the test ends. It returns what mirrors the owner, as watch does. It
// must be called in a bubble.
func scripted(t *testing.T, script string) consumer.Config {
	t.Helper()
	steps := must.Get(faultowner.Parse(script))(t)
	authority := must.Get(mtls.NewAuthority("test", 24*time.Hour))(t)
	source := func(name string) *mtls.Source {
		dir := t.TempDir()
		files := mtls.Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), CA: filepath.Join(dir, "ca.crt")}
		issued := must.Get(authority.Issue(mtls.Leaf{Name: name, DNSNames: []string{name}}))(t)
		must.Do(t, issued.WriteFiles(files))
		return must.Get(mtls.Load(files, nil))(t)
	}
	listener := bufconn.Listen(256 << 10)
	owner := faultowner.New(faultowner.Config{Script: steps, Credentials: source("owner.example").Server()})
	ctx, cancel := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := owner.Serve(ctx, listener); err != nil {
			t.Errorf("the owner ended with %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		serving.Wait()
	})
	return consumer.Config{
		Subscription: consumer.Subscription{
			Addresses: []string{"owner.example:8008"},
			Identity:  identity{mtls.Consumer{Source: source("consumer.example")}},
			Dial:      func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) },
		},
		Rules: catalog.Rules{Settle: SettleTime, Admit: wire.AddressPolicy{}.Check},
	}
}

// newWatcher returns one that writes a short line for each change to the transcript.
func newWatcher(s *transcript, once bool) *Watch {
	output := newLines("owner.example:8008", s.writer("out"), s.writer("err"))
	output.format = func(e lineEntry) (string, error) {
		return strings.TrimSpace(e.Operation.String()+" "+e.Name) + "\n", nil
	}
	return &Watch{config: Config{Address: output.address, Once: once}, view: output}
}

// TestWatchOnce shows when a watch ends: once the catalog is complete. No heartbeat comes at
// that very moment: one that has arrived and is not read yet breaks the silence.
func TestWatchOnce(t *testing.T) {
	const (
		unknown = "owner owner.example:8008: neither a service nor the end of the catalog came within 30s, so the catalog is empty or not loaded yet; " +
			"check that the owner has loaded its services"
		refusal = "federationctl: refused: service \"b\": endpoints[0].address: 127.0.0.1: " +
			"consumers refuse loopback addresses unless their allow_addresses has them\n"
	)
	for _, tt := range []struct {
		name, script string
		want         string // what is written, and when
		err          string
	}{
		{"nothing", "hang", "", unknown},
		{"end announced and not sent", "announce\nheader", "", unknown},
		{"refused service", "upsert b b.fed.example 127.0.0.1\nheartbeats 900ms", "0s err: " + refusal, unknown},
		{"deletion, then heartbeats", "delete a\nheartbeats 900ms", "5s out: end\n", ""},
		{
			"end announced and sent late",
			"announce\nupsert a a.fed.example 192.0.2.1\nwait 1h\nend", "0s out: upsert a\n1h0m0s out: end\n", "",
		},
		{
			"stream that breaks", "upsert a a.fed.example 192.0.2.1\nstatus Internal", "0s out: upsert a\n",
			`owner owner.example:8008: Internal: as the script says`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				config := scripted(t, tt.script)
				watched := newTranscript()
				err := newWatcher(watched, true).mirrorOwner(t.Context(), config)
				if got := fmt.Sprint(err); got != tt.err && (err != nil || tt.err != "") {
					t.Errorf("the watch ended with %v, expected %q", err, tt.err)
				}
				if diff := cmp.Diff(tt.want, watched.String()); diff != "" {
					t.Errorf("unexpected output (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestWatchShowsDifferences has an owner that announces services again, and that is
// lost and comes back, once with nothing but a heartbeat: only what has changed gets a
// line, and the catalog is complete once more.
func TestWatchShowsDifferences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := scripted(t, `
			upsert a a.fed.example 192.0.2.1
			upsert b b.fed.example 192.0.2.1
			upsert c c.fed.example 192.0.2.1
			upsert a a.fed.example 192.0.2.1
			delete unknown
			wait 6s
			upsert a a.fed.example 192.0.2.1
			delete c
			status Internal
			---
			end
			wait 20s
			status Internal
			---
			announce
			upsert a a.fed.example 192.0.2.1
			upsert c c.fed.example 192.0.2.2
			end
			end`)
		written := &transcript{} // attempts have random delays
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		if err := newWatcher(written, false).mirrorOwner(ctx, config); err != nil {
			t.Errorf("the watch ended with %v", err)
		}
		want := `out: upsert a
out: upsert b
out: upsert c
out: end
out: delete c
err: federationctl: owner owner.example:8008: Internal: as the script says; trying again
err: federationctl: connected to owner.example:8008 again
out: upsert c
out: delete b
out: end
`
		if diff := cmp.Diff(want, written.String()); diff != "" {
			t.Errorf("unexpected output (-want +got):\n%s", diff)
		}
	})
}

// TestLossIsReportedOnce has losses one after the other: only the first says what to do.
func TestLossIsReportedOnce(t *testing.T) {
	var stderr bytes.Buffer
	l := newLines("owner:1", io.Discard, &stderr)
	lost := func(text string) {
		t.Helper()
		must.Do(t, l.printChanges(consumer.Changes{Status: consumer.Status{Failure: failure(text)}}))
	}
	lost("one")
	lost("two")
	l.noteResponse()
	l.noteResponse()
	lost("one")
	want := `federationctl: owner owner:1: one; do it; trying again
federationctl: connected to owner:1 again
federationctl: owner owner:1: one; trying again
`
	if diff := cmp.Diff(want, stderr.String()); diff != "" {
		t.Errorf("unexpected standard error (-want +got):\n%s", diff)
	}
}

// failure is an error that says what to do.
type failure string

func (f failure) Error() string { return string(f) }
func (failure) Remedy() string  { return "do it" }

type broken struct{ err error }

func (b broken) Write([]byte) (int, error) { return 0, b.err }

func TestWatchEndsWhenItCannotWrite(t *testing.T) {
	for _, tt := range []struct{ err, want error }{
		{&os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.EPIPE}, nil},
		{&os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.ENOSPC}, syscall.ENOSPC},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWatcher(newTranscript(), false)
			w.view = newLines("owner.example:8008", broken{tt.err}, io.Discard)
			if err := w.mirrorOwner(t.Context(), scripted(t, "upsert a a.fed.example 192.0.2.1")); !errors.Is(err, tt.want) {
				t.Errorf("after %v the watch ended with %v, expected %v", tt.err, err, tt.want)
			}
		})
	}
}

// TestRefusalsAreBounded has an owner that sends one refused service after the other.
func TestRefusalsAreBounded(t *testing.T) {
	var stderr bytes.Buffer
	w := &Watch{view: newLines("owner:1", io.Discard, &stderr)}
	for range 2 * maxRefusals {
		w.Refused(&federation.InvalidError{Rule: "bad"})
	}
	want := strings.Repeat("federationctl: refused: bad\n", maxRefusals) + "federationctl: refused: more services, which are not named\n"
	if diff := cmp.Diff(want, stderr.String()); diff != "" {
		t.Errorf("unexpected standard error (-want +got):\n%s", diff)
	}
}

// TestTableIsBounded has more endpoints, and a longer ID, than a row has room for.
func TestTableIsBounded(t *testing.T) {
	endpoint := federation.Endpoint{Address: must.Get(federation.ParseAddress("192.0.2.1"))(t), Port: 80}
	got := must.Get(tableLine(lineEntry{Event: wire.Event{Operation: wire.Upsert, Name: "\x1b[2J\n", Service: &federation.Service{
		FQDN:      must.Get(federation.ParseFQDN("a.example"))(t),
		Endpoints: slices.Repeat([]federation.Endpoint{endpoint}, 5),
		Instances: []federation.Instance{{ID: "a,b", Protocol: federation.TCP}, {ID: strings.Repeat("x", 1000), Protocol: federation.TLS}},
	}}}))(t)
	want := `upsert  "\x1b[2J\n"           a.example                         "a,b"/TCP,` + safetext.Quote(strings.Repeat("x", 1000)) +
		`/TLS  192.0.2.1:80,192.0.2.1:80,192.0.2.1:80,192.0.2.1:80,... (5)` + "\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("unexpected row (-want +got):\n%s", diff)
	}
}

// TestEnd shows through how many owners a catalog has come, and whether it was resumed.
func TestEnd(t *testing.T) {
	for _, tc := range []struct {
		hops        int
		resumed     bool
		table, json string
	}{
		{0, false, "end     (the catalog is complete)", `{"op":"end"}`},
		{1, false, "end     (the catalog is complete)", `{"op":"end"}`},
		{3, false, "end     (the catalog is complete, and comes through 3 owners)", `{"op":"end","hops":3}`},
		{2, true, "end     (the catalog is complete, resumed, and comes through 2 owners)", `{"op":"end","hops":2,"resumed":true}`},
	} {
		e := lineEntry{Event: wire.Event{Operation: wire.End}, hops: tc.hops, resumed: tc.resumed}
		row, err := tableLine(e)
		object, err2 := jsonLine(e)
		if err != nil || err2 != nil || row != tc.table+"\n" || object != tc.json+"\n" {
			t.Errorf("%d owners, resumed %v: %s%s%v %v", tc.hops, tc.resumed, row, object, err, err2)
		}
	}
}
