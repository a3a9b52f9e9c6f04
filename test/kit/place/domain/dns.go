package domain

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// ClusterZone is the zone of the Services of each cluster itself.
const ClusterZone = "cluster.local"

// oneQuery bounds one query: it is longer than a server waits for a processor on a busy
// machine, so that an answer that is right is not missed.
const oneQuery = 10 * time.Second

// DNS is a running CoreDNS.
type DNS struct {
	*realserver.Process

	Address  string // where it answers, over UDP and TCP
	Corefile string // its path
}

// startDNS starts a CoreDNS for the cluster, with the zones of other domains: CoreDNS's own
// plugin for the cluster, and ours for each zone, with all owners.
func (d *Domain) startDNS(ctx context.Context, others ...*Domain) error {
	path, err := place.Program("coredns")
	if err != nil {
		return err
	}
	address, err := loopback.FreeAddress()
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	var text strings.Builder
	fmt.Fprintf(&text, `%s:%s {
    bind 127.0.0.1
    errors
    kubernetes {
        kubeconfig %s
    }
}
`, ClusterZone, port, d.Cluster.Kubeconfig)
	for _, other := range others {
		corefile := place.DNS{Zone: other.Zone, Address: address, OwnerID: other.OwnerID(), TLS: d.ConsumerFiles(), Properties: []string{"ttl 5"}}
		for _, o := range other.Owners {
			corefile.Owners = append(corefile.Owners, o.Address)
		}
		text.WriteString(corefile.Corefile())
	}
	d.DNS = &DNS{Address: address, Corefile: filepath.Join(d.Dir, "Corefile")}
	d.DNS.Process = &realserver.Process{
		Name: "coredns", Path: path, Dir: d.Dir, Args: []string{"-conf", d.DNS.Corefile},
		Ready: func(ctx context.Context) error { _, err := d.DNS.Ask(ctx, ClusterZone, dns.TypeSOA); return err },
	}
	if err := os.WriteFile(d.DNS.Corefile, []byte(text.String()), 0o600); err != nil {
		return err
	}
	return d.DNS.Start(ctx)
}

// Ask sends one query over UDP, and again over TCP when the reply was truncated.
func (d *DNS) Ask(ctx context.Context, name string, qtype uint16) (*dns.Msg, error) {
	question := new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype)
	reply, _, err := (&dns.Client{Timeout: oneQuery}).ExchangeContext(ctx, question, d.Address)
	if err == nil && reply.Truncated {
		reply, _, err = (&dns.Client{Net: "tcp", Timeout: oneQuery}).ExchangeContext(ctx, question, d.Address)
	}
	return reply, err
}

// Answer asks, and returns the reply in short: its code, and behind it the data of
// the records of the answer in order, or what failed.
func (d *DNS) Answer(ctx context.Context, name string, qtype uint16) string {
	reply, err := d.Ask(ctx, name, qtype)
	if err != nil {
		return err.Error()
	}
	return Short(reply)
}

// Short returns a reply in short: its code, and behind it the data of the records of
// the answer, in order.
func Short(reply *dns.Msg) string {
	var data []string
	for _, rr := range reply.Answer {
		data = append(data, strings.TrimPrefix(rr.String(), rr.Header().String()))
	}
	slices.SortFunc(data, cmp.Compare[string])
	return strings.Join(append([]string{dns.RcodeToString[reply.Rcode]}, data...), " ")
}
