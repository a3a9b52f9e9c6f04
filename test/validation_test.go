package test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// signingKey writes a key pair for a zone, and returns the public key and the path
// that plugin dnssec takes: the common part of the names of both files.
func signingKey(t testing.TB, zone string) (path string, public *dns.DNSKEY) {
	t.Helper()
	public = &dns.DNSKEY{
		Hdr:   dns.RR_Header{Name: zone, Rrtype: dns.TypeDNSKEY, Class: dns.ClassINET, Ttl: 3600},
		Flags: dns.ZONE | dns.SEP, Protocol: 3, Algorithm: dns.ECDSAP256SHA256,
	}
	private := must.Get(public.Generate(256))(t)
	path = filepath.Join(t.TempDir(), fmt.Sprintf("K%s+%03d+%05d", zone, public.Algorithm, public.KeyTag()))
	writeFile(t, path+".key", public.String()+"\n")
	writeFile(t, path+".private", public.PrivateKeyString(private))
	return path, public
}

// signedQuestion is a name below fed.example that has records of all of the types,
// or, where negative is set, of none of them.
type signedQuestion struct {
	name, types string
	negative    bool
}

// signedQuestions are about the services of firstOwner.
var signedQuestions = []signedQuestion{
	{"", "SOA NS A SRV TXT ANY DNSKEY", false},
	{"", "AAAA MX DS CNAME HTTPS", true},
	{"web", "A AAAA SRV TXT ANY", false},
	{"web", "CNAME MX NS SOA DS HTTPS SVCB CAA", true},
	{"v1.web", "A SRV TXT", false},
	{"v1.web", "AAAA CNAME HTTPS", true},
	{"_http._tcp.web", "SRV ANY", false},
	{"_http._tcp.web", "A TXT", true},
	{"_tcp.web", "A SRV TXT ANY", true},
	{"_grpc._tcp.web", "SRV", true},
	{"addr.web", "A", true},
	{"192-0-2-1.addr.web", "A", false},
	{"192-0-2-1.addr.web", "AAAA SRV", true},
	{"192-0-2-2.addr.web", "A", true},
	{"mixed", "A", false},
	{"ports", "A SRV", false},
	{"eight", "A SRV", false},
	{"text", "TXT", false},
	{"db.r1.deep.a.b", "A SRV TXT", false},
	{"r1.deep.a.b", "A", true},
	{"b", "A AAAA SRV TXT NS SOA", true},
	{"nope", "A AAAA SRV TXT NS SOA CNAME HTTPS ANY DS", true},
	{"*.web", "A", true},
	{"nx", "A", true},
	{"dns", "A", true},
}

// startUnbound runs Unbound with further options of the server, and zones that it asks elsewhere.
func startUnbound(t testing.TB, options, zones string) (address string) {
	t.Helper()
	dir := t.TempDir()
	address = loopback.Address(t)
	_, port, _ := strings.Cut(address, ":")
	config := filepath.Join(dir, "unbound.conf")
	writeFile(t, config, fmt.Sprintf(`server:
	interface: 127.0.0.1@%[1]s
	port: %[1]s
	directory: "%[2]s"
	chroot: ""
	username: ""
	pidfile: ""
	use-syslog: no
	logfile: ""
	do-daemonize: no
	do-ip6: no
	do-not-query-localhost: no
	access-control: 127.0.0.0/8 allow
%[3]sremote-control:
	control-enable: no
%[4]s`, port, dir, options, zones))
	startServer(t, "unbound", "unbound", dir, "-d", "-p", "-c", config)
	return address
}

// startValidator runs Unbound as a validating resolver of a zone with the given name server and key.
// Everything that makes a resolver strict is on: aggressive use of denials (RFC 8198), query name
// minimisation, and names in random case.
func startValidator(t testing.TB, zone, authority string, key *dns.DNSKEY) (address string) {
	t.Helper()
	return startUnbound(t, fmt.Sprintf(`	module-config: "validator iterator"
	trust-anchor: "%s"
	val-log-level: 2
	aggressive-nsec: yes
	qname-minimisation: yes
	qname-minimisation-strict: yes
	use-caps-for-id: yes
	harden-referral-path: no
	prefetch: no
`, strings.ReplaceAll(key.String(), "\t", " ")), fmt.Sprintf(`stub-zone:
	name: "%s"
	stub-addr: %s
	stub-no-cache: no
`, zone, strings.Replace(authority, ":", "@", 1)))
}

// TestValidation lets Unbound validate the answers that plugin dnssec has
// signed.
func TestValidation(t *testing.T) {
	t.Parallel()
	program(t, "unbound", "unbound")
	p := newPlace(t)
	hosts := startNameserver(t, map[string]string{"gw.example.net.": "20 A 198.51.100.7", "dup.example.net.": "60 A 192.0.2.1"})
	path, key := signingKey(t, "fed.example.")
	o := startOwner(t, p, firstOwner()...)
	d := startCoreDNS(t, federationBlock(p, "fed.example", "dnssec {\n\tkey file "+path+"\n}", o.address)+
		fmt.Sprintf(".:PORT {\n\tbind 127.0.0.1\n\tforward . %s\n}", hosts))
	d.awaitAnswer(t, "nope.fed.example", dns.TypeA, "NXDOMAIN")
	resolver := startValidator(t, "fed.example.", d.address, key)
	awaitReply(t, resolver, "fed.example", dns.TypeSOA, func(m *dns.Msg) string {
		if m.Rcode != dns.RcodeSuccess {
			return "Unbound says " + dns.RcodeToString[m.Rcode]
		}
		return ""
	})
	// Twice: a denial that the resolver has cached must not hide other types.
	for _, round := range []string{"first", "again"} {
		for _, q := range signedQuestions {
			name := strings.TrimPrefix(q.name+".fed.example.", ".")
			for qtype := range strings.FieldsSeq(q.types) {
				if qtype == "ANY" || qtype == "DS" && q.name == "" {
					continue // ANY asks for the resolver's cache, and the DS of the apex is in the parent zone
				}
				m := must.Get(exchange("tcp", resolver, new(dns.Msg).SetQuestion(name, dns.StringToType[qtype]).SetEdns0(4096, true)))(t)
				if !m.AuthenticatedData || m.Rcode != dns.RcodeSuccess || q.negative != (len(m.Answer) == 0) {
					t.Errorf("%s: %s %s is not authentic:\n%v", round, name, qtype, m)
				}
			}
		}
	}
}
