package mtls

import (
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
)

// TestOpenUnusableFiles has no certificate at first: handshakes fail for the reason that the
// log has once, with its remedy, and succeed when the files are mended.
func TestOpenUnusableFiles(t *testing.T) {
	authority := newAuthority(t)
	good := issue(t, authority, Leaf{DNSNames: []string{"a.example"}})
	other := issue(t, authority, Leaf{DNSNames: []string{"a.example"}})
	peer := load(t, other)
	for name, tc := range map[string]struct {
		damage       func(t *testing.T, f Files)
		want, remedy string
	}{
		"missing":    {func(t *testing.T, f Files) { must.Do(t, os.Remove(f.Cert)) }, "certificate: stat ", "put CERT in its place, or correct the path"},
		"no file":    {func(t *testing.T, f Files) { must.Do(t, os.Remove(f.Key)); must.Do(t, os.Mkdir(f.Key, 0o700)) }, "is not a regular file", "replace KEY by a PEM file"},
		"not PEM":    {func(t *testing.T, f Files) { write(t, f.Cert, []byte("rubbish")) }, "holds no PEM certificate", "replace CERT by a whole PEM file with certificates"},
		"other key":  {func(t *testing.T, f Files) { write(t, f.Key, other.Key) }, "private key does not match", "replace KEY by the key that CERT was issued for"},
		"expired":    {func(t *testing.T, f Files) { write(t, f.Cert, issue(t, authority, Leaf{Lifetime: time.Minute}).Cert) }, "expired at ", "renew CERT"},
		"damaged CA": {func(t *testing.T, f Files) { write(t, f.CA, good.CA[:len(good.CA)/2]) }, "cut off or malformed", "replace CA by a whole PEM file with certificates"},
	} {
		t.Run(name, func(t *testing.T) {
			f := files(t.TempDir())
			must.Do(t, good.WriteFiles(f))
			tc.damage(t, f)
			lines := &testlog.Buffer{}
			s := must.Get(Open(Origin{Files: f}, slog.New(slog.NewTextHandler(lines, nil))))(t)
			missing := s.Missing()
			if missing == nil || !strings.Contains(missing.Error(), tc.want) || s.Trouble() != missing { //nolint:errorlint // it is the same one
				t.Fatalf("missing is %v, trouble %v, expected %q", missing, s.Trouble(), tc.want)
			}
			remedied, ok := errors.AsType[interface {
				error
				Remedy() string
			}](missing)
			want := strings.NewReplacer("CERT", f.Cert, "KEY", f.Key, "CA", f.CA).Replace(tc.remedy) + "; the files are read again by themselves"
			if !ok || remedied.Remedy() != want {
				t.Errorf("remedy is %q, expected %q", remedied.Remedy(), want)
			}
			if own, ca := s.Expiry(); !own.IsZero() || !ca.IsZero() {
				t.Errorf("what is missing expires at %v and %v", own, ca)
			}
			if err, _ := handshake(s.Client("a.example", nil), peer.Server()); err == nil || err.Error() != missing.Error() {
				t.Errorf("a handshake as a consumer ends with %v", err)
			}
			if _, err := handshake(peer.Client("a.example", nil), s.Server()); err == nil || err.Error() != missing.Error() {
				t.Errorf("a handshake as an owner ends with %v", err)
			}
			if _, err := s.ServerConfig().GetConfigForClient(nil); err == nil || err.Error() != missing.Error() {
				t.Errorf("a handshake of HTTPS ends with %v", err)
			}

			changed := s.Changed()
			s.Reload()
			s.Reload()
			must.Do(t, os.RemoveAll(f.Key))
			must.Do(t, good.WriteFiles(f))
			s.Reload()
			if s.Missing() != nil || s.Trouble() != nil || !closed(changed) {
				t.Errorf("mended files are missing: %v, %v, or that is not announced", s.Missing(), s.Trouble())
			}
			if clientErr, serverErr := handshake(s.Client("a.example", nil), peer.Server()); clientErr != nil || serverErr != nil {
				t.Errorf("consumer got %v, owner got %v", clientErr, serverErr)
			}
			if lines.Count(tc.want) != 1 || lines.Count("in order again") != 1 {
				t.Errorf("the trouble and its end are not logged once each:\n%s", lines)
			}
		})
	}
}

// TestTroubleOfReload has trouble with what the files hold later: what is held stays in use.
func TestTroubleOfReload(t *testing.T) {
	authority := newAuthority(t)
	f := files(t.TempDir())
	good := issue(t, authority, Leaf{})
	must.Do(t, good.WriteFiles(f))
	s := must.Get(Load(f, nil))(t)
	changed := s.Changed()
	write(t, f.Key, []byte("rubbish"))
	s.Reload()
	if s.Missing() != nil || s.Trouble() == nil || !strings.Contains(s.Trouble().Error(), f.Key) || closed(changed) {
		t.Errorf("missing is %v, trouble %v, changed %v", s.Missing(), s.Trouble(), closed(changed))
	}
	must.Do(t, good.WriteFiles(f))
	s.Reload()
	if s.Trouble() != nil || closed(changed) {
		t.Errorf("trouble with the files of before is %v, changed %v", s.Trouble(), closed(changed))
	}
}

// TestNotYetValid has a certificate become valid, while nothing changes in its directory.
func TestNotYetValid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, began := files(t.TempDir()), time.Now()
		time.Sleep(24 * time.Hour)
		must.Do(t, issue(t, newAuthority(t), Leaf{}).WriteFiles(f))
		_, err := f.readMaterial(began)
		if file, ok := errors.AsType[*fileError](err); !ok || !strings.HasPrefix(file.Remedy(), "correct the clock of this machine, or have "+f.Cert+" issued anew") {
			t.Errorf("error is %v", err)
		}
		if _, err := f.readMaterial(time.Now()); err != nil {
			t.Errorf("a day later the error is %v", err)
		}
	})
}
