package mtls

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

func TestLoad(t *testing.T) {
	authority := newAuthority(t)
	good := issue(t, authority, Leaf{DNSNames: []string{"a.example"}})
	other := issue(t, authority, Leaf{DNSNames: []string{"b.example"}})
	expired := issue(t, authority, Leaf{Lifetime: time.Minute})
	oldAuthority := must.Get(NewAuthority("old", time.Minute))(t)
	broken := pem.EncodeToMemory(&pem.Block{Type: blockCertificate, Bytes: []byte("rubbish")})

	for name, tc := range map[string]struct {
		change func(*Issued)
		file   string // that the error names
		want   string // "": none
	}{
		"good":                       {change: func(*Issued) {}},
		"text around the blocks":     {change: func(i *Issued) { i.CA = join([]byte("# ours\n"), i.CA, []byte("# end\n")) }},
		"chain":                      {change: func(i *Issued) { i.Cert = join(i.Cert, authority.PEM()) }},
		"key file with certificate":  {change: func(i *Issued) { i.Key = join(i.Cert, i.Key) }},
		"bundle of two":              {change: func(i *Issued) { i.CA = join(i.CA, newAuthority(t).PEM()) }},
		"bundle with an expired one": {change: func(i *Issued) { i.CA = join(oldAuthority.PEM(), i.CA) }},
		"no certificate file":        {func(i *Issued) { i.Cert = nil }, "tls.crt", "certificate: stat "},
		"key in its place":           {func(i *Issued) { i.Cert = i.Key }, "tls.crt", "holds no PEM certificate"},
		"half a certificate":         {func(i *Issued) { i.Cert = i.Cert[:len(i.Cert)/2] }, "tls.crt", "cut off or malformed"},
		"rubbish certificate":        {func(i *Issued) { i.Cert = broken }, "tls.crt", "x509: "},
		"expired certificate":        {func(i *Issued) { *i = expired }, "tls.crt", "expired at "},
		"key of another":             {func(i *Issued) { i.Key = other.Key }, "tls.key", "private key does not match public key"},
		"half a key":                 {func(i *Issued) { i.Key = i.Key[:len(i.Key)/2] }, "tls.key", "failed to find any PEM data"},
		"half a bundle":              {func(i *Issued) { i.CA = join(i.CA, i.CA[:len(i.CA)/2]) }, "ca.crt", "cut off or malformed"},
		"expired bundle":             {func(i *Issued) { i.CA = oldAuthority.PEM() }, "ca.crt", "expired at "},
	} {
		t.Run(name, func(t *testing.T) {
			issued := good
			tc.change(&issued)
			f := files(t.TempDir())
			for path, data := range map[string][]byte{f.Cert: issued.Cert, f.Key: issued.Key, f.CA: issued.CA} {
				if data != nil {
					write(t, path, data)
				}
			}
			source, err := Load(f, nil)
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if source != nil || err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), tc.file) {
				t.Errorf("error is %v, want one about %s: %q", err, tc.file, tc.want)
			}
		})
	}
}

// The content of a file is not repeated in errors as it is.
func TestLoadShowsNothingRaw(t *testing.T) {
	f := files(t.TempDir())
	issued := issue(t, newAuthority(t), Leaf{})
	issued.Key = bytes.Repeat(pem.EncodeToMemory(&pem.Block{Type: "\x1b[31m\u009b", Bytes: []byte("a")}), 1000)
	must.Do(t, issued.WriteFiles(f))
	_, err := Load(f, nil)
	if err == nil || strings.ContainsAny(err.Error(), "\x1b\u009b\n") || len(err.Error()) > 1000 {
		t.Errorf("error is %.2000q", err)
	}
}

func TestExpiryOfAuthorities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		long := newAuthority(t)
		short := must.Get(NewAuthority("short", 2*time.Hour))(t)
		issued := issue(t, long, Leaf{})
		issued.CA = join(long.PEM(), short.PEM())
		source := load(t, issued)
		for _, tc := range []struct{ after, want time.Duration }{
			{0, time.Hour},
			{2 * time.Hour, 23 * time.Hour},
			{24 * time.Hour, 23 * time.Hour},
		} {
			time.Sleep(time.Until(start.Add(tc.after)))
			if _, ca := source.Expiry(); !ca.Equal(start.Add(tc.want)) {
				t.Errorf("after %v: %v, want %v", tc.after, ca.Sub(start), tc.want)
			}
		}
	})
}

func TestFileModes(t *testing.T) {
	f := files(t.TempDir())
	must.Do(t, issue(t, newAuthority(t), Leaf{}).WriteFiles(f))
	for path, want := range map[string]os.FileMode{f.Cert: 0o644, f.Key: 0o600, f.CA: 0o644} {
		info := must.Get(os.Stat(path))(t)
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode(), want)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(f.Cert)); err != nil || len(left) != 3 {
		t.Errorf("directory holds %v, %v", left, err)
	}
}

// Reload reports a trouble once, and takes the same bytes for no change.
func TestReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		authority := newAuthority(t)
		f := files(t.TempDir())
		must.Do(t, issue(t, authority, Leaf{Lifetime: 3 * time.Hour}).WriteFiles(f))
		var log bytes.Buffer
		source := must.Get(Load(f, slog.New(slog.NewTextHandler(&log, nil))))(t)
		changed := source.Changed()
		for range 10 {
			source.Reload()
		}
		if log.Len() > 0 || closed(changed) {
			t.Errorf("the same files are a change:\n%s", &log)
		}
		time.Sleep(3 * time.Hour)
		for range 10 {
			source.Reload()
		}
		if n := strings.Count(log.String(), "expired at"); n != 1 || closed(changed) {
			t.Errorf("an expired certificate is logged %d times:\n%s", n, &log)
		}
		must.Do(t, issue(t, authority, Leaf{}).WriteFiles(f))
		source.Reload()
		if !closed(changed) || closed(source.Changed()) {
			t.Error("a change is not announced, or for ever")
		}
		if expiry, _ := source.Expiry(); time.Until(expiry) < 10*time.Hour {
			t.Errorf("new certificate expires at %v", expiry)
		}
	})
}

// TestRotation replaces the files while several Runs follow them, as a consumer and an owner of one
// process may share a Source: until the last of them ends, the next handshake has the new certificate. The
// ways in which files are replaced are tested in package file.
func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		authority := newAuthority(t)
		source := load(t, issue(t, authority, Leaf{}))
		events := make(chan fsnotify.Event)
		source.origin.watch = source.newWatch(source.origin.files, events)
		server := source.Server()
		stops := []func(){run(t, source), run(t, source), run(t, source)}
		for i, stop := range stops {
			name := fmt.Sprintf("owner%d.example", i)
			changed := source.Changed()
			must.Do(t, issue(t, authority, Leaf{DNSNames: []string{name}}).WriteFiles(source.origin.files))
			if i%2 == 0 {
				events <- fsnotify.Event{Name: source.origin.files.Cert}
				time.Sleep(burst)
			} else {
				time.Sleep(pollInterval + burst)
			}
			synctest.Wait()
			if !closed(changed) {
				t.Errorf("after the end of %d of its %d Runs the files are not followed", i, len(stops))
			}
			if clientErr, serverErr := handshake(source.Client(name, nil), server); clientErr != nil || serverErr != nil {
				t.Errorf("consumer got %v, owner got %v", clientErr, serverErr)
			}
			stop()
		}
	})
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// run runs the source until the test ends, or stop is called.
func run(t *testing.T, source *Source) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := source.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(stop)
	return stop
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	must.Do(t, os.WriteFile(path, data, 0o600))
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func TestForClients(t *testing.T) {
	authority := newAuthority(t)
	for _, tt := range []struct {
		usage []x509.ExtKeyUsage
		want  bool
	}{
		{nil, true}, // both
		{[]x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, true},
		{[]x509.ExtKeyUsage{x509.ExtKeyUsageAny}, true},
		{[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageCodeSigning}, false},
	} {
		f := files(t.TempDir())
		must.Do(t, issue(t, authority, Leaf{Usage: tt.usage}).WriteFiles(f))
		s := must.Get(Load(f, nil))(t)
		if got := s.ForClients(); got != tt.want {
			t.Errorf("with the usages %v ForClients is %t, expected %t", tt.usage, got, tt.want)
		}
	}
	if agent, err := Open(Origin{SPIFFE: SPIFFE{Socket: "unix:///nobody"}}, nil); err != nil || !agent.ForClients() {
		t.Errorf("before there is a certificate ForClients is false, or Open returned %v", err)
	}
}
