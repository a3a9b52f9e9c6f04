package agent_test

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// Without a certificate from its SPIFFE agent, an owner is one that cannot be reached:
// nothing waits for it. Owners and reloads share what the agent sends.
func TestSPIFFEAgentIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestAgent(t)
		w.Owner("files.example:8008", services.At("web.fed.example", "192.0.2.1"))
		id := must.Get(federation.ParseID("spiffe://owner.example/hamlet"))(t)
		c := w.owner(ownerAddress)
		c.Identity = mtls.Origin{SPIFFE: mtls.SPIFFE{Socket: "unix://" + filepath.Join(t.TempDir(), "agent.sock")}}
		c.Consumer.IDs = []federation.ID{id}
		other := c
		other.Name, other.Subscription.Addresses = "other", []string{"other.example:8008"} // with the same identity
		start := time.Now()
		block := w.block(1, w.owner("files.example:8008"), c, other)
		block.Zone.Owners[1].Origins[0] = services.FQDN("a.example")
		block.Zone.Owners[2].Origins[0] = services.FQDN("b.example")
		before := w.attach(block)
		if time.Since(start) > 0 || before.Ready() {
			t.Errorf("the start took %v, ready is %v", time.Since(start), before.Ready())
		}
		time.Sleep(10 * time.Second)
		if own, foreign := look(before, "web.fed.example"), look(before, "web.a.example"); own != "192.0.2.1 60" || foreign != "SERVFAIL" {
			t.Errorf("the name of another owner is %s, that of this one %s", own, foreign)
		}
		for _, s := range w.agent.OwnerReports(time.Now()) {
			if spiffe := s.CertificateFile == s.AuthorityFile; spiffe != s.Certificate.IsZero() || spiffe != s.Authority.IsZero() {
				t.Errorf("the certificates of %s expire at %v and %v", s.ID, s.Certificate, s.Authority)
			} else if spiffe && (s.State != "connecting" || s.Failure == "") {
				t.Errorf("owner %s is %s: %v", s.ID, s.State, s.Failure)
			}
		}
		time.Sleep(30 * time.Second)
		if !before.Ready() {
			t.Error("not ready after the time that an owner has")
		}

		c.Subscription.Addresses = append(c.Subscription.Addresses, "second.example:8008") // another subscription
		block = w.block(2, w.owner("files.example:8008"), c, other)
		w.attach(block)
		w.agent.Detach(before)
		time.Sleep(time.Second)
		if n := w.distinctSources(); n != 2 {
			t.Errorf("%d sources of certificates are followed, want 2", n)
		}

		// Another bundle to accept is another source.
		other.Name, other.Identity.SPIFFE.TrustDomains = "partner", []string{"partner.example"}
		w.attach(w.block(2, other))
		time.Sleep(time.Second)
		if n := w.distinctSources(); n != 3 {
			t.Errorf("%d sources of certificates are followed, want 3", n)
		}
	})
}

// distinctSources returns how many sources of certificates are followed.
func (w *testAgent) distinctSources() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	distinct := make(map[*mtls.Source]bool)
	for _, s := range w.sources {
		distinct[s] = true
	}
	return len(distinct)
}
