package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// TestUnusableFiles begins with a certificate that cannot be used: its owner is answered from
// its file and is to be acted on, another owner is synced, and when the files are mended the
// owner is, too.
func TestUnusableFiles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestAgent(t)
		file := filepath.Join(t.TempDir(), "catalog")
		w.Owner(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
		w.Owner("other.example:8008", services.At("web.other.example", "192.0.2.2"))
		first := w.attach(w.block(1, w.kept(file)))
		time.Sleep(time.Minute)
		w.agent.Detach(first)

		w.start()
		other := w.owner("other.example:8008")
		other.Identity.Files = w.issue("consumer.example")
		must.Do(t, os.Remove(w.files.Cert))
		before := w.attempts()
		c := w.block(1, w.kept(file), other)
		c.Zone.Owners[1].Origins[0] = services.FQDN("other.example")
		b := w.attach(c)
		time.Sleep(20 * time.Minute)
		if own, foreign := look(b, "web.fed.example"), look(b, "web.other.example"); own != "192.0.2.1 30 stale" || foreign != "192.0.2.2 60" {
			t.Errorf("web is %s, that of the other owner %s", own, foreign)
		}
		if n := w.attempts() - before; n > 25 {
			t.Errorf("%d attempts in 20 minutes", n)
		}
		all := w.agent.OwnerReports(time.Now()) // by their names
		if v := all[0].Judge(time.Now(), status.Consumer); v.Level != status.Well {
			t.Errorf("the other owner: %+v", v)
		}
		u := all[1]
		if v := u.Judge(time.Now(), status.Consumer); v.Level != status.Act || u.Failure == "" || u.Failure != u.CertificateError || !strings.Contains(u.Remedy, w.files.Cert) {
			t.Errorf("the owner is %v: %+v; there is no stream because of %q, and to do is %q", v.Level, v.Findings, u.Failure, u.Remedy)
		}
		w.rotate()
		time.Sleep(time.Second)
		if got := look(b, "web.fed.example"); got != "192.0.2.1 60" {
			t.Errorf("web is %s when the files are mended", got)
		}
	})
}

// TestReloadWithUnusableFiles is taken: the owner goes on with what it holds of the same
// files, and with others it is lost until they are mended.
func TestReloadWithUnusableFiles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestAgent(t)
		w.Owner(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
		before := w.attach(w.block(1, w.owner(ownerAddress)))
		time.Sleep(time.Minute)
		must.Do(t, os.WriteFile(w.files.Key, []byte("rubbish"), 0o600))
		c := w.owner(ownerAddress)
		c.Subscription.Addresses = append(c.Subscription.Addresses, "other.example:8008") // another subscription
		after := w.attach(w.block(2, c))
		w.agent.Detach(before)
		time.Sleep(time.Minute)
		if got := look(after, "web.fed.example"); got != "192.0.2.1 60" || w.state() != "synced 1/0" {
			t.Errorf("with the files of before web is %s, owner is %s", got, w.state())
		}

		good := w.issue("consumer.example")
		c.Identity.Files = mtls.Files{Cert: filepath.Join(t.TempDir(), "late.pem"), Key: good.Key, CA: good.CA}
		last := w.attach(w.block(3, c))
		w.agent.Detach(after)
		time.Sleep(time.Minute)
		if got := look(last, "web.fed.example"); got != "192.0.2.1 30 stale" || w.state() != "stale 1/1" {
			t.Errorf("with a file that is missing web is %s, owner is %s", got, w.state())
		}
		w.files = c.Identity.Files
		w.rotate()
		time.Sleep(time.Second)
		if got := look(last, "web.fed.example"); got != "192.0.2.1 60" {
			t.Errorf("web is %s when the file is there", got)
		}
	})
}
