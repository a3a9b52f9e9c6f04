package zone_test

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
	"github.com/hamlet-federation/coredns-federation/test/kit/nightly"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/zonetest"
)

// TestOracle compares the compiled zone with the oracle over random catalogs,
// for every name that they could be thought to have. A builder that went through
// many changes must answer like one that was given the outcome at once, and what
// it published on the way must stay as it was.
func TestOracle(t *testing.T) {
	for seed := range seeds(250) {
		c := newChaos(seed)
		b := zonetest.NewBuilder(c.config, nil)
		for range 1 + c.IntN(30) {
			c.step(b)
		}
		z := b.Publish(now)
		names := c.names()
		for _, name := range names {
			for _, qtype := range questionTypes {
				got, want := answer(z, name, qtype), c.answer(name, qtype)
				if d := gocmp.Diff(want, got); d != "" {
					t.Fatalf("seed %d: %s %s (-want +got):\n%s\n%s", seed, name, dns.Type(qtype), d, c)
				}
			}
		}

		fresh := zonetest.NewBuilder(c.config, nil)
		for _, k := range c.Perm(len(c.offers)) {
			o := c.offers[k]
			fresh.Put(o.owner, o.service, o.generation)
		}
		for i, s := range c.statuses {
			fresh.SetStatus(i, s)
		}
		freshZone := fresh.Publish(now)
		for i := range c.statuses {
			if d := gocmp.Diff(faults(freshZone, i), faults(z, i)); d != "" {
				t.Fatalf("seed %d: faults of owner %d (-fresh +incremental):\n%s\n%s", seed, i, d, c)
			}
		}
		before := dump(z, names)
		if d := gocmp.Diff(dump(freshZone, names), before); d != "" {
			t.Fatalf("seed %d: order of changes shows (-fresh +incremental):\n%s\n%s", seed, d, c)
		}
		for range 10 {
			c.step(b)
		}
		b.Publish(now)
		if d := gocmp.Diff(before, dump(z, names)); d != "" {
			t.Fatalf("seed %d: published version changed:\n%s\n%s", seed, d, c)
		}
	}
}

// seeds returns how many random cases a test tries: all of them at night, and a part of them by day.
func seeds(all uint64) uint64 { return nightly.Cases(all, all/5) }

var questionTypes = []uint16{
	dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeTXT, dns.TypeSOA, dns.TypeNS, dns.TypeANY, dns.TypeCNAME,
	dns.TypeHINFO, dns.TypeHTTPS,
}

// outcome is an answer in a form that can be compared.
type outcome struct {
	Kind         string
	Answer, Glue []string
	Hosts        []string
	Stale        bool
	Lost, Denied bool
	Source       string
}

// answer asks the zone, with the name in upper case.
func answer(z *zone.Zone, name string, qtype uint16) outcome {
	r := z.Lookup(name, qtype, now)
	a := outcome{Kind: kindNames[r.Kind], Stale: r.IsStale(), Denied: r.IsDenied()}
	if r.Kind != zone.Outside {
		a.Lost = r.HasLostOwner()
	}
	if r.Kind == zone.Success || r.Kind == zone.Indirect {
		rrs := reply.AppendAnswer(nil, &r, strings.ToUpper(name), 0)
		a.Answer = lines(rrs)
		a.Glue = lines(reply.AppendGlue(nil, &r, rrs, 0, now))
	}
	if qtype == dns.TypeA || qtype == dns.TypeAAAA {
		slices.Sort(a.Answer) // sorted somehow, which TestOracle checks against a fresh build
	}
	for _, h := range r.Hosts() {
		a.Hosts = append(a.Hosts, fmt.Sprintf("%s %t %t %t", h.Name, h.InZone, h.Unsynced, h.Unheard))
	}
	slices.Sort(a.Hosts)
	if owner, s, in := r.Source(); s != nil {
		a.Source = source(owner, s, in, r.FQDN())
	}
	return a
}

func source(owner string, s *federation.Service, in *federation.Instance, fqdn string) string {
	text := owner + " " + s.Name + " " + fqdn
	if in != nil {
		text += " " + in.ID
	}
	return text
}

func lines(rrs []dns.RR) []string {
	var text []string
	for _, rr := range rrs {
		text = append(text, rr.String())
	}
	return text
}

// dump is all that a zone answers, in the order in which it answers it.
func dump(z *zone.Zone, names []string) []string {
	var all []string
	for _, name := range names {
		for _, qtype := range questionTypes {
			r := z.Lookup(name, qtype, now)
			all = append(all, name, dns.Type(qtype).String(), kindNames[r.Kind])
			if r.Kind == zone.Success || r.Kind == zone.Indirect {
				all = append(all, lines(reply.AppendAnswer(nil, &r, name, 0))...)
			}
			for _, h := range r.Hosts() {
				all = append(all, h.Name)
			}
		}
	}
	return all
}

func faults(z *zone.Zone, owner int) map[zone.Fault]int {
	if f := z.Faults(owner); len(f) > 0 {
		return f
	}
	return nil
}

// oracle answers from the decision table in the plainest way: it writes the
// whole zone out, name by name, and looks there. It shares no code with the
// package but the nouns.
type oracle struct {
	config   zone.Config
	offers   []offer
	statuses []zone.Status
	cache    map[string]*owned // what written returned, until the next change
}

type offer struct {
	owner      int
	service    *federation.Service
	generation uint64
}

// owned is a name that has records.
type owned struct {
	offer     *offer // nil at an apex without a service, and at the name server
	fqdn      string
	instance  *federation.Instance
	endpoints []federation.Endpoint // for SRV and addresses
	ip        netip.Addr            // of <ip>.addr.<fqdn>

	apex, nameServer, described, addressed bool
}

func join(labels, name string) string {
	if name == "." {
		return labels + "."
	}
	return labels + "." + name
}

// isBelow knows that an escaped dot is not the end of a label.
func isBelow(name, above string) bool {
	labels, ok := strings.CutSuffix(name, "."+above)
	return above == "." && name != "." || ok && !strings.HasSuffix(labels, `\`)
}

// origins maps every origin to the indices of its owners.
func (o *oracle) origins() map[string][]int {
	all := make(map[string][]int)
	for i, owner := range o.config.Owners {
		for _, name := range owner.Origins {
			all[name.String()] = append(all[name.String()], i)
		}
	}
	return all
}

func (o *oracle) originOf(name string) string {
	longest := ""
	for origin := range o.origins() {
		if (name == origin || isBelow(name, origin)) && len(origin) > len(longest) {
			longest = origin
		}
	}
	return longest
}

var addressShape = regexp.MustCompile(`^(\d{1,3}(-\d{1,3}){3}|[0-9a-f]{4}(-[0-9a-f]{4}){7})\.addr\.`)

func (o *oracle) reserved(name string) bool {
	dns := join("dns", o.originOf(name))
	return name == dns || isBelow(name, dns) || addressShape.MatchString(name)
}

// publishedAs applies the renames and the rules of section 6.
func (o *oracle) publishedAs(of *offer) (string, bool) {
	owner := o.config.Owners[of.owner]
	name := of.service.FQDN.String()
	for _, r := range owner.Renames {
		from, to := r.From.String(), r.To.String()
		if name == from {
			name = to
			break
		}
		if isBelow(name, from) {
			name = join(strings.TrimSuffix(strings.TrimSuffix(name, from), "."), to)
			break
		}
	}
	origin := o.originOf(name)
	given := slices.ContainsFunc(owner.Origins, func(n federation.FQDN) bool { return n.String() == origin })
	return name, given && !o.reserved(name)
}

func (o *oracle) stale(of *offer) bool { return of.generation < o.statuses[of.owner].Live }

func (o *oracle) remaining(of *offer) time.Duration { return o.statuses[of.owner].Expires.Sub(now) }

func (o *oracle) gone(of *offer) bool {
	return o.stale(of) && !o.statuses[of.owner].Expires.IsZero() && o.remaining(of) < time.Second
}

// ttl has rows 7.5 and 7.6.
func (o *oracle) ttl(of *offer) uint32 {
	owner := o.config.Owners[of.owner]
	ttl := owner.TTL
	switch {
	case !o.stale(of):
		if owner.Retention > 0 {
			ttl = min(ttl, uint32(owner.Retention.Seconds()))
		}
	case o.statuses[of.owner].Expires.IsZero():
		ttl = min(ttl, 30)
	default:
		ttl = min(ttl, 30, uint32(min(o.remaining(of).Seconds(), 1000)))
	}
	return ttl
}

var (
	onlyLabels = regexp.MustCompile(`^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9_])?)*$`)
	endsInAddr = regexp.MustCompile(`\.addr$`)
)

// services returns the service that is published at each fqdn, and the names of
// those that have expired and were not removed yet: what is above them still
// exists.
func (o *oracle) services() (published map[string]*offer, expired []string) {
	winners, expired := o.winners()
	published = make(map[string]*offer)
	// Whoever comes first in the Corefile keeps what he has.
	for owner := range o.config.Owners {
		for fqdn, of := range winners {
			if of.owner == owner && !o.taken(published, fqdn, owner) {
				published[fqdn] = of
			}
		}
	}
	return published, expired
}

// taken reports whether a published service of an owner before this one has the
// name, by itself or by what is derived from it.
func (o *oracle) taken(published map[string]*offer, name string, owner int) bool {
	for fqdn, of := range published {
		if of.owner >= owner || o.originOf(fqdn) != o.originOf(name) {
			continue
		}
		for derived := range o.derived(of, fqdn) {
			if derived == name || isBelow(derived, name) && isBelow(name, fqdn) {
				return true
			}
		}
	}
	return false
}

// derived returns the names below its fqdn that a service would have if it were
// the only one.
func (o *oracle) derived(of *offer, fqdn string) map[string]bool {
	names := make(map[string]bool)
	for i := range of.service.Instances {
		in := &of.service.Instances[i]
		for _, label := range protocolLabels(in.Protocol) {
			names[join(label+"._tcp", fqdn)] = true
			if name, ok := o.instanceName(of, fqdn, in); ok {
				names[name], names[label+"._tcp."+name] = true, true
			}
		}
	}
	for _, ep := range of.service.Endpoints {
		if !isHost(ep) {
			names[target(ep, fqdn)] = true
		}
	}
	return names
}

// winners returns the service that comes first for each fqdn.
func (o *oracle) winners() (winners map[string]*offer, expired []string) {
	winners = make(map[string]*offer)
	for i := range o.offers {
		of := &o.offers[i]
		name, ok := o.publishedAs(of)
		if !ok {
			continue
		}
		if o.gone(of) {
			expired = append(expired, name)
			continue
		}
		w := winners[name]
		if w == nil || cmp.Or(cmp.Compare(of.owner, w.owner), strings.Compare(of.service.Name, w.service.Name)) < 0 {
			winners[name] = of
		}
	}
	return winners, expired
}

// written returns every name that has records.
func (o *oracle) written() map[string]*owned {
	if o.cache != nil {
		return o.cache
	}
	all := make(map[string]*owned)
	o.cache = all
	for origin := range o.origins() {
		all[origin] = &owned{apex: true}
		all[join("ns.dns", origin)] = &owned{nameServer: true}
	}
	published, _ := o.services()
	for fqdn, of := range published {
		if all[fqdn] == nil {
			all[fqdn] = &owned{}
		}
		at := all[fqdn]
		at.offer, at.fqdn, at.described, at.addressed = of, fqdn, true, true
		at.endpoints = of.service.Endpoints
	}
	// Of two services of one owner that give a name to an instance, the one with
	// the longer fqdn has it.
	fqdns := slices.SortedFunc(maps.Keys(published), func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	for _, fqdn := range fqdns {
		of := published[fqdn]
		perProtocol := make(map[federation.Protocol][]federation.Endpoint)
		for i := range of.service.Instances {
			in := &of.service.Instances[i]
			perProtocol[in.Protocol] = append(perProtocol[in.Protocol], selected(of.service, in)...)
			name, ok := o.instanceName(of, fqdn, in)
			if !ok || all[name] != nil || o.taken(published, name, of.owner) {
				continue
			}
			all[name] = &owned{
				offer: of, fqdn: fqdn, instance: in, endpoints: selected(of.service, in), described: true, addressed: true,
			}
			for _, label := range protocolLabels(in.Protocol) {
				all[label+"._tcp."+name] = &owned{offer: of, fqdn: fqdn, instance: in, endpoints: selected(of.service, in)}
			}
		}
		for protocol, endpoints := range perProtocol {
			for _, label := range protocolLabels(protocol) {
				all[join(label+"._tcp", fqdn)] = &owned{offer: of, fqdn: fqdn, endpoints: endpoints}
			}
		}
		for _, ep := range of.service.Endpoints {
			if ip, ok := ep.Address.IP(); ok {
				all[target(ep, fqdn)] = &owned{offer: of, fqdn: fqdn, ip: ip}
			}
		}
	}
	return all
}

// selected has row 1.4.
func selected(s *federation.Service, in *federation.Instance) []federation.Endpoint {
	var some []federation.Endpoint
	for _, ep := range s.Endpoints {
		for _, label := range ep.Labels {
			if slices.Contains(in.EndpointSelector, label) {
				some = append(some, ep)
				break
			}
		}
	}
	if some == nil {
		return s.Endpoints
	}
	return some
}

// instanceName has rows 5.13 and 5.14.
func (o *oracle) instanceName(of *offer, fqdn string, in *federation.Instance) (string, bool) {
	label := strings.TrimSuffix(strings.ToLower(in.ID), ".")
	if in.Unnamed || !onlyLabels.MatchString(label) || endsInAddr.MatchString(label) {
		return "", false
	}
	for _, other := range of.service.Instances {
		if !other.Unnamed && other.ID < in.ID && strings.TrimSuffix(strings.ToLower(other.ID), ".") == label {
			return "", false
		}
	}
	name := join(label, fqdn)
	return name, len(name) <= 254 && !o.reserved(name) && o.originOf(name) == o.originOf(fqdn)
}

func protocolLabels(p federation.Protocol) []string {
	if p == federation.MONGO {
		return []string{"_mongo", "_mongodb"}
	}
	return []string{"_" + strings.ToLower(p.String())}
}

// target has rows 2.3 and 2.4.
func target(ep federation.Endpoint, fqdn string) string {
	if host, ok := ep.Address.Host(); ok {
		return host.String()
	}
	ip, _ := ep.Address.IP()
	if ip.Is4() {
		return join(strings.ReplaceAll(ip.String(), ".", "-")+".addr", fqdn)
	}
	return join(strings.ReplaceAll(ip.StringExpanded(), ":", "-")+".addr", fqdn)
}

// exists has row 5.5.
func (o *oracle) exists(name string) bool {
	for other := range o.written() {
		if other == name || isBelow(other, name) {
			return true
		}
	}
	_, expired := o.services()
	return slices.ContainsFunc(expired, func(other string) bool { return isBelow(other, name) })
}

// unsynced has row 7.10; unheard is when nothing is waited for any longer.
func (o *oracle) unsynced(origin string) (unsynced, unheard bool) {
	known, pending := false, false
	for _, i := range o.origins()[origin] {
		s := o.statuses[i]
		known = known || s.Known
		pending = pending || !s.Known && now.Before(s.Grace)
	}
	return !known || pending, !known && !pending
}

// open reports whether an owner may publish the name, which exists, so that
// it is not known to have nothing while a catalog is.
func (o *oracle) open(name string) bool {
	return !strings.HasPrefix(name, "_") && name != join("dns", o.originOf(name))
}

func (o *oracle) negativeTTL(origin string) uint32 {
	return o.config.Owners[o.origins()[origin][0]].NegativeTTL
}

// answer is what the decision table says, but for the serial.
func (o *oracle) answer(name string, qtype uint16) outcome {
	origin, at := o.originOf(name), o.written()[name]
	if origin == "" {
		return outcome{Kind: "OUTSIDE"}
	}
	unsynced, unheard := o.unsynced(origin)
	r := outcome{Kind: "NODATA"}
	for _, i := range o.origins()[origin] {
		r.Lost = r.Lost || !o.statuses[i].Lost.IsZero()
	}
	if at == nil {
		switch exists := o.exists(name); {
		case exists && (!unsynced || !o.open(name)):
		case unheard && !exists:
			r.Kind = "UNHEARD"
		case unsynced:
			r.Kind = "UNSYNCED"
		default:
			r.Kind = "NXDOMAIN"
		}
		return r
	}
	negative := o.negativeTTL(origin)
	ttl := negative
	if at.offer != nil {
		ttl, r.Stale = o.ttl(at.offer), o.stale(at.offer)
		r.Source = source(o.config.Owners[at.offer.owner].ID, at.offer.service, at.instance, at.fqdn)
	}
	if at.apex && (qtype == dns.TypeSOA || at.offer == nil) && unsynced {
		return outcome{Kind: "UNSYNCED", Source: r.Source, Lost: r.Lost}
	}
	record := func(owner string, ttl uint32, qtype uint16, data string) string {
		return fmt.Sprintf("%s\t%d\tIN\t%s\t%s", owner, ttl, dns.Type(qtype), data)
	}
	asked := strings.ToUpper(name)
	ns := join("ns.dns", origin)
	switch qtype {
	case dns.TypeANY:
		r.Answer = []string{record(asked, ttl, dns.TypeHINFO, `"RFC8482" ""`)}
	case dns.TypeSOA:
		if at.apex {
			r.Stale = false // it is the zone's own
			data := fmt.Sprintf("%s %s %d 300 60 86400 %d", ns, join("hostmaster", origin), now.Unix(), negative)
			r.Answer = []string{record(asked, negative, qtype, data)}
		}
	case dns.TypeNS:
		if at.apex {
			r.Stale = false
			r.Answer = []string{record(asked, negative, qtype, ns)}
			for _, ip := range o.config.NameServer {
				r.Glue = append(r.Glue, record(ns, negative, addressType(ip), ip.String()))
			}
		}
	case dns.TypeSRV:
		if at.ip.IsValid() {
			break
		}
		r.Answer, r.Glue, r.Hosts, r.Denied = o.srv(at, asked, ttl)
	case dns.TypeTXT:
		if at.described {
			for _, txt := range texts(at) {
				rr := &dns.TXT{Hdr: dns.RR_Header{Name: asked, Rrtype: qtype, Class: dns.ClassINET, Ttl: ttl}, Txt: txt}
				r.Answer = append(r.Answer, rr.String())
			}
		}
	case dns.TypeA, dns.TypeAAAA:
		found := o.addresses(name, false)
		r.Hosts, ttl = found.hosts, min(ttl, found.ttl)
		if found.has(qtype) {
			r.Stale = !o.addresses(name, true).has(qtype)
		}
		for ip, admitted := range found.ips {
			if addressType(ip) != qtype {
				continue
			}
			if admitted {
				r.Answer = append(r.Answer, record(asked, ttl, qtype, ip.String()))
			}
			r.Denied = r.Denied || !admitted
		}
		slices.Sort(r.Answer)
	}
	switch {
	case len(r.Hosts) > 0:
		r.Kind = "INDIRECT"
	case len(r.Answer) > 0:
		r.Kind = "NOERROR"
	}
	return r
}

func addressType(ip netip.Addr) uint16 {
	if ip.Is4() {
		return dns.TypeA
	}
	return dns.TypeAAAA
}

// srv has rows 2.3 to 2.9. A host that leads to an address that the owner may not publish
// is no target.
func (o *oracle) srv(at *owned, asked string, ttl uint32) (answer, glue, hosts []string, denied bool) {
	endpoints := slices.Clone(at.endpoints)
	slices.SortStableFunc(endpoints, func(a, b federation.Endpoint) int {
		return cmp.Or(strings.Compare(target(a, at.fqdn), target(b, at.fqdn)), cmp.Compare(a.Port, b.Port))
	})
	for _, ep := range endpoints {
		to := target(ep, at.fqdn)
		if isHost(ep) {
			found := o.reach(at.offer, to, 1, false)
			if found.refused {
				denied = true
				continue
			}
			hosts = append(hosts, found.hosts...)
		}
		rr := fmt.Sprintf("%s\t%d\tIN\tSRV\t0 100 %d %s", asked, ttl, ep.Port, to)
		if !slices.Contains(answer, rr) {
			answer = append(answer, rr)
		}
		if o.originOf(to) != o.originOf(at.fqdn) {
			continue
		}
		known := o.written()[to]
		if known == nil || slices.ContainsFunc(known.endpoints, isHost) {
			continue
		}
		if slices.ContainsFunc(slices.Collect(maps.Keys(o.addresses(to, false).ips)), func(ip netip.Addr) bool {
			return !o.admits(at.offer, known.offer, ip)
		}) {
			continue
		}
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
			r := o.answer(to, qtype)
			if r.Kind != "NOERROR" {
				continue
			}
			for _, rr := range r.Answer {
				rr = to + rr[len(to):] // in lower case
				if !slices.Contains(glue, rr) {
					glue = append(glue, rr)
				}
			}
		}
	}
	slices.Sort(hosts)
	return answer, glue, slices.Compact(hosts), denied
}

func isHost(ep federation.Endpoint) bool {
	_, ok := ep.Address.Host()
	return ok
}

// admits reports whether the owner of one offer may publish what it has from
// another, which is nil for a name server.
func (o *oracle) admits(to, from *offer, ip netip.Addr) bool {
	if to == nil || from != nil && from.owner == to.owner {
		return true
	}
	admits := o.config.Owners[to.owner].Admits
	return admits == nil || admits(ip)
}

// addresses has rows 1.2, 1.3 and 1.5: all that is reached from name within
// nine steps, the eighth of which may still be through a service; or what hangs on no owner that is lost.
func (o *oracle) addresses(name string, live bool) reached {
	return o.reach(o.written()[name].offer, name, 0, live)
}

// reached is what a name leads to.
type reached struct {
	ips     map[netip.Addr]bool // to whether they may be published
	hosts   []string            // elsewhere
	ttl     uint32
	refused bool // in one of the places where an address is, it may not be published from there
}

// has reports whether there is something to answer.
func (r reached) has(qtype uint16) bool {
	for ip, admitted := range r.ips {
		if admitted && addressType(ip) == qtype {
			return true
		}
	}
	return len(r.hosts) > 0
}

// reach follows a name for the owner of an offer, after so many steps.
func (o *oracle) reach(asked *offer, name string, steps int, live bool) reached {
	ips := make(map[netip.Addr]bool)
	refused, ttl := false, uint32(math.MaxUint32)
	add := func(from *offer, ip netip.Addr) {
		admitted := o.admits(asked, from, ip)
		ips[ip] = ips[ip] || admitted
		refused = refused || !admitted
	}
	var hosts []string
	reachedAt := map[string]int{name: steps}
	for queue := []string{name}; len(queue) > 0; queue = queue[1:] {
		name := queue[0]
		origin := o.originOf(name)
		at := o.written()[name]
		switch {
		case origin == "":
			hosts = append(hosts, name+" false false false")
			continue
		case at == nil || at.apex && at.offer == nil:
			unsynced, unheard := o.unsynced(origin)
			exists := at != nil || o.exists(name)
			if !exists || unsynced && o.open(name) {
				hosts = append(hosts, fmt.Sprintf("%s true %t %t", name, unsynced, unheard && !exists))
			}
			continue
		case at.nameServer:
			ttl = min(ttl, o.negativeTTL(origin))
			for _, ip := range o.config.NameServer {
				add(nil, ip)
			}
			continue
		case at.offer == nil, at.addressed && reachedAt[name] > 8, live && o.stale(at.offer):
			continue
		}
		ttl = min(ttl, o.ttl(at.offer))
		if at.ip.IsValid() {
			add(at.offer, at.ip)
		}
		if !at.addressed {
			continue
		}
		for _, ep := range at.endpoints {
			if ip, ok := ep.Address.IP(); ok {
				add(at.offer, ip)
			}
			if host, ok := ep.Address.Host(); ok {
				if _, ok := reachedAt[host.String()]; !ok {
					reachedAt[host.String()] = reachedAt[name] + 1
					queue = append(queue, host.String())
				}
			}
		}
	}
	slices.Sort(hosts)
	return reached{ips, hosts, ttl, refused}
}

// texts has rows 3.1 to 3.3.
func texts(at *owned) [][]string {
	if at.instance != nil {
		return [][]string{instanceText(at.instance)}
	}
	s := at.offer.service
	first := []string{"txtvers=1", "name=" + s.Name}
	if s.Description != "" {
		first = append(first, "desc="+s.Description)
	}
	numbered := func(key string, values []string) {
		n := 0
		for _, v := range values {
			if v == "" {
				continue
			}
			n++
			if n == 1 {
				first = append(first, key+"="+v)
			} else {
				first = append(first, fmt.Sprintf("%s%d=%s", key, n, v))
			}
		}
	}
	numbered("tag", s.Tags)
	labels := foldedPairs(s.Labels)
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if labels[key] != "" {
			first = append(first, "label."+key+"="+labels[key])
		}
	}
	numbered("san", s.SANs)
	var rest [][]string
	for i := range s.Instances {
		rest = append(rest, instanceText(&s.Instances[i]))
	}
	slices.SortFunc(rest, slices.Compare)
	return append([][]string{escaped(first)}, slices.CompactFunc(rest, slices.Equal)...)
}

func instanceText(in *federation.Instance) []string {
	text := []string{"txtvers=1"}
	if !in.Unnamed {
		text = append(text, "id="+in.ID)
	}
	text = append(text, "protocol="+in.Protocol.String())
	metadata := foldedPairs(in.Metadata)
	for _, key := range []string{"sni", "hostname", "port"} {
		if metadata[key] != "" {
			text = append(text, key+"="+metadata[key])
		}
		delete(metadata, key)
	}
	if in.Description != "" {
		text = append(text, "desc="+in.Description)
	}
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		if metadata[key] != "" {
			text = append(text, "md."+key+"="+metadata[key])
		}
	}
	return escaped(text)
}

func foldedPairs(pairs []federation.Pair) map[string]string {
	folded := make(map[string]string)
	for _, p := range pairs {
		if strings.ContainsFunc(p.Key, func(r rune) bool { return r <= ' ' || r > '~' || r == '=' }) || p.Key == "" {
			continue
		}
		if _, ok := folded[strings.ToLower(p.Key)]; !ok {
			folded[strings.ToLower(p.Key)] = p.Value
		}
	}
	return folded
}

func escaped(text []string) []string {
	for i := range text {
		text[i] = strings.ReplaceAll(text[i], `\`, `\\`)
	}
	return text
}

// chaos makes random catalogs of so few labels that everything collides.
type chaos struct {
	*rand.Rand
	oracle
	lasting bool // nothing expires
}

func newChaos(seed uint64) *chaos { return newChaosFrom(rand.NewPCG(seed, 0)) }

func newChaosFrom(source rand.Source) *chaos {
	c := &chaos{Rand: rand.New(source)}
	zones := [][][]string{
		{{"z"}, {"z"}, {"z"}},
		{{"z"}, {"a.z"}},
		{{"z", "b.a.z"}, {"z"}, {"z", "b.a.z"}},
		{{"."}, {"z"}, {"."}},
		{{"z", "y"}, {"y"}},
		{{"a.z"}, {"b.z", "z"}, {"z"}},
	}[c.IntN(6)]
	for i := range zones {
		owner := zone.Owner{
			ID: fmt.Sprintf("o%d", i+1), TTL: pick(c, uint32(20), 40), NegativeTTL: pick(c, uint32(5), 25),
			Retention: pick(c, 0, 10*time.Second, time.Hour),
		}
		for _, name := range zones[i] {
			owner.Origins = append(owner.Origins, origin(name))
		}
		if c.IntN(3) == 0 {
			owner.Renames = []zone.Rename{{From: origin("y"), To: origin(pick(c, "z", "."))}, {From: origin("a.z"), To: origin(pick(c, "b.z", "y"))}}
		}
		if c.IntN(2) == 0 {
			refused := pick(c, netip.MustParseAddr("1.0.0.1"), netip.MustParseAddr("2001:db8::53"))
			owner.Admits = func(ip netip.Addr) bool { return ip != refused }
		}
		c.config.Owners = append(c.config.Owners, owner)
	}
	c.config.NameServer = []netip.Addr{netip.MustParseAddr("192.0.2.53"), netip.MustParseAddr("2001:db8::53")}
	c.statuses = make([]zone.Status, len(zones))
	return c
}

func pick[T any](c *chaos, values ...T) T { return values[c.IntN(len(values))] }

// some returns up to n results of f.
func some[T any](c *chaos, n int, f func() T) []T {
	var values []T
	for range c.IntN(n + 1) {
		values = append(values, f())
	}
	return values
}

// step changes one thing, in the builder and in the oracle.
func (c *chaos) step(b *zonetest.Builder) {
	c.cache = nil
	owner := c.IntN(len(c.config.Owners))
	name := pick(c, "s1", "s2", "s3", "s4", "s5")
	at := c.offered(owner, name)
	switch n := c.IntN(13); {
	case n < 7:
		o := offer{owner, c.service(name), uint64(1 + c.IntN(3))}
		if at >= 0 && c.IntN(3) == 0 {
			o.service = c.offers[at].service
		}
		c.put(b, o)
	case n < 9:
		if at >= 0 {
			c.offers = slices.Delete(c.offers, at, at+1)
		}
		b.Remove(owner, name)
	case n < 11:
		s := zone.Status{Live: uint64(c.IntN(4)), Known: c.IntN(4) > 0}
		if c.IntN(3) == 0 {
			s.Lost = now
		}
		if !c.lasting && c.IntN(2) == 0 {
			left := pick(c, 500, 999, 1000, 5900, 35_000)
			s.Expires = now.Add(time.Duration(left) * time.Millisecond)
		}
		if c.IntN(3) == 0 {
			s.Grace = now.Add(time.Duration(c.IntN(3)-1) * time.Second)
		}
		c.statuses[owner] = s
		b.SetStatus(owner, s)
	case n < 12:
		b.Publish(now)
	default:
		c.claim(b, owner)
	}
}

// claim has an owner, which may have expired, and one that does not come before it offer
// the same instance of the same fqdn. The second has a service of that name, too.
func (c *chaos) claim(b *zonetest.Builder, owner int) {
	label := pick(c, "a", "b")
	above := join(pick(c, "a", "b"), pick(c, c.config.Owners[owner].Origins...).String())
	put := func(owner int, name, fqdn string) {
		s := c.service(name)
		s.FQDN, s.Instances[0].ID = origin(fqdn), label
		c.put(b, offer{owner, s, uint64(1 + c.IntN(3))})
	}
	other := owner + c.IntN(len(c.config.Owners)-owner)
	put(owner, "s1", above)
	put(other, "s2", above)
	put(other, "s3", label+"."+above)
	if !c.lasting && c.IntN(2) == 0 {
		c.statuses[owner] = zone.Status{Live: 4, Known: true, Expires: now}
		b.SetStatus(owner, c.statuses[owner])
	}
}

// offered returns the index of the offer of a service, or -1.
func (c *chaos) offered(owner int, name string) int {
	return slices.IndexFunc(c.offers, func(o offer) bool { return o.owner == owner && o.service.Name == name })
}

// put offers a service in place of an offer of the same name, or in another generation where it
// is the same.
func (c *chaos) put(b *zonetest.Builder, o offer) {
	if at := c.offered(o.owner, o.service.Name); at >= 0 {
		same := packed.PackService(c.offers[at].service) == packed.PackService(o.service)
		if c.offers[at] = o; same && c.IntN(2) == 0 {
			b.Confirm(o.owner, o.service.Name, o.generation)
			return
		}
	} else {
		c.offers = append(c.offers, o)
	}
	b.Put(o.owner, o.service, o.generation)
}

func (c *chaos) service(name string) *federation.Service {
	s := &federation.Service{
		Name: name, FQDN: origin(c.name()),
		Tags: some(c, 2, func() string { return pick(c, "", "t", `\1`) }), SANs: some(c, 2, func() string { return "n" }),
		Labels: c.pairs(), Description: pick(c, "", "d"),
	}
	for range 1 + c.IntN(3) {
		in := federation.Instance{
			ID:       pick(c, "a", "B", "b", "b.", "a.b", "b.a", "A.B", "addr", "x.addr", "1-0-0-1", "dns", "ns.dns", "_x", "a b", "x.b", "-"),
			Protocol: pick(c, federation.HTTP, federation.MONGO, federation.TCP), Metadata: c.pairs(),
			EndpointSelector: some(c, 2, func() string { return pick(c, "p", "q", "r") }), Description: pick(c, "", "d"),
			Unnamed: c.IntN(8) == 0,
		}
		s.Instances = append(s.Instances, in)
	}
	for range 1 + c.IntN(3) {
		at := pick(c, "1.0.0.1", "1.0.0.2", "2001:db8::1", "ext.example", "1-0-0-1.addr."+c.name(), "1-0-0-1.addr."+s.FQDN.String(), c.name(), c.name(), "ns.dns."+pick(c, "z", "y", "a.z"))
		s.Endpoints = append(s.Endpoints, federation.Endpoint{
			Address: address(at), Port: uint16(1 + c.IntN(2)), Labels: some(c, 2, func() string { return pick(c, "p", "q") }),
		})
	}
	return s
}

// name is a name in one of the zones, or almost.
func (c *chaos) name() string {
	labels := some(c, 3, func() string { return pick(c, "a", "a", "b", "b", "addr", "1-0-0-1") })
	if c.IntN(12) == 0 {
		labels = append(labels, "dns")
	}
	return strings.Join(append(labels, pick(c, "z", "z", "z", "y")), ".")
}

// pairs are sorted by key.
func (c *chaos) pairs() []federation.Pair {
	all := make(map[string]string)
	for range c.IntN(4) {
		all[pick(c, "K", "k", "l", "a=b", "\u212a", "SNI", "sni", "ho\u017ftname", "port", `\`, "")] = pick(c, "", "v", `\065`)
	}
	var pairs []federation.Pair
	for _, key := range slices.Sorted(maps.Keys(all)) {
		pairs = append(pairs, federation.Pair{Key: key, Value: all[key]})
	}
	return pairs
}

// names returns what the zone has, what is around that, and what it may not
// have, each once.
func (c *chaos) names() []string {
	names := map[string]bool{".": true, "z.": true, "nope.z.": true, "other.": true, `a\.z.`: true, `_tcp\.a.z.`: true, "*.z.": true}
	add := func(name string) {
		for name != "" {
			names[name] = true
			_, name, _ = strings.Cut(name, ".")
		}
	}
	for name := range c.written() {
		add(name)
		for _, label := range []string{"a", "x", "_tcp", "_http._tcp", "addr", "1-0-0-1.addr", "1-0-0-2.addr", "_mongodb._tcp.a", "_tcp._tcp"} {
			add(join(label, name))
		}
	}
	for i := range c.offers {
		add(c.offers[i].service.FQDN.String())
		if name, ok := c.publishedAs(&c.offers[i]); ok {
			for _, in := range c.offers[i].service.Instances {
				add(join(strings.ReplaceAll(strings.ToLower(in.ID), " ", `\032`), name))
			}
		}
	}
	all := slices.Sorted(maps.Keys(names))
	c.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(len(all), 60)]
}

// String shows the catalog for the message of a failure.
func (c *chaos) String() string {
	var b strings.Builder
	for i, o := range c.config.Owners {
		fmt.Fprintf(&b, "owner %d %v renames %v status %+v\n", i, o.Origins, o.Renames, c.statuses[i])
	}
	for i := range c.offers {
		o := &c.offers[i]
		name, ok := c.publishedAs(o)
		fmt.Fprintf(&b, "offer %d %s at %s (%t) generation %d\n", o.owner, o.service.Name, name, ok, o.generation)
		for _, ep := range o.service.Endpoints {
			fmt.Fprintf(&b, "    %s %d %v\n", ep.Address, ep.Port, ep.Labels)
		}
		for _, in := range o.service.Instances {
			fmt.Fprintf(&b, "    %q %s %v %v\n", in.ID, in.Protocol, in.EndpointSelector, in.Metadata)
		}
	}
	return b.String()
}
