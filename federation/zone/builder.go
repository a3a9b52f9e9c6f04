package zone

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/zone/trie"
)

// Builder holds the offers of all owners of one server block and publishes
// versions of the zone. It belongs to one goroutine.
type Builder struct {
	config  Config
	origins origins
	owners  []contributor
	index   *trie.Writer[node] // what is not yet published included
	current *Zone
	changed bool // since current: the status of an owner, or the index
}

// contributor is one owner's part.
type contributor struct {
	view
	entries map[string]*entry // by name of the service; those that are published or shadowed
	refused map[string]Fault  // services that this server block does not admit
	faults  faults
}

// NewBuilder returns a builder without services. The serials continue after
// those in the map, which is by origin.
func NewBuilder(config Config, serials map[string]uint32) *Builder {
	b := &Builder{config: config, index: trie.NewWriter[node](), changed: true}
	for i := range config.Owners {
		o := &config.Owners[i]
		b.owners = append(b.owners, contributor{
			view: view{
				id: o.ID, fullTTL: o.TTL, ttl: liveTTL(o.TTL, o.Retention), admits: o.Admits,
			},
			entries: make(map[string]*entry),
			refused: make(map[string]Fault),
		})
		for _, name := range o.Origins {
			b.addOrigin(name.String(), i, o.NegativeTTL, serials[name.String()])
		}
	}
	slices.SortFunc(b.origins, func(x, y origin) int {
		return cmp.Or(cmp.Compare(len(y.name), len(x.name)), strings.Compare(x.name, y.name))
	})
	for i := range b.origins {
		// A zone within another is no part of it, but what is between the two is
		// (RFC 8020).
		name := b.origins[i].name
		if outer := b.origins.of(parent(name)); name != "." && outer != nil {
			b.link(name, outer)
		}
	}
	return b
}

func (b *Builder) addOrigin(name string, owner int, negativeTTL, serial uint32) {
	for i := range b.origins {
		if b.origins[i].name == name {
			b.origins[i].owners = append(b.origins[i].owners, owner)
			return
		}
	}
	dns := below("dns", name)
	b.origins = append(b.origins, origin{
		name: name, dns: dns, ns: below("ns", dns), mailbox: below("hostmaster", name),
		nameServer: b.config.NameServer, serial: serial, dirty: true, negativeTTL: negativeTTL, owners: []int{owner},
	})
}

// Put offers a service, instead of what the owner offered under its name
// before. An fqdn that changed is gone with the next version.
func (b *Builder) Put(owner int, s *federation.Service, generation uint64) {
	b.put(owner, s, generation, nil)
}

func (b *Builder) put(owner int, s *federation.Service, generation uint64, prepared *Prepared) {
	c := &b.owners[owner]
	fqdn, invalid := b.config.Admit(owner, s.FQDN)
	if invalid != nil {
		b.Remove(owner, s.Name)
		c.refuse(s.Name, Fault(invalid.Reason))
		return
	}
	c.admit(s.Name)
	old := c.entries[s.Name]
	if old != nil && old.service.Equal(s) {
		// The owner has confirmed it on a new stream: nothing but its life changes.
		if old.generation != generation {
			b.exchange(old.fqdn(), old, old.confirmed(generation))
		}
		return
	}
	e := prepared.take(generation)
	if e == nil {
		e = compile(s, fqdn.String(), b.origins, owner, generation)
	}
	if old != nil && old.fqdn() != e.fqdn() {
		b.exchange(old.fqdn(), old, nil)
		old = nil
	}
	b.exchange(e.fqdn(), old, e)
}

// Remove takes back what the owner offered under the name of a service.
func (b *Builder) Remove(owner int, name string) {
	c := &b.owners[owner]
	c.admit(name)
	if e := c.entries[name]; e != nil {
		b.exchange(e.fqdn(), e, nil)
	}
}

// SetStatus sets what answers need to know of an owner.
func (b *Builder) SetStatus(owner int, s Status) {
	c := &b.owners[owner]
	if c.Status == s {
		return
	}
	for _, e := range c.entries {
		if c.Live == s.Live || !b.clean(owner) {
			break
		}
		// From live to stale the TTL changes, and with it the RRsets.
		if (e.generation < c.Live) != (e.generation < s.Live) && b.index.Get(e.fqdn()).first == e {
			b.origins.of(e.fqdn()).dirty = true
		}
	}
	c.Status = s
	b.changed = true
}

// clean tells whether the serial of a zone of the owner does not have to move
// anyway.
func (b *Builder) clean(owner int) bool {
	for i := range b.origins {
		if o := &b.origins[i]; !o.dirty && slices.Contains(o.owners, owner) {
			return true
		}
	}
	return false
}

// Publish returns the version that holds all that was put before, which is the
// one of the last call when nothing was.
//
// The serial of every origin whose RRsets changed becomes the time in seconds.
// A second change within one second is published with the serial of the first,
// and gets its own when that second is over: were it one more each time, a burst
// would run ahead of the clock, and a restart behind it, where no secondary
// would follow (RFC 1982). When the clock was set back, the serial is one more
// than the last, once a second at most, so that it is no further ahead than it
// was. Due returns when a serial that has to wait can move.
func (b *Builder) Publish(now time.Time) *Zone {
	for i := range b.origins {
		if o := &b.origins[i]; o.dirty && o.move(now) {
			o.dirty = false
			b.changed = true
		}
	}
	if !b.changed {
		return b.current
	}
	z := &Zone{index: b.index.Publish(), origins: slices.Clone(b.origins), owners: make([]view, len(b.owners))}
	for i := range b.owners {
		z.owners[i] = b.owners[i].view
		z.timed = z.timed || !z.owners[i].Known || !z.owners[i].Expires.IsZero()
	}
	b.current, b.changed = z, false
	return z
}

// Due returns when Publish has a serial to move that it could not move yet, and
// false when there is none.
func (b *Builder) Due() (time.Time, bool) {
	var due time.Time
	for i := range b.origins {
		if o := &b.origins[i]; o.dirty && !o.due.IsZero() && (due.IsZero() || o.due.Before(due)) {
			due = o.due
		}
	}
	return due, !due.IsZero()
}

// Faults returns how many names and records of the owner are not published, by
// kind. The caller must not change it.
func (b *Builder) Faults(owner int) map[Fault]int { return b.owners[owner].faults }

func (c *contributor) refuse(name string, f Fault) {
	c.refused[name] = f
	c.faults.add(f, 1)
}

func (c *contributor) admit(name string) {
	if f, ok := c.refused[name]; ok {
		delete(c.refused, name)
		c.faults.add(f, -1)
	}
}

// exchange puts an offer in the place of another one of the same service, both
// of them at the fqdn. Either may be nil.
func (b *Builder) exchange(fqdn string, old, e *entry) {
	n, o := b.index.Get(fqdn), b.origins.of(fqdn)
	var buf [2][4]*entry // spares an allocation for all but a few names
	before := n.offers(buf[0][:0])
	after := slices.DeleteFunc(append(buf[1][:0], before...), func(o *entry) bool { return o == old })
	if e != nil {
		at, _ := slices.BinarySearchFunc(after, e, byPrecedence)
		after = slices.Insert(after, at, e)
	}
	// Mostly a service changes that stays where it is. Who else wants the name is
	// looked at only when that may have changed.
	settled := n != nil && slices.EqualFunc(before, after, func(x, y *entry) bool { return x.owner == y.owner })
	claim := uint32(0)
	if settled {
		claim = n.claim
	} else {
		b.tally(fqdn, o, n, -1)
	}
	if old != nil {
		b.count(old, n, -1)
		delete(b.owners[old.owner].entries, old.service.Name)
	}
	if !settled && len(after) > 0 {
		claim = b.claim(fqdn, o)
	}
	n = b.assign(fqdn, o, n, after, claim)
	if e != nil {
		b.count(e, n, +1)
		b.owners[e.owner].entries[e.service.Name] = e
	}
	if !settled {
		b.tally(fqdn, o, n, +1)
	}
	b.reclaim(n, o, old, e)
	b.changed = true
	o.dirty = o.dirty || !b.same(first(before), first(after))
}

// assign gives a name, which has the node n or is new, these offers and the
// claim. It returns the new node, or nil when there is none.
func (b *Builder) assign(name string, o *origin, n *node, offers []*entry, claim uint32) *node {
	children := uint32(0)
	if n == nil {
		b.link(name, o)
	} else {
		children = n.children
	}
	var at *item
	switch {
	case len(offers) == 1 && children == 0 && claim == 0:
		at = &offers[0].home
	case len(offers) > 0:
		at = &item{Name: name, Value: node{first: offers[0], children: children, claim: claim}}
		if len(offers) > 1 {
			others := slices.Clone(offers[1:])
			at.Value.others = &others
		}
	case children > 0:
		at = &item{Name: name, Value: node{children: children}}
	default:
		b.index.Delete(name)
		b.unlink(name, o)
		return nil
	}
	b.index.Set(at)
	return &at.Value
}

// claim returns the mark of a node for the services above that have its name,
// alive or not, published or not: look-ups look closer where there is one.
func (b *Builder) claim(name string, o *origin) uint32 {
	claim := uint32(0)
	for at := name; at != o.name; {
		at = parent(at)
		var buf [4]*entry
		for _, e := range b.index.Get(at).offers(buf[:0]) {
			if (claim == 0 || e.owner < claim-1) && e.claims(relative(name, at)) {
				claim = e.owner + 1
			}
		}
	}
	return claim
}

// reclaim marks the nodes below n anew whose names the services had, or have
// now, beside their fqdn. Either may be nil.
func (b *Builder) reclaim(n *node, o *origin, services ...*entry) {
	if n == nil || n.children == 0 {
		return // nothing is below, as mostly
	}
	for _, e := range services {
		if e == nil {
			continue
		}
		for name := range e.claimed() {
			at := b.index.Get(name)
			if at == nil || at.first == nil || b.origins.of(name) != o {
				continue
			}
			if claim := b.claim(name, o); claim != at.claim {
				b.tally(name, o, at, -1)
				b.tally(name, o, b.assign(name, o, at, at.offers(nil), claim), +1)
			}
		}
	}
}

// byPrecedence orders the offers of one name: by the order of the Corefile,
// then by the name of the service. It does not depend on who came first.
func byPrecedence(x, y *entry) int {
	return cmp.Or(cmp.Compare(x.owner, y.owner), strings.Compare(x.service.Name, y.service.Name))
}

// offers appends all offers at the node, in order of precedence. There may be no
// node.
func (n *node) offers(list []*entry) []*entry {
	if n == nil || n.first == nil {
		return list
	}
	return append(append(list, n.first), n.rest()...)
}

// first returns the offer that is published, or nil.
func first(offers []*entry) *entry {
	if len(offers) == 0 {
		return nil
	}
	return offers[0]
}

// same tells whether two offers, which may be nil, are answered alike.
func (b *Builder) same(x, y *entry) bool {
	if x == nil || y == nil {
		return x == y
	}
	live := b.owners[x.owner].Live
	return x.owner == y.owner && x.service == y.service && (x.generation < live) == (y.generation < live)
}

// link makes the names above a new node exist, up to the origin.
func (b *Builder) link(name string, o *origin) {
	for name != o.name {
		name = parent(name)
		n := b.index.Get(name)
		if n != nil {
			more := item{Name: name, Value: *n}
			more.Value.children++
			b.index.Set(&more)
			return
		}
		b.index.Set(&item{Name: name, Value: node{children: 1}})
	}
}

// unlink is the reverse of link, for a node that was deleted.
func (b *Builder) unlink(name string, o *origin) {
	for name != o.name {
		name = parent(name)
		n := b.index.Get(name)
		if n.children > 1 || n.first != nil {
			less := item{Name: name, Value: *n}
			less.Value.children--
			b.index.Set(&less)
			return
		}
		b.index.Delete(name)
	}
}

// count adds or takes away, n times, what an entry leaves unpublished by itself,
// and those of its instances whose names are taken. Its fqdn has the node at, if
// any.
func (b *Builder) count(e *entry, at *node, n int) {
	f := &b.owners[e.owner].faults
	for kind, k := range e.faults {
		f.add(kind, n*k)
	}
	if at == nil || at.children == 0 {
		return
	}
	for i := range e.instances {
		if taken(b.index.Get(below(e.instances[i].label, e.fqdn())), e) {
			f.add(FaultInstanceName, n)
		}
	}
}

// taken reports whether the name of an instance of e, which has the node n, if
// any, is that of a service instead.
func taken(n *node, e *entry) bool { return n != nil && n.first != nil && n.first.owner <= e.owner }

// tally adds or takes away, n times, what the offers at a node leave unpublished:
// all of them but the first, the first when an earlier owner has the name
// already, and the instances of services above that have it no more. There may
// be no node.
func (b *Builder) tally(name string, o *origin, at *node, n int) {
	if at == nil || at.first == nil {
		return
	}
	for _, e := range at.rest() {
		b.owners[e.owner].faults.add(FaultFQDN, n)
	}
	if at.claimed(at.first) {
		b.owners[at.first.owner].faults.add(FaultInstanceName, n)
	}
	for up := name; up != o.name; {
		up = parent(up)
		var buf [4]*entry
		for _, e := range b.index.Get(up).offers(buf[:0]) {
			if _, ok := e.instance(relative(name, up)); ok && taken(at, e) {
				b.owners[e.owner].faults.add(FaultInstanceName, n)
			}
		}
	}
}
