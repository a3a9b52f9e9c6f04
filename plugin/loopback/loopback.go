// Package loopback makes a CoreDNS server its own upstream: a [DirectUpstream] or a [NetworkUpstream] looks
// up the hosts that owners name as a client of the server would, in whatever plugins it has.
//
// Only packages of this module import it: it is not a stable API.
package loopback

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"
)

// DirectUpstream asks the plugins of a server. It implements hostname.Upstream.
//
// Every client gets the result, so it must not depend on the client that happened to ask first. A
// look-up is therefore a query of the server's own, from its own address. Plugins such as acl and
// view would answer each client differently.
type DirectUpstream struct{ Server *dnsserver.Server }

// Address returns the address that the server listens on. Two servers with the same server block
// may have different answers.
func (d DirectUpstream) Address() string { return d.Server.Address() }

// Ask sends the query through the plugins of the server.
func (d DirectUpstream) Ask(ctx context.Context, host string, qtype uint16, depth int) *dns.Msg {
	ctx = context.WithValue(ctx, dnsserver.Key{}, d.Server)
	ctx = context.WithValue(ctx, dnsserver.LoopKey{}, depth)
	query := new(dns.Msg)
	query.SetQuestion(host, qtype)
	w := &replyWriter{address: AddressOf(d.Server.Address())}
	d.Server.ServeDNS(ctx, w, query)
	return w.reply // nil where acl drops the query
}

// NetworkUpstream asks a server over the network, because CoreDNS gives its dnsserver.Server away
// only with a query. It implements hostname.Upstream.
type NetworkUpstream struct {
	listen  string // as dnsserver.Server.Address has it
	address string // host:port
}

// NewNetwork returns an upstream for the server of a server block, by the keys of the block and the
// hosts that it is bound to, or nil where the block has no plain DNS.
func NewNetwork(keys, hosts []string) *NetworkUpstream {
	for _, key := range keys {
		i := strings.LastIndexByte(key, ':')
		if !strings.HasPrefix(key, "dns://") || i < len("dns://") {
			continue
		}
		host := ""
		if len(hosts) > 0 {
			host = hosts[0]
		}
		listen := net.JoinHostPort(host, key[i+1:])
		if host == "" {
			listen = ":" + key[i+1:]
		}
		return &NetworkUpstream{"dns://" + listen, AddressOf(listen).String()}
	}
	return nil
}

// Address returns the address that the server listens on, as that of a DirectUpstream.
func (n *NetworkUpstream) Address() string { return n.listen }

// Ask sends the query to the server.
func (n *NetworkUpstream) Ask(ctx context.Context, host string, qtype uint16, _ int) *dns.Msg {
	query := new(dns.Msg)
	query.SetQuestion(host, qtype)
	client := dns.Client{Net: "tcp"} // so that nothing is truncated
	reply, _, err := client.ExchangeContext(ctx, query, n.address)
	if err != nil {
		return nil
	}
	return reply
}

// AddressOf returns the address of a server that listens on an address of the form of
// dnsserver.Server.Addr: the one that it is bound to, or loopback when it is bound to none.
func AddressOf(listen string) *net.TCPAddr {
	if _, rest, ok := strings.Cut(listen, "://"); ok {
		listen = rest
	}
	host, service, _ := net.SplitHostPort(listen)
	ip, err := netip.ParseAddr(host)
	if err != nil || ip.IsUnspecified() {
		ip = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	port, _ := strconv.ParseUint(service, 10, 16)
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, uint16(port)))
}

// replyWriter is the server as its own client. It appears to ask over TCP, so that no plugin
// truncates the reply.
type replyWriter struct {
	address *net.TCPAddr
	reply   *dns.Msg
}

// LocalAddr implements dns.ResponseWriter.
func (w *replyWriter) LocalAddr() net.Addr { return w.address }

// RemoteAddr implements dns.ResponseWriter.
func (w *replyWriter) RemoteAddr() net.Addr { return w.address }

// WriteMsg implements dns.ResponseWriter.
func (w *replyWriter) WriteMsg(m *dns.Msg) error {
	w.reply = m
	return nil
}

// Write implements dns.ResponseWriter.
func (w *replyWriter) Write(packed []byte) (int, error) {
	m := new(dns.Msg)
	if err := m.Unpack(packed); err != nil {
		return 0, err
	}
	return len(packed), w.WriteMsg(m)
}

// Close implements dns.ResponseWriter. There is no connection.
func (*replyWriter) Close() error { return nil }

// TsigStatus implements dns.ResponseWriter. There is no signature.
func (*replyWriter) TsigStatus() error { return nil }

// TsigTimersOnly implements dns.ResponseWriter.
func (*replyWriter) TsigTimersOnly(bool) {}

// Hijack implements dns.ResponseWriter.
func (*replyWriter) Hijack() {}
