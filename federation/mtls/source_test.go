package mtls

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
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
		"good":                         {change: func(*Issued) {}},
		"text around the blocks":       {change: func(i *Issued) { i.CA = join([]byte("# ours\n"), i.CA, []byte("# end\n")) }},
		"chain":                        {change: func(i *Issued) { i.Cert = join(i.Cert, authority.PEM()) }},
		"key file with certificate":    {change: func(i *Issued) { i.Key = join(i.Cert, i.Key) }},
		"bundle of two":                {change: func(i *Issued) { i.CA = join(i.CA, newAuthority(t).PEM()) }},
		"bundle with an expired one":   {change: func(i *Issued) { i.CA = join(oldAuthority.PEM(), i.CA) }},
		"no certificate file":          {func(i *Issued) { i.Cert = nil }, "tls.crt", "certificate: stat "},
		"no key file":                  {func(i *Issued) { i.Key = nil }, "tls.key", "key: stat "},
		"no CA file":                   {func(i *Issued) { i.CA = nil }, "ca.crt", "CA bundle: stat "},
		"empty certificate file":       {func(i *Issued) { i.Cert = []byte{} }, "tls.crt", "holds no PEM certificate"},
		"key in its place":             {func(i *Issued) { i.Cert = i.Key }, "tls.crt", "holds no PEM certificate"},
		"half a certificate":           {func(i *Issued) { i.Cert = i.Cert[:len(i.Cert)/2] }, "tls.crt", "cut off or malformed"},
		"rubbish certificate":          {func(i *Issued) { i.Cert = broken }, "tls.crt", "x509: "},
		"expired certificate":          {func(i *Issued) { *i = expired }, "tls.crt", "expired at "},
		"expired certificate in chain": {func(i *Issued) { i.Cert = join(i.Cert, oldAuthority.PEM()) }, "tls.crt", "expired at "},
		"key of another":               {func(i *Issued) { i.Key = other.Key }, "tls.key", "private key does not match public key"},
		"empty key file":               {func(i *Issued) { i.Key = []byte{} }, "tls.key", "failed to find any PEM data"},
		"half a key":                   {func(i *Issued) { i.Key = i.Key[:len(i.Key)/2] }, "tls.key", "failed to find any PEM data"},
		"empty bundle":                 {func(i *Issued) { i.CA = []byte{} }, "ca.crt", "holds no PEM certificate"},
		"bundle of a key":              {func(i *Issued) { i.CA = i.Key }, "ca.crt", "holds no PEM certificate"},
		"half a bundle":                {func(i *Issued) { i.CA = join(i.CA, i.CA[:len(i.CA)/2]) }, "ca.crt", "cut off or malformed"},
		"rubbish in the bundle":        {func(i *Issued) { i.CA = join(i.CA, broken) }, "ca.crt", "x509: "},
		"expired bundle":               {func(i *Issued) { i.CA = oldAuthority.PEM() }, "ca.crt", "expired at "},
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

// What is not a regular file for a moment, or is too large, is reported like any broken
// file, and used when it is a good file again.
func TestReloadOfIrregularFile(t *testing.T) {
	authority := newAuthority(t)
	for name, put := range map[string]struct {
		instead func(path string) error
		want    string
	}{
		"FIFO":      {func(path string) error { return syscall.Mkfifo(path, 0o600) }, "is not a regular file"},
		"device":    {func(path string) error { return os.Symlink("/dev/zero", path) }, "is not a regular file"},
		"directory": {func(path string) error { return os.Mkdir(path, 0o700) }, "is not a regular file"},
		"too large": {func(path string) error { return os.WriteFile(path, make([]byte, MaxFile+1), 0o600) }, "is larger than allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			f := files(t.TempDir())
			must.Do(t, issue(t, authority, Leaf{}).WriteFiles(f))
			var logged bytes.Buffer
			source := must.Get(Load(f, slog.New(slog.NewTextHandler(&logged, nil))))(t)
			for _, path := range []string{f.Cert, f.Key, f.CA} {
				logged.Reset()
				changed := source.Changed()
				must.Do(t, os.Rename(path, path+".away"))
				must.Do(t, put.instead(path))
				source.Reload()
				if text := logged.String(); !strings.Contains(text, put.want) || !strings.Contains(text, path) {
					t.Errorf("%s is reported as %q, expected that it %s", path, text, put.want)
				}
				if _, err := Load(f, nil); err == nil || !strings.Contains(err.Error(), put.want) {
					t.Errorf("error of Load is %v, expected that %s %s", err, path, put.want)
				}
				must.Do(t, os.Remove(path))
				must.Do(t, issue(t, authority, Leaf{}).WriteFiles(f))
				source.Reload()
				select {
				case <-changed:
				default:
					t.Errorf("%s is a file again and is not used:\n%s", path, &logged)
				}
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
	if err := (Issued{}).WriteFiles(files(filepath.Join(t.TempDir(), "missing"))); err == nil {
		t.Error("no error for a missing directory")
	}
}

// The ways in which files are replaced in the field.
func TestRotation(t *testing.T) {
	authority := newAuthority(t)
	first := issue(t, authority, Leaf{DNSNames: []string{"first.example"}})
	second := issue(t, authority, Leaf{DNSNames: []string{"second.example"}})

	for name, tc := range map[string]struct {
		put, rotate func(t *testing.T, dir string)
	}{
		"rename over": {
			put:    func(t *testing.T, dir string) { writeFiles(t, first, dir) },
			rotate: func(t *testing.T, dir string) { writeFiles(t, second, dir) },
		},
		"write in place": {
			put: func(t *testing.T, dir string) { writeFiles(t, first, dir) },
			rotate: func(t *testing.T, dir string) {
				write(t, files(dir).Cert, second.Cert)
				write(t, files(dir).Key, second.Key)
			},
		},
		"remove and create": {
			put: func(t *testing.T, dir string) { writeFiles(t, first, dir) },
			rotate: func(t *testing.T, dir string) {
				for _, path := range []string{files(dir).Cert, files(dir).Key} {
					must.Do(t, os.Remove(path))
				}
				writeFiles(t, second, dir)
			},
		},
		"link swap of Kubernetes": {
			put: func(t *testing.T, dir string) {
				project(t, first, dir, "..1")
				for _, path := range []string{files(dir).Cert, files(dir).Key, files(dir).CA} {
					symlink(t, filepath.Join("..data", filepath.Base(path)), path)
				}
			},
			rotate: func(t *testing.T, dir string) {
				project(t, second, dir, "..2")
				must.Do(t, os.RemoveAll(filepath.Join(dir, "..1")))
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			tc.put(t, dir)
			source := must.Get(Load(files(dir), nil))(t)
			run(t, source)
			server := source.Server()
			if clientErr, serverErr := handshake(source.Client("first.example", nil), server); clientErr != nil || serverErr != nil {
				t.Fatalf("consumer got %v, owner got %v", clientErr, serverErr)
			}
			changed := source.Changed()
			tc.rotate(t, dir)
			await(t, changed)
			// The same credentials serve the new certificate.
			if clientErr, serverErr := handshake(source.Client("second.example", nil), server); clientErr != nil || serverErr != nil {
				t.Errorf("consumer got %v, owner got %v", clientErr, serverErr)
			}
		})
	}
}

// The authorities change while the peers have certificates of the old one, of
// the new one, and at last of the new one only.
func TestRotationOfAuthorities(t *testing.T) {
	oldCA, newCA := newAuthority(t), newAuthority(t)
	bundle := join(oldCA.PEM(), newCA.PEM())
	signed := func(a *Authority, ca []byte) Issued {
		issued := issue(t, a, Leaf{DNSNames: []string{"owner.example"}})
		issued.CA = ca
		return issued
	}
	dir := t.TempDir()
	writeFiles(t, signed(oldCA, oldCA.PEM()), dir)
	source := must.Get(Load(files(dir), nil))(t)
	run(t, source)
	client, server := source.Client("owner.example", nil), source.Server()
	oldPeer, newPeer := load(t, signed(oldCA, bundle)), load(t, signed(newCA, bundle))

	for _, step := range []struct {
		files        Issued
		oldOK, newOK bool
	}{
		{Issued{}, true, false},
		{signed(oldCA, bundle), true, true},
		{signed(newCA, bundle), true, true},
		{signed(newCA, newCA.PEM()), false, true},
	} {
		if step.files.CA != nil {
			writeFiles(t, step.files, dir)
			awaitFiles(t, source)
		}
		for _, peer := range []struct {
			source *Source
			ok     bool
		}{{oldPeer, step.oldOK}, {newPeer, step.newOK}} {
			if err, _ := handshake(client, peer.source.Server()); (err == nil) != peer.ok {
				t.Errorf("consumer got %v, want success %v", err, peer.ok)
			}
			if _, err := handshake(peer.source.Client("owner.example", nil), server); (err == nil) != peer.ok {
				t.Errorf("owner got %v, want success %v", err, peer.ok)
			}
		}
	}
}

// A file that is broken, or written bit by bit, changes nothing, is reported
// once, and its repair is taken up.
func TestBrokenFileKeepsTheOld(t *testing.T) {
	authority := newAuthority(t)
	dir := t.TempDir()
	first := issue(t, authority, Leaf{DNSNames: []string{"first.example"}})
	writeFiles(t, first, dir)
	lines := &testlog.Buffer{}
	source := must.Get(Load(files(dir), slog.New(slog.NewTextHandler(lines, nil))))(t)
	run(t, source)

	changed := source.Changed()
	for range 3 {
		cut(t, files(dir).Cert, first.Cert, 100)
		lines.Await("cut off or malformed")
		if clientErr, serverErr := handshake(source.Client("first.example", nil), source.Server()); clientErr != nil || serverErr != nil {
			t.Fatalf("consumer got %v, owner got %v", clientErr, serverErr)
		}
	}
	write(t, files(dir).Cert, nil)
	lines.Await("holds no PEM certificate")
	select {
	case <-changed:
		t.Fatal("broken files count as a change")
	default:
	}

	writeFiles(t, issue(t, authority, Leaf{DNSNames: []string{"second.example"}}), dir)
	await(t, changed)
	lines.Await("in order again")
	lines.Await("certificates changed")
	if clientErr, serverErr := handshake(source.Client("second.example", nil), source.Server()); clientErr != nil || serverErr != nil {
		t.Errorf("consumer got %v, owner got %v", clientErr, serverErr)
	}
	if n := lines.Count("cut off or malformed"); n != 1 {
		t.Errorf("the same trouble is logged %d times:\n%s", n, lines)
	}
}

// Reload reports a trouble once, and takes the same bytes for no change.
func TestReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		authority := newAuthority(t)
		dir := t.TempDir()
		writeFiles(t, issue(t, authority, Leaf{Lifetime: 3 * time.Hour}), dir)
		var log bytes.Buffer
		source := must.Get(Load(files(dir), slog.New(slog.NewTextHandler(&log, nil))))(t)
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
		writeFiles(t, issue(t, authority, Leaf{}), dir)
		source.Reload()
		if !closed(changed) || closed(source.Changed()) {
			t.Error("a change is not announced, or for ever")
		}
		if expiry, _ := source.Expiry(); time.Until(expiry) < 10*time.Hour {
			t.Errorf("new certificate expires at %v", expiry)
		}
	})
}

// A consumer and an owner of one process may share a source.
func TestSharedSourceIsFollowedUntilItsLastRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		authority := newAuthority(t)
		source := load(t, issue(t, authority, Leaf{}))
		events := make(chan fsnotify.Event)
		source.origin.watch = source.newWatch(source.origin.files, events)
		stops := []func(){run(t, source), run(t, source), run(t, source)}
		for i, stop := range stops {
			changed := source.Changed()
			must.Do(t, issue(t, authority, Leaf{}).WriteFiles(source.origin.files))
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

// await waits for a change that must come by an event: the poll is slower.
func await(t *testing.T, changed <-chan struct{}) {
	t.Helper()
	select {
	case <-changed:
	case <-time.After(pollInterval / 2):
		t.Fatal("no change seen")
	}
}

// awaitFiles waits until what the files hold is in use: they may be read in between, too,
// when some of them are new and some are old.
func awaitFiles(t *testing.T, source *Source) {
	t.Helper()
	for {
		changed := source.Changed()
		m := must.Get(source.origin.files.read(time.Now()))(t)
		if m.sum == source.material.Load().sum {
			return
		}
		await(t, changed)
	}
}

// project does what kubelet does: a new directory, then ..data points to it.
func project(t *testing.T, issued Issued, dir, version string) {
	t.Helper()
	must.Do(t, os.Mkdir(filepath.Join(dir, version), 0o755))
	writeFiles(t, issued, filepath.Join(dir, version))
	symlink(t, version, filepath.Join(dir, "..data_tmp"))
	must.Do(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
}

func symlink(t *testing.T, target, path string) {
	t.Helper()
	must.Do(t, os.Symlink(target, path))
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	must.Do(t, os.WriteFile(path, data, 0o600))
}

// cut writes what a file holds already, up to some size, in place: it holds nothing else
// at any time, as it would while os.WriteFile writes it.
func cut(t *testing.T, path string, data []byte, size int64) {
	t.Helper()
	f := must.Get(os.OpenFile(path, os.O_WRONLY, 0))(t)
	defer f.Close()
	must.Get(f.Write(data[:size]))(t)
	must.Do(t, f.Truncate(size))
}

func writeFiles(t *testing.T, issued Issued, dir string) {
	t.Helper()
	must.Do(t, issued.WriteFiles(files(dir)))
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
