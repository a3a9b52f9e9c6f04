package main

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/spiffeagent"
)

// agentFor serves an agent on a socket, which issues that identity and trusts a federated
// domain. It returns the address of the socket.
func agentFor(t *testing.T, own *mtls.Authority, id, domain string, federated *mtls.Authority) string {
	t.Helper()
	issued := must.Get(own.Issue(mtls.Leaf{URIs: []string{id}}))(t)
	var agent spiffeagent.Agent
	agent.Issue(map[string][]byte{domain: federated.PEM()}, spiffeagent.SVID{ID: id, Cert: issued.Cert, Key: issued.Key, Bundle: issued.CA})
	path := filepath.Join(t.TempDir(), "agent.sock")
	listener := must.Get(new(net.ListenConfig).Listen(t.Context(), "unix", path))(t)
	t.Cleanup(agent.Serve(listener))
	return "unix://" + path
}

// An owner and a consumer of two federated trust domains have their identities from
// agents; a consumer whose domain the owner does not name is not let in.
func TestSPIFFE(t *testing.T) {
	authority := func() *mtls.Authority {
		return must.Get(mtls.NewAuthority("test", 24*time.Hour))(t)
	}
	one, two := authority(), authority()
	const owner, consumer = "spiffe://one.example/owner", "spiffe://two.example/consumer"
	owners, consumers := agentFor(t, one, owner, "two.example", two), agentFor(t, two, consumer, "one.example", one)
	catalog := write(t, filepath.Join(t.TempDir(), "catalog.yaml"), catalogText)
	serving := func(flags ...string) (address string) {
		r := background(t, append([]string{"serve", "--listen", "127.0.0.1:0", "--catalog", catalog, "--spiffe", owners}, admitting(flags)...)...)
		address, ok := strings.CutPrefix(r.line(), "serving 2 services on ")
		if !ok {
			t.Fatal("serve does not serve two services")
		}
		return address
	}
	address := serving("--trust-domain", "two.example", "--allow-id", consumer)
	watch := []string{"watch", "--once", "-o", "json", "--spiffe", consumers, "--trust-domain", "one.example"}
	// An owner may be waiting for its agent still.
	eventually(t, func() string {
		code, stdout, stderr := ctl(t, append(watch, "--owner-id", owner, address)...)
		if diff := cmp.Diff(wantJSON, stdout); code != 0 || diff != "" {
			return fmt.Sprintf("exit code %d, standard error %q, unexpected output (-want +got):\n%s", code, stderr, diff)
		}
		return ""
	})
	code, _, stderr := ctl(t, append(watch, "--owner-id", "spiffe://one.example/another", address)...)
	if code != 1 || !strings.Contains(stderr, `certificate is for "spiffe://one.example/owner", not for [spiffe://one.example/another]`) {
		t.Errorf("another owner: exit code %d, standard error %q", code, stderr)
	}
	address = serving()
	eventually(t, func() string {
		code, _, stderr := ctl(t, append(watch, "--owner-id", owner, address)...)
		if code != 1 || !strings.Contains(stderr, "bad certificate") {
			return fmt.Sprintf("without the trust domain: exit code %d, standard error %q", code, stderr)
		}
		return ""
	})
}
