package importer

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/hostname"
)

// retryHosts is when hosts are looked up again that could not be, or without a TTL.
const retryHosts = 30 * time.Second

// resolveEndpoints returns the addresses of each endpoint of a service, by index: of a host those that it
// has in DNS and that the owner may publish. It returns when to look hosts up again, 0 without hosts, and
// one of those that nothing is known of.
func (m *Importer) resolveEndpoints(ctx context.Context, f *followedOwner, s *federation.Service) (of [][]netip.Addr, again time.Duration, unknown string) {
	of = make([][]netip.Addr, len(s.Endpoints))
	query := hostname.Query{Type: dns.TypeSRV} // addresses of both families
	var at []int                               // the endpoint of each host
	for i, e := range s.Endpoints {
		if ip, ok := e.Address.IP(); ok {
			of[i] = []netip.Addr{ip.Unmap()}
		} else {
			query.Hosts, at = append(query.Hosts, hostname.Host{Owner: f.Name, Name: e.Address.String()}), append(at, i)
		}
	}
	for n, answer := range m.hosts.Resolve(ctx, m.upstream, query) {
		of[at[n]] = slices.DeleteFunc(answer.Addresses, func(a netip.Addr) bool { return !f.policy.Admits(a) })
		look := retryHosts
		if len(answer.Addresses) > 0 {
			look = max(time.Duration(answer.TTL)*time.Second, time.Second)
		} else if answer.Failed {
			unknown = query.Hosts[n].Name
		}
		again = earlier(again, look)
	}
	return of, again, unknown
}

// earlier returns the shorter time, where 0 is never.
func earlier(a, b time.Duration) time.Duration { return min(cmp.Or(a, b), cmp.Or(b, a)) }

// resolvConf is where the servers of the machine, or of the pod, stand.
const resolvConf = "/etc/resolv.conf"

// upstream asks the DNS servers of the machine, or of the pod. It implements hostname.Upstream.
type upstream struct{ servers []string }

// systemUpstream returns an upstream of the servers in resolv.conf.
func systemUpstream() (hostname.Upstream, error) {
	config, err := dns.ClientConfigFromFile(resolvConf)
	if err != nil {
		return nil, fmt.Errorf("%s, which has the servers for hosts of endpoints: %w", resolvConf, err)
	}
	for i, server := range config.Servers {
		config.Servers[i] = net.JoinHostPort(server, config.Port)
	}
	return upstream{config.Servers}, nil
}

// Address returns the same for all look-ups, as there is one upstream.
func (upstream) Address() string { return resolvConf }

// Ask asks one server after the other, until one has a reply. A reply that is truncated is asked for again over TCP.
func (u upstream) Ask(ctx context.Context, host string, qtype uint16, _ int) *dns.Msg {
	query := new(dns.Msg)
	query.SetQuestion(host, qtype)
	for _, server := range u.servers {
		client := dns.Client{Timeout: hostname.Patience / 2}
		reply, _, err := client.ExchangeContext(ctx, query, server)
		if err == nil && reply.Truncated {
			client.Net = "tcp"
			reply, _, err = client.ExchangeContext(ctx, query, server)
		}
		if err == nil {
			return reply
		}
	}
	return nil
}
