package test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	_ "github.com/coredns/coredns/plugin/view"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// queryFrom asks for the A records of a name, from an address of this machine.
func queryFrom(t testing.TB, source, address, name string) *dns.Msg {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, dns.TypeA).SetEdns0(1232, false)
	client := dns.Client{Dialer: &net.Dialer{Timeout: 10 * time.Second, LocalAddr: &net.UDPAddr{IP: net.ParseIP(source)}}, Timeout: 10 * time.Second}
	reply, _, err := client.Exchange(m, address)
	must.Do(t, err)
	return reply
}

// TestHostLookupsIgnoreTheClient has the hosts of endpoints in server blocks with
// plugins acl and view, which treat the server and another client differently. The
// look-up of a host is the server's own: its result is the same for all clients,
// whichever of them asks first.
func TestHostLookupsIgnoreTheClient(t *testing.T) {
	const server, other = "127.0.0.1", "127.0.0.2" // of the two clients; the server is bound to the first
	if p, err := net.ListenPacket("udp", other+":0"); err != nil {
		t.Skipf("there can be no client at %s: %v", other, err)
	} else if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	p := newPKI(t)
	o := startOwner(t, p.owner, "")
	const seen = "NOERROR 198.51.100.7"
	blocks := federationBlock(p, "fed.example", "", o.address)
	cases := []struct{ name, plugins, want string }{
		{"filtered", "acl {\n\tfilter net " + other + "/32\n}", seen},
		{"dropped", "acl {\n\tdrop net " + other + "/32\n}", seen},
		{"blocked", "acl {\n\tblock net " + other + "/32\n}", seen},
		{"alone", "acl {\n\tallow net " + other + "/32\n\tfilter\n}", "NOERROR"},
		{"viewed", "view server {\n\texpr client_ip() == '" + server + "'\n}", seen},
		{"elsewhere", "view other {\n\texpr client_ip() == '" + other + "'\n}", "SERVFAIL"}, // no view matches the server
	}
	for _, c := range cases {
		blocks += fmt.Sprintf("%s.example:PORT {\nbind %s\n%s\ntemplate IN A {\nanswer \"{{ .Name }} 20 IN A 198.51.100.7\"\n}\n}\n", c.name, server, c.plugins)
		for _, first := range []string{server, other} {
			name := strings.ReplaceAll(c.name+"-"+first, ".", "-")
			mustUpsert(t, o, fixtureService(t, name, name+".fed.example", []string{"gw-" + name + "." + c.name + ".example:443"}, []string{"v1 HTTPS"}))
		}
	}
	d := startCoreDNS(t, blocks)
	d.awaitAnswer(t, "nope.fed.example", dns.TypeA, "NXDOMAIN")
	for _, c := range cases {
		for _, clients := range [][]string{{server, other}, {other, server}} {
			name := strings.ReplaceAll(c.name+"-"+clients[0], ".", "-") + ".fed.example."
			for _, client := range clients {
				eventually(t, patience, func() string {
					got := summary(queryFrom(t, client, d.address, name))
					wrong := fmt.Sprintf("%s, first asked for by %s: answer for %s is %q, want %q", c.name, clients[0], client, got, c.want)
					switch got {
					case c.want:
						return ""
					case "SERVFAIL": // a look-up may take too long on a busy machine
						return wrong
					}
					t.Error(wrong)
					return ""
				})
			}
		}
	}
}

// TestControlCharactersInLoggedMetadata logs a service whose name has control
// characters, which must be escaped: it can neither forge a line of the log nor
// control a terminal.
func TestControlCharactersInLoggedMetadata(t *testing.T) {
	p := newPKI(t)
	o := startOwner(t, p.owner, "", fixtureService(t, "web\n[INFO] forged\x1b[31m\u009b\u202e\x7f", "web.fed.example", []string{"192.0.2.1:443"}, []string{"v1 HTTPS"}))
	d := startCoreDNS(t, federationBlock(p, "fed.example", "metadata\nlog . \"{name} service={/federation/service} state={/federation/state}\"", o.address))
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
	want := `web.fed.example. service=web\010[INFO]\032forged\027[31m\194\155\226\128\174\127 state=live`
	d.awaitLog(t, 1, want)
	for _, raw := range []string{"\n[INFO] forged", "\x1b", "\u009b", "\u202e", "\x7f"} {
		if strings.Contains(d.log.String(), raw) {
			t.Errorf("the log contains %q", raw)
		}
	}
}
