package zone_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/zonetest"
)

// sharedModel has owners that share some names, and does what may happen to them. It says
// itself, in the simplest way, what has to be answered: from the catalogs, from who is lost, and from the rules of
// docs/shared.md.
type sharedModel struct {
	*rand.Rand

	b      *zonetest.Builder
	owners []*sharedOwner
	at     time.Time
	named  int // owners, ever
	copies secondaries

	sites   map[string]*site // since the last step
	reached map[string]led
}

// sharedOwner is an owner, with what the builder has to know of it.
type sharedOwner struct {
	zone.Owner

	offers      map[string]*federation.Service // by name
	generation  uint64                         // of the offers
	fresh       map[string]bool                // the offers of the next generation: the owner is lost, and has sent them again
	known       bool
	lost, grace time.Time // zero: it is there; nothing waits for it
	refuses     netip.Addr
}

const sharedRetention, sharedGrace = 90 * time.Second, 30 * time.Second

func newSharedModel(source rand.Source) *sharedModel {
	m := &sharedModel{Rand: rand.New(source), at: now, copies: newSecondaries()}
	for range 2 + m.IntN(3) {
		m.add()
	}
	for _, o := range m.owners {
		o.known, o.grace = true, time.Time{}
	}
	m.reload()
	return m
}

// add puts an owner that is not known yet somewhere into the configuration.
func (m *sharedModel) add() {
	o := &sharedOwner{offers: make(map[string]*federation.Service), fresh: make(map[string]bool), generation: 1, grace: m.at.Add(sharedGrace)}
	o.ID = fmt.Sprint("o", m.named)
	o.refuses = netip.MustParseAddr(pickOne(m, "192.0.2.1", "192.0.2.2", "2001:db8::1"))
	m.named++
	m.owners = slices.Insert(m.owners, m.IntN(len(m.owners)+1), o)
}

// reload makes a builder with another configuration: of its owners, some share other names, or in
// another way.
func (m *sharedModel) reload() {
	enough := 1 + m.IntN(4)
	for _, o := range m.owners {
		if len(o.Origins) > 0 && m.IntN(2) == 0 {
			o.Sharing.Min = enough // which all of them have
			continue
		}
		var names []string
		for _, name := range []string{"n0.fed.example", "n1.fed.example", "*.fed.example"} {
			if m.IntN(5) > 1 {
				names = append(names, name)
			}
		}
		o.Owner = sharer(o.ID, strings.Join(names, " "), func(s *zone.Sharing) {
			s.Min = enough
			for range m.IntN(3) {
				s.Tiers = append(s.Tiers, zone.TierRule{N: m.IntN(3), Label: []string{"", "x", "y"}[m.IntN(3)]})
			}
		})
		o.Retention = sharedRetention
		o.Admits = func(ip netip.Addr) bool { return ip != o.refuses }
	}
	m.build()
}

// restart makes a builder as after the start of a process, with what the owners had when it ended.
func (m *sharedModel) restart() {
	for _, o := range m.owners {
		o.grace = m.at.Add(sharedGrace)
		if !o.known {
			clear(o.offers)
		} else if o.lost.IsZero() {
			o.lost = m.at
		}
		clear(o.fresh)
	}
	m.build()
}

// build makes a builder that knows what there is.
func (m *sharedModel) build() {
	serials := make(map[string]uint32)
	if m.b != nil {
		serials["fed.example."] = m.b.Publish(m.at).SOA("fed.example.").Serial
	}
	m.b = zonetest.NewBuilder(m.config(), serials)
	for i, o := range m.owners {
		for name, s := range o.offers {
			if m.b.Put(i, s, o.generation); o.fresh[name] {
				m.b.Confirm(i, name, o.generation+1)
			}
		}
		m.b.SetStatus(i, m.status(i))
	}
}

// replica makes a builder that comes to the same state in another way.
func (m *sharedModel) replica() *zonetest.Builder {
	b := zonetest.NewBuilder(m.config(), nil)
	var todo []func()
	for i, o := range m.owners {
		for name, s := range o.offers {
			todo = append(todo, func() {
				if m.IntN(3) == 0 {
					b.Put(i, m.service(name), o.generation)
					b.Publish(m.at)
				}
				if b.Put(i, s, o.generation); o.fresh[name] {
					b.Confirm(i, name, o.generation+1)
				}
			})
		}
		todo = append(todo, func() {
			if m.IntN(3) == 0 {
				b.SetStatus(i, zone.Status{Live: o.generation + 1, Known: true, Lost: m.at, Expires: m.at.Add(time.Duration(m.IntN(3)) * time.Second)})
				b.Publish(m.at)
			}
			b.SetStatus(i, m.status(i))
		})
	}
	for _, k := range m.Perm(len(todo)) {
		if todo[k](); m.IntN(4) == 0 {
			b.Publish(m.at)
		}
	}
	return b
}

func (m *sharedModel) config() (c zone.Config) {
	for _, o := range m.owners {
		c.Owners = append(c.Owners, o.Owner)
	}
	return c
}

// status returns what the builder has to know of an owner.
func (m *sharedModel) status(i int) zone.Status {
	o := m.owners[i]
	s := zone.Status{Live: o.generation, Known: o.known, Grace: o.grace}
	if !o.lost.IsZero() {
		s.Live, s.Lost, s.Expires = o.generation+1, o.lost, o.lost.Add(sharedRetention)
	}
	return s
}

func pickOne[T any](m *sharedModel, values ...T) T { return values[m.IntN(len(values))] }

// offerNames are those of the services that each owner may have, in order.
var offerNames = []string{"s0", "s1"}

// sharedNames are where services are. Each may have those behind it as hosts.
var sharedNames = []string{"n0.fed.example.", "n1.fed.example.", "n2.fed.example."}

// service makes a service at one of the names.
func (m *sharedModel) service(name string) *federation.Service {
	at := pickOne(m, 0, 0, 1, 2)
	hosts := append([]string{"h0.example.net", "h1.example.net"}, sharedNames[at+1:]...)
	s := name + " " + sharedNames[at]
	for range 1 + m.IntN(3) {
		to := pickOne(m, "192.0.2.1", "192.0.2.2", "192.0.2.3", "2001:db8::1", "2001:db8::2")
		if m.IntN(3) == 0 {
			to = pickOne(m, hosts...)
		}
		s += fmt.Sprintf(" %s@%d[%s]", to, 80+m.IntN(2), pickOne(m, "x", "y", "z", "x,y"))
	}
	for _, id := range pickOne(m, []string{"v0", "v1"}, []string{"V1"}, []string{"v1", "V1"}, []string{"nameless"}) {
		s += fmt.Sprintf(" %s/%s[%s]", id, pickOne(m, "HTTP", "GRPC"), pickOne(m, "", "x", "q"))
	}
	of := service(s)
	if in := &of.Instances[0]; in.ID == "nameless" {
		in.ID = "name less"
	}
	of.Description, of.Instances[0].Description = fmt.Sprint("d", m.IntN(3)), fmt.Sprint("d", m.IntN(3))
	if m.IntN(4) == 0 {
		of.Instances = append(of.Instances, federation.Instance{Unnamed: true, Protocol: federation.TCP, Description: fmt.Sprint("d", m.IntN(3))})
	}
	return of
}

// serviceAt returns what an owner has at a name, unless that has expired.
func (m *sharedModel) serviceAt(i int, fqdn string) *federation.Service {
	o := m.owners[i]
	for _, name := range offerNames {
		s := o.offers[name]
		if s != nil && s.FQDN.String() == fqdn && !(o.stale(s) && o.lost.Add(sharedRetention).Sub(m.at) < time.Second) {
			return s
		}
	}
	return nil
}

// stale reports whether an owner is lost and has not sent a service since.
func (o *sharedOwner) stale(s *federation.Service) bool { return !o.lost.IsZero() && !o.fresh[s.Name] }

// site is a name as the owners have it that are answered there.
type site struct {
	fqdn   string
	owners []int // in order
	shared bool
	all    []*spot
}

// spot is one endpoint of a name.
type spot struct {
	federation.Endpoint // the labels are of no use

	sayers []int // owners
	rank   int   // the best one
}

func (m *sharedModel) site(fqdn string) *site {
	if at := m.sites[fqdn]; at != nil {
		return at
	}
	at := &site{fqdn: fqdn}
	m.sites[fqdn] = at
	for i, o := range m.owners {
		if m.serviceAt(i, fqdn) == nil {
			continue
		}
		shares := slices.ContainsFunc(o.Sharing.Names, func(p pattern.Name) bool { return p.Matches(origin(fqdn)) })
		if len(at.owners) == 0 {
			at.shared = shares // it, or those that share, have the name
		} else if !shares || !at.shared {
			continue
		}
		at.owners = append(at.owners, i)
	}
	for _, i := range at.owners {
		for _, e := range m.serviceAt(i, fqdn).Endpoints {
			n := slices.IndexFunc(at.all, func(s *spot) bool { return s.Address == e.Address && s.Port == e.Port })
			if n < 0 {
				n = len(at.all)
				at.all = append(at.all, &spot{Endpoint: e, rank: 1000})
			}
			s := at.all[n]
			if !slices.Contains(s.sayers, i) {
				s.sayers = append(s.sayers, i)
			}
			rank := 0
			for _, tier := range m.owners[i].Sharing.Tiers {
				if at.shared && (tier.Label == "" || slices.Contains(e.Labels, tier.Label)) {
					rank = tier.N
					break
				}
			}
			if at.shared && m.isStale(i, fqdn) {
				rank += 10
			}
			s.rank = min(s.rank, rank)
		}
	}
	return at
}

func (m *sharedModel) isStale(i int, fqdn string) bool {
	return m.owners[i].stale(m.serviceAt(i, fqdn))
}

// isLive reports whether one of some owners is not lost.
func (m *sharedModel) isLive(fqdn string, owners []int) bool {
	return slices.ContainsFunc(owners, func(i int) bool { return !m.isStale(i, fqdn) })
}

// ttl returns the least of some owners.
func (m *sharedModel) ttl(fqdn string, owners []int) int {
	ttl := 30
	for _, i := range owners {
		if m.isStale(i, fqdn) {
			ttl = min(ttl, int(m.owners[i].lost.Add(sharedRetention).Sub(m.at)/time.Second))
		}
	}
	return ttl
}

// named returns the instances of a service that have the name, or all if that is empty, of a protocol, or of any if
// that is empty: one of the service has it, the one with the smallest ID.
func named(s *federation.Service, label, protocol string) (all []*federation.Instance) {
	var has *federation.Instance
	for i := range s.Instances {
		in := &s.Instances[i]
		if label == "" {
			if in.Protocol.String() == protocol {
				all = append(all, in)
			}
		} else if !in.Unnamed && strings.EqualFold(in.ID, label) && (has == nil || in.ID < has.ID) {
			has = in
		}
	}
	if has != nil && (protocol == "" || has.Protocol.String() == protocol) {
		all = append(all, has)
	}
	return all
}

// spots returns the endpoints of a name below the fqdn: of an instance, of a protocol, of both, or of neither.
func (m *sharedModel) spots(at *site, label, protocol string) (some []*spot) {
	if label == "" && protocol == "" {
		return at.all
	}
	for _, s := range at.all {
		if slices.ContainsFunc(at.owners, func(i int) bool {
			of := m.serviceAt(i, at.fqdn)
			return slices.ContainsFunc(named(of, label, protocol), func(in *federation.Instance) bool {
				return slices.ContainsFunc(selected(of, in), func(e federation.Endpoint) bool { return e.Address == s.Address && e.Port == s.Port })
			})
		}) {
			some = append(some, s)
		}
	}
	return some
}

// asking is how a question is meant.
type asking struct {
	transfer bool            // hosts elsewhere are left out
	dead     map[string]bool // by owner and host: they lead nowhere
}

// led is what endpoints lead to.
type led struct {
	ips     map[netip.Addr]bool // that are answered, and whether one way there is live
	refused map[netip.Addr]bool // that an owner may not publish
	hosts   map[string]bool     // elsewhere, as ips, by owner
	ttl     int
}

func newLed() led {
	return led{make(map[netip.Addr]bool), make(map[netip.Addr]bool), make(map[string]bool), 30}
}

func (l *led) add(more led, live bool) {
	for ip, ok := range more.ips {
		l.ips[ip] = l.ips[ip] || ok && live
	}
	for h, ok := range more.hosts {
		l.hosts[h] = l.hosts[h] || ok && live
	}
	maps.Copy(l.refused, more.refused)
	l.ttl = min(l.ttl, more.ttl)
}

// reach returns what a host leads to that an owner says somewhere.
func (m *sharedModel) reach(q asking, owner int, host string, qtype uint16) (l led) {
	key, asked := fmt.Sprint(owner, " ", host), fmt.Sprint(owner, " ", host, " ", qtype, q)
	if known, ok := m.reached[asked]; ok {
		return known
	}
	l = newLed()
	defer func() { m.reached[asked] = l }()
	at := m.site(host)
	if len(at.owners) == 0 {
		if !q.dead[key] {
			l.hosts[key] = true
		}
		return l
	}
	spots := upto(at.all, m.last(q, at, at.all, owner))
	l.ttl = m.ttl(host, parts(spots, qtype))
	for _, s := range spots {
		live := m.isLive(host, s.sayers)
		if to, ok := s.Address.Host(); ok {
			l.add(m.reach(q, owner, to.String(), qtype), live)
		} else if ip, _ := s.Address.IP(); slices.Contains(s.sayers, owner) || ip != m.owners[owner].refuses {
			l.ips[ip] = l.ips[ip] || live
		} else {
			l.refused[ip] = true
		}
	}
	return l
}

func upto(spots []*spot, last int) []*spot {
	return slices.DeleteFunc(slices.Clone(spots), func(s *spot) bool { return s.rank > last })
}

// parts returns the owners that have a part in the answer with addresses of a type: if none has, all.
func parts(spots []*spot, qtype uint16) (owners []int) {
	var all []int
	for _, s := range spots {
		all = append(all, s.sayers...)
		if ip, ok := s.Address.IP(); !ok || qtype == dns.TypeSRV || addressType(ip) == qtype {
			owners = append(owners, s.sayers...)
		}
	}
	if owners == nil {
		return all
	}
	return owners
}

// last returns up to which rank a name is answered with addresses, for an owner that is led there, or -1: whole
// ranks until enough endpoints are live. One that leads to no address does not count.
func (m *sharedModel) last(q asking, at *site, spots []*spot, owner int) int {
	live := 0
	for rank := range 10 {
		n, leads := 0, false
		for _, s := range spots {
			if s.rank != rank {
				continue
			}
			n++
			for _, by := range s.sayers {
				if owner >= 0 {
					by = owner
				}
				if host, ok := s.Address.Host(); ok {
					l := m.reach(q, by, host.String(), dns.TypeSRV)
					leads = leads || len(l.ips) > 0 || len(l.hosts) > 0 && !q.transfer
				} else if ip, _ := s.Address.IP(); slices.Contains(s.sayers, by) || ip != m.owners[by].refuses {
					leads = true
				}
			}
		}
		if leads {
			live += n
		}
		if leads && live >= m.owners[0].Sharing.Min && at.shared {
			return rank
		}
	}
	return 1000
}

// shared answers a question for a name below an fqdn.
func (m *sharedModel) answer(q asking, at *site, label, protocol string, qtype uint16) (o outcome) {
	name := below(label, protocol, at.fqdn)
	spots := m.spots(at, label, protocol)
	o.Kind = "NODATA"
	say := func(ttl int, data string) { o.Answer = append(o.Answer, fmt.Sprintf("%s %d %s", name, ttl, data)) }
	switch qtype {
	case dns.TypeTXT:
		if protocol == "" {
			texts, ttl, live := m.texts(at, label)
			for _, txt := range texts {
				rr := &dns.TXT{Hdr: dns.RR_Header{Name: name, Rrtype: qtype, Class: dns.ClassINET}, Txt: txt}
				say(ttl, strings.TrimPrefix(data(name, []dns.RR{rr})[0], "0 "))
			}
			o.Stale = !live
		}
	case dns.TypeSRV:
		o.Stale = true
		ttl, hosts := 30, newLed()
		for _, s := range spots {
			ttl = min(ttl, m.ttl(at.fqdn, s.sayers))
		}
		for _, s := range spots {
			host, isHost := s.Address.Host()
			barred := isHost
			for _, i := range s.sayers {
				if isHost {
					l := m.reach(q, i, host.String(), qtype)
					if len(l.refused) == 0 {
						barred = false
						hosts.add(l, true)
					}
				}
			}
			o.Denied = o.Denied || barred
			if !barred {
				o.Stale = o.Stale && !m.isLive(at.fqdn, s.sayers)
				say(ttl, fmt.Sprintf("SRV %d 100 %d %s", s.rank, s.Port, target(s.Endpoint, at.fqdn)))
			}
		}
		if o.Answer == nil {
			o.Stale = !slices.ContainsFunc(spots, func(s *spot) bool { return m.isLive(at.fqdn, s.sayers) })
		}
		o.Hosts = slices.Collect(maps.Keys(hosts.hosts))
	case dns.TypeA, dns.TypeAAAA:
		if protocol != "" {
			break
		}
		l := newLed()
		near := upto(spots, m.last(q, at, spots, -1))
		l.ttl = m.ttl(at.fqdn, parts(near, qtype))
		for _, s := range near {
			if ip, ok := s.Address.IP(); ok {
				l.ips[ip] = l.ips[ip] || m.isLive(at.fqdn, s.sayers)
				continue
			}
			host, _ := s.Address.Host()
			for _, i := range s.sayers {
				l.add(m.reach(q, i, host.String(), qtype), !m.isStale(i, at.fqdn))
			}
		}
		of := func(ip netip.Addr) bool { return addressType(ip) == qtype }
		liveHere := false
		for ip, isLive := range l.ips {
			if of(ip) {
				liveHere = liveHere || isLive
				say(l.ttl, dns.Type(qtype).String()+" "+ip.String())
			}
		}
		for ip := range l.refused {
			_, found := l.ips[ip]
			o.Denied = o.Denied || of(ip) && !found
		}
		for h, isLive := range l.hosts {
			liveHere = liveHere || isLive
			o.Hosts = append(o.Hosts, fmt.Sprint(h, " ", isLive))
		}
		o.Stale = !liveHere
		if len(o.Answer)+len(o.Hosts) == 0 {
			o.Stale = !m.isLive(at.fqdn, parts(near, qtype))
		}
	}
	switch {
	case len(o.Hosts) > 0:
		o.Kind = "INDIRECT"
	case len(o.Answer) > 0:
		o.Kind = "NOERROR"
	}
	if o.Kind == "NODATA" && qtype != dns.TypeSRV && qtype != dns.TypeA && qtype != dns.TypeAAAA || protocol != "" && qtype != dns.TypeSRV {
		o.Stale = !slices.ContainsFunc(spots, func(s *spot) bool { return m.isLive(at.fqdn, s.sayers) })
	}
	slices.Sort(o.Answer)
	slices.Sort(o.Hosts)
	return o
}

// texts returns the TXT records of a name, with the TTL of the owners that they are of, and whether one of those is
// not lost: the service of the first, and each instance once, as the first has it. An instance is an ID, where case
// does not count, and a protocol.
func (m *sharedModel) texts(at *site, label string) (all [][]string, ttl int, live bool) {
	type key struct{ id, protocol string }
	known := make(map[key][]string)
	by := make(map[key]int)
	var tellers []int
	for _, i := range at.owners {
		s := m.serviceAt(i, at.fqdn)
		tell := func(in *federation.Instance) {
			k := key{strings.TrimSuffix(strings.ToLower(in.ID), "."), in.Protocol.String()}
			if in.Unnamed {
				k.id = ""
			}
			if _, ok := known[k]; !ok || !at.shared {
				if !at.shared {
					k.id += fmt.Sprint(" ", in.ID, len(known)) // each is told, but those that are equal
				}
				known[k], by[k] = instanceText(in), i
			}
		}
		if label != "" {
			continue
		}
		for j := range s.Instances { // first those that have their name
			if in := &s.Instances[j]; !in.Unnamed && slices.Contains(named(s, in.ID, ""), in) {
				tell(in)
			}
		}
		for j := range s.Instances {
			if in := &s.Instances[j]; in.Unnamed || !slices.Contains(named(s, in.ID, ""), in) {
				tell(in)
			}
		}
	}
	if label == "" {
		first := *m.serviceAt(at.owners[0], at.fqdn)
		first.Instances = nil
		all, tellers = texts(&owned{offer: &offer{service: &first}}), append(tellers, at.owners[0])
		for k, txt := range known {
			if !slices.ContainsFunc(all, func(other []string) bool { return slices.Equal(other, txt) }) {
				all = append(all, txt)
			}
			tellers = append(tellers, by[k])
		}
	} else {
		told := make(map[string]bool)
		for _, i := range at.owners {
			for _, has := range named(m.serviceAt(i, at.fqdn), label, "") {
				if !told[has.Protocol.String()] {
					told[has.Protocol.String()] = true
					in, of := m.firstWith(at, has)
					all, tellers = append(all, instanceText(in)), append(tellers, of)
				}
			}
		}
	}
	return all, m.ttl(at.fqdn, tellers), m.isLive(at.fqdn, tellers)
}

// firstWith returns the instance that is told in the place of one that is the same: of the first owner that has it.
func (m *sharedModel) firstWith(at *site, like *federation.Instance) (*federation.Instance, int) {
	for _, i := range at.owners {
		s := m.serviceAt(i, at.fqdn)
		if has := named(s, like.ID, like.Protocol.String()); len(has) > 0 {
			return has[0], i
		}
		for j := range s.Instances {
			if in := &s.Instances[j]; at.shared && !in.Unnamed && strings.EqualFold(in.ID, like.ID) && in.Protocol == like.Protocol {
				return in, i
			}
		}
	}
	return nil, 0
}

// below returns the name of an instance, of a protocol, or of both.
func below(label, protocol, fqdn string) string {
	if label != "" {
		fqdn = label + "." + fqdn
	}
	if protocol != "" {
		fqdn = "_" + strings.ToLower(protocol) + "._tcp." + fqdn
	}
	return fqdn
}

// got asks the zone.
func (m *sharedModel) got(r *zone.Result, name string) outcome {
	o := outcome{Kind: kindNames[r.Kind], Stale: r.IsStale(), Denied: r.IsDenied()}
	if r.Kind == zone.Success || r.Kind == zone.Indirect {
		for _, line := range data(name, reply.AppendAnswer(nil, r, name, 0)) {
			o.Answer = append(o.Answer, name+" "+line)
		}
	}
	for _, h := range r.Hosts() {
		line := fmt.Sprint(h.Owner, " ", h.Name)
		if r.Type != dns.TypeSRV {
			line += fmt.Sprint(" ", !h.Stale)
		}
		o.Hosts = append(o.Hosts, line)
	}
	if r.Type == dns.TypeSRV && !slices.IsSortedFunc(o.Answer, func(a, b string) int {
		return cmp.Compare(len(strings.Fields(a)[3]), len(strings.Fields(b)[3])) // of two digits if it is stale
	}) {
		o.Kind += ", not in the order of priorities"
	}
	slices.Sort(o.Answer)
	slices.Sort(o.Hosts)
	return o
}

// check publishes, and compares every answer, those after some hosts are found to lead nowhere, and what is transferred,
// as a whole and as the difference to earlier transfers.
func (m *sharedModel) check(t *testing.T) {
	t.Helper()
	z := m.b.Publish(m.at)
	m.sites, m.reached = make(map[string]*site), make(map[string]led)
	var whole []string // what is transferred, which is looked at now and then
	transfer := m.IntN(4) == 0
	for _, fqdn := range sharedNames {
		at := m.site(fqdn)
		for _, label := range []string{"", "v0", "v1"} {
			for _, protocol := range []string{"", "HTTP", "GRPC", "TCP"} {
				if len(at.owners) == 0 || len(m.spots(at, label, protocol)) == 0 {
					if r := z.Lookup(below(label, protocol, fqdn), dns.TypeSRV, m.at); r.Kind == zone.Success || r.Kind == zone.Indirect {
						t.Fatalf("%s has records", below(label, protocol, fqdn))
					}
					continue
				}
				for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeTXT} {
					m.ask(t, z, at, label, protocol, qtype)
					if transfer {
						whole = append(whole, m.answer(asking{transfer: true}, at, label, protocol, qtype).Answer...)
					}
				}
			}
		}
		for _, s := range at.all {
			if ip, ok := s.Address.IP(); ok {
				var sayers []int
				for _, other := range at.all {
					if other.Address == s.Address {
						sayers = append(sayers, other.sayers...)
					}
				}
				whole = append(whole, fmt.Sprintf("%s %d %s %s", target(s.Endpoint, fqdn), m.ttl(fqdn, sayers), dns.Type(addressType(ip)), ip))
			}
		}
	}
	if !transfer {
		return
	}
	slices.Sort(whole)
	got := transferred(z, m.at)
	if d := gocmp.Diff(slices.Compact(whole), got); d != "" {
		t.Fatalf("transfer (-want +got):\n%s\n%s", d, m)
	}
	if d := gocmp.Diff(got, transferred(m.replica().Publish(m.at), m.at)); d != "" {
		t.Fatalf("another replica (-this +other):\n%s\n%s", d, m)
	}
	m.copies.refresh(t, z, []string{"fed.example."}, m.at)
}

// transferred returns the records of services in a transfer, sorted.
func transferred(z *zone.Zone, at time.Time) []string {
	var all []dns.RR
	for rrs := range reply.FullTransfer(z, "fed.example.", at) {
		all = append(all, rrs...)
	}
	all = slices.DeleteFunc(all, func(rr dns.RR) bool {
		return rr.Header().Rrtype == dns.TypeSOA || rr.Header().Rrtype == dns.TypeNS || strings.HasPrefix(rr.Header().Name, "ns.dns.")
	})
	lines := data("", all)
	slices.Sort(lines)
	return lines
}

// ask compares one answer, and again as long as it hangs on hosts and some of them lead nowhere.
func (m *sharedModel) ask(t *testing.T, z *zone.Zone, at *site, label, protocol string, qtype uint16) {
	t.Helper()
	name, q := below(label, protocol, at.fqdn), asking{dead: make(map[string]bool)}
	for r := z.Lookup(name, qtype, m.at); ; {
		want := m.answer(q, at, label, protocol, qtype)
		if d := gocmp.Diff(want, m.got(&r, name)); d != "" {
			t.Fatalf("%s %s at %s, of %v, without %v (-want +got):\n%s\n%s", name, dns.Type(qtype), m.at.Sub(now), at.owners, q.dead, d, m)
		}
		var dead []zone.Host
		for _, h := range r.Hosts() {
			if qtype != dns.TypeSRV && m.IntN(2) == 0 {
				dead = append(dead, h)
				q.dead[fmt.Sprint(h.Owner, " ", h.Name)] = true
			}
		}
		if !r.ForgetHosts(dead, m.at) {
			if len(dead) == 0 {
				return
			}
			if after := m.answer(q, at, label, protocol, qtype); !slices.Equal(want.Answer, after.Answer) {
				t.Fatalf("%s %s: without %v other addresses are answered: %v, not %v\n%s", name, dns.Type(qtype), q.dead, after.Answer, want.Answer, m)
			}
			return
		}
	}
}

// String shows the catalogs for the message of a failure.
func (m *sharedModel) String() string {
	var b strings.Builder
	for i, o := range m.owners {
		fmt.Fprintf(&b, "owner %d shares %v in %v, min %d, refuses %s, lost %v\n", i, o.Sharing.Names, o.Sharing.Tiers, o.Sharing.Min, o.refuses, !o.lost.IsZero())
		for name, s := range o.offers {
			fmt.Fprintf(&b, "    %s at %s, again: %v", name, s.FQDN, o.fresh[name])
			for _, e := range s.Endpoints {
				fmt.Fprintf(&b, " %s@%d%v", e.Address, e.Port, e.Labels)
			}
			for _, in := range s.Instances {
				fmt.Fprintf(&b, " %s/%s%v", in.ID, in.Protocol, in.EndpointSelector)
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

func (m *sharedModel) step() {
	i, name := m.IntN(len(m.owners)), pickOne(m, offerNames...)
	o := m.owners[i]
	switch m.IntN(22) {
	default:
		o.offers[name] = m.service(name)
		delete(o.fresh, name)
		m.b.Put(i, o.offers[name], o.generation)
	case 0, 1, 2, 3:
		delete(o.offers, name)
		delete(o.fresh, name)
		m.b.Remove(i, name)
	case 4, 5, 6, 7: // the owner comes, is lost, or comes back
		switch {
		case !o.known:
			o.known = true
		case o.lost.IsZero():
			o.lost = m.at
		default:
			o.lost = time.Time{}
			clear(o.fresh)
			o.generation++
			for name := range o.offers {
				m.b.Confirm(i, name, o.generation)
			}
		}
		m.b.SetStatus(i, m.status(i))
	case 8, 9, 10, 11:
		m.at = m.at.Add(time.Duration(1+m.IntN(25)) * time.Second)
	case 12:
		switch leaves := len(m.owners) > 1; {
		case m.IntN(3) == 0 && len(m.owners) < 5:
			m.add()
		case m.IntN(2) == 0 && leaves:
			m.owners = slices.Delete(m.owners, i, i+1)
		}
		m.reload()
	case 13:
		m.restart()
	case 14, 15: // a catalog begins that is not complete
		if !o.lost.IsZero() && o.offers[name] != nil {
			o.fresh[name] = true
			m.b.Confirm(i, name, o.generation+1)
		}
	}
}

// FuzzShared is TestSharedOracle for a history made of bytes.
func FuzzShared(f *testing.F) {
	addHistories(f)
	f.Fuzz(func(t *testing.T, history []byte) {
		m := newSharedModel(bytesSource{&history})
		for range 30 {
			m.step()
			m.check(t)
		}
	})
}

// TestSharedOracle compares what happens to random owners that share names with what should,
// also through reloads and restarts.
func TestSharedOracle(t *testing.T) {
	for seed := range seeds(200) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m := newSharedModel(rand.NewPCG(seed, 1))
			for range 80 {
				m.step()
				if m.IntN(3) > 0 {
					m.check(t)
				}
			}
			for i := range m.owners {
				for _, name := range offerNames {
					m.b.Remove(i, name)
				}
			}
			empty := m.b.Publish(m.at)
			for i := range m.owners {
				if f := faults(empty, i); len(f) > 0 {
					t.Errorf("owner %d has faults %v without services", i, f)
				}
			}
		})
	}
}
