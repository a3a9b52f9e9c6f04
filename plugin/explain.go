package federationplugin

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/dns/agent"
	"github.com/hamlet-federation/coredns-federation/internal/dns/hostname"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/plugin/loopback"
)

// startedServer is a server block that has started, for the status. Its methods may be called by several
// goroutines at once.
type startedServer struct {
	*Federation

	configuration *instanceConfig
	block         *agent.Block
	keys          []string                  // of the server block
	lookups       *loopback.NetworkUpstream // how the server asks itself; nil if it cannot
}

// reportZones returns the zones of the server block.
func (s *startedServer) reportZones() (zones []status.Zone) {
	z := s.newestZone()
	for _, name := range s.zoneNames() {
		r := status.Zone{Name: name, Servers: s.keys}
		if soa := z.SOA(name); soa != nil {
			r.Serial = soa.Serial
		}
		for i := range s.config.Zone.Owners {
			o := &s.config.Zone.Owners[i]
			for _, origin := range o.Origins {
				if origin.String() == name {
					r.Owners = append(r.Owners, o.ID)
				}
			}
		}
		zones = append(zones, r)
	}
	return zones
}

// explain returns the reply to a query, and why, or false for a name outside of the zones. It shows the
// reply of the code that answers queries, and so waits for hosts no longer than that code.
func (s *startedServer) explain(ctx context.Context, name string, qtype uint16) (status.BlockAnswer, bool) {
	z := s.newestZone() // one version for the whole explanation
	if !z.HasName(name) {
		return status.BlockAnswer{}, false
	}
	a := s.block.Explain(z, name, qtype, time.Now())
	a.Servers = s.keys
	if s.lookups != nil {
		ctx = context.WithValue(ctx, lookupsKey{}, s.lookups)
		// What the server is asked over the network begins at 0 again, and must not
		// wait for the look-up that it is part of.
		ctx = context.WithValue(ctx, dnsserver.LoopKey{}, 1)
	}
	query := new(dns.Msg)
	query.SetQuestion(name, qtype).SetEdns0(dns.MaxMsgSize, false)
	m, rcode := s.answerQuery(ctx, z, explainClient{}, query)
	a.Records = []string{}
	switch {
	case m != nil:
		rcode = m.Rcode
		a.Errors = extendedErrors(m)
		for _, rr := range m.Answer {
			a.Records = append(a.Records, strings.ReplaceAll(rr.String(), "\t", " "))
		}
		a.Verdict = verdictOf(m, a.Verdict)
	case rcode == handOn && s.Next != nil:
		a.Passed, a.Verdict = true, status.PassedOn
		return a, true
	case rcode == handOn:
		rcode = dns.RcodeRefused
	}
	a.Rcode = dns.RcodeToString[rcode]
	a.Hosts = s.explainHosts(ctx, z, name, qtype)
	return a, true
}

// verdictOf returns why a reply is as it is: the verdict of the zone, unless hosts elsewhere have
// decided.
func verdictOf(m *dns.Msg, ofZone status.AnswerVerdict) status.AnswerVerdict {
	switch {
	case m.Rcode == dns.RcodeServerFailure && hasError(m, dns.ExtendedErrorCodeNoReachableAuthority):
		return status.Unresolved
	case m.Rcode != dns.RcodeSuccess || len(m.Answer) > 0:
		return ofZone
	case hasError(m, dns.ExtendedErrorCodeBlocked):
		return status.Denied
	case ofZone == status.Live || ofZone == status.Stale:
		return status.NoData
	}
	return ofZone
}

// explainHosts returns how the hosts were resolved whose addresses belong to an answer. Results of
// the answer are remembered, and are not looked up again. Those that are have the time of one look-up
// together, because the server of each may not answer.
func (s *startedServer) explainHosts(ctx context.Context, z *zone.Zone, name string, qtype uint16) (hosts []status.HostEndpoint) {
	result := z.Lookup(name, qtype, time.Now())
	if result.Kind != zone.Indirect {
		return nil
	}
	found, _ := s.lookUp(ctx, &result, qtype, hostname.Patience)
	all := result.Hosts()
	for _, h := range all[:min(len(all), hostname.MaxHosts)] {
		r := status.HostEndpoint{Name: h.Name}
		switch i := slices.IndexFunc(found, func(at hostAnswer) bool { return at.host == h }); {
		case i >= 0:
			r = explainAnswer(&result, &found[i])
		case s.mayExist(h):
			r.Failure = "it is in a zone of this server, and an owner that may have it is not known yet"
		default:
			r.Failure = "it is in a zone of this server, and does not exist"
		}
		switch i := slices.IndexFunc(hosts, func(other status.HostEndpoint) bool { return other.Name == h.Name }); {
		case i < 0:
			hosts = append(hosts, r)
		case r.Failure == "": // another owner says it, too
			hosts[i] = r
		}
	}
	return hosts
}

// explainAnswer returns what looking up a host has to do with the result.
func explainAnswer(result *zone.Result, at *hostAnswer) status.HostEndpoint {
	r := status.HostEndpoint{Name: at.host.Name, Stale: at.Stale}
	allowed, refused := splitPublishable(result, at.host.Owner, at.Addresses)
	switch {
	case result.Type == dns.TypeSRV && len(refused) > 0:
		r.Failure = "it has an address that the owner may not publish, so no SRV record points to it"
		return r
	case len(allowed) > 0:
	case at.Failed:
		r.Failure = "this server gets no answer for it"
	case len(refused) > 0:
		r.Failure = "it has no address that the owner may publish"
	default:
		r.Failure = "it has no address of the type"
	}
	for _, address := range allowed {
		r.Addresses = append(r.Addresses, address.String())
	}
	return r
}

// extendedErrors returns the extended errors of a reply, as CODE (NAME): TEXT.
func extendedErrors(m *dns.Msg) []string {
	var texts []string
	for _, e := range errorsOf(m) {
		text := fmt.Sprintf("%d (%s)", e.InfoCode, dns.ExtendedErrorCodeToString[e.InfoCode])
		if e.ExtraText != "" {
			text += ": " + e.ExtraText
		}
		texts = append(texts, text)
	}
	return texts
}

func hasError(m *dns.Msg, code uint16) bool {
	return slices.ContainsFunc(errorsOf(m), func(e *dns.EDNS0_EDE) bool { return e.InfoCode == code })
}

func errorsOf(m *dns.Msg) (all []*dns.EDNS0_EDE) {
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if e, ok := o.(*dns.EDNS0_EDE); ok {
				all = append(all, e)
			}
		}
	}
	return all
}

// explainClient is a client that wants an explanation, over TCP. Its answers do not count.
type explainClient struct{ dns.ResponseWriter }

// LocalAddr implements dns.ResponseWriter.
func (explainClient) LocalAddr() net.Addr { return loopback.AddressOf("") }

// RemoteAddr implements dns.ResponseWriter.
func (explainClient) RemoteAddr() net.Addr { return loopback.AddressOf("") }

// lookupsKey is the key of the hostname.Upstream in the context of an answer that no server has
// been asked for.
type lookupsKey struct{}
