package test

import (
	"fmt"
	"html"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestRemediesFollowTheCause has one owner for each cause of a handshake that fails. Status, why,
// page and log say what to do about that cause, and name the file.
func TestRemediesFollowTheCause(t *testing.T) {
	t.Parallel()
	p, other := newPKI(t), newPKI(t)
	foreign := other.consumer
	foreign.CA = p.consumer.CA
	expiring := mtls.Files{Cert: filepath.Join(p.dir, "short.pem"), Key: filepath.Join(p.dir, "short-key.pem"), CA: p.consumer.CA}
	end := time.Now().Add(20 * time.Second) // a process starts sooner
	issued := must.Get(p.authority.Issue(mtls.Leaf{Name: "short", DNSNames: []string{"short.example"}, Lifetime: time.Hour + time.Until(end)}))(t)
	must.Do(t, issued.WriteFiles(expiring))
	good := startOwner(t, p.owner, "").address
	unknown := startOwner(t, mtls.Files{Cert: other.owner.Cert, Key: other.owner.Key, CA: p.owner.CA}, "").address
	elsewhere := p.issue(t, "elsewhere", mtls.Leaf{Name: "elsewhere", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
	closing := startOwner(t, p.owner, "")

	cases := []struct{ name, owner, tls, more, reason, remedy string }{
		{"authority", unknown, p.tls(), "", "unknown authority", "add the CA of the owner to " + p.consumer.CA + ", if you know it"},
		{"identity", good, p.tls(), "owner_id spiffe://other.example/hamlet", "certificate is for", "correct owner_id, or the address"},
		{"host", startOwner(t, elsewhere, "").address, p.tls(), "", "certificate is for", "set tls_servername or owner_id to a name that the owner's certificate has"},
		{"foreign", good, fmt.Sprintf("tls %s %s %s", foreign.Cert, foreign.Key, foreign.CA), "", "unknown certificate authority", "have the owner add the CA that has signed " + foreign.Cert},
		{"expired", closing.address, fmt.Sprintf("tls %s %s %s", expiring.Cert, expiring.Key, expiring.CA), "", "expired certificate", "renew " + expiring.Cert + ", expired at 20"},
	}
	page := freeAddress(t)
	var corefile strings.Builder
	for i, tc := range cases {
		listen := ""
		if i == 0 {
			listen = "status " + page
		}
		fmt.Fprintf(&corefile, "%s.example:PORT {\nbind 127.0.0.1\nfederation {\nowner %s\nname %s\n%s\n%s\n%s\n}\n}\n", tc.name, tc.owner, tc.name, tc.tls, tc.more, listen)
	}
	d := startCoreDNS(t, corefile.String())
	eventually(t, patience, func() string {
		if time.Now().Before(end) {
			return "the certificate has not expired yet"
		}
		return ""
	})
	closing.stop()
	startOwner(t, p.owner, closing.address)
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			eventually(t, patience, func() string {
				for _, o := range statusOf[status.Status](t, page, "/v1/status").Owners {
					if o.ID == tc.name && (!strings.Contains(o.Failure, tc.reason) || !strings.HasPrefix(o.Remedy, tc.remedy)) {
						return fmt.Sprintf("no stream: %s; to do: %s", o.Failure, o.Remedy)
					}
				}
				_, shown, _ := get("http://" + page + "/")
				if shown = html.UnescapeString(shown); !strings.Contains(shown, tc.remedy) {
					return "the page has no " + tc.remedy
				}
				return d.unlogged(1, "owner="+tc.name+" ", tc.remedy)
			})
			w := statusOf[status.Why](t, page, "/v1/why?name=web."+tc.name+".example&type=A")
			if lines := strings.Join(w.Lines(), "\n"); !strings.Contains(lines, "\n    to do: "+tc.remedy) {
				t.Errorf("why says\n%s", lines)
			}
		})
	}
}
