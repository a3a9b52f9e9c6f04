package zone

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// Builder holds the offers of all owners of one server block and publishes
// versions of the zone. It belongs to one goroutine.
type Builder struct {
	config  Config
	origins origins
	owners  []contributor
	index   *indexWriter // what is not yet published included
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
	b := &Builder{config: config, index: newIndexWriter(), changed: true}
	for i := range config.Owners {
		o := &config.Owners[i]
		b.owners = append(b.owners, contributor{
			view: view{
				id: o.ID, fullTTL: o.TTL, ttl: liveTTL(o.TTL, o.Retention),
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
	e := compile(s, fqdn.String(), b.origins, owner, generation)
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
		if (e.generation < c.Live) != (e.generation < s.Live) && b.index.get(e.fqdn()).first == e {
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
// would follow (RFC 1982). Due tells when that is.
func (b *Builder) Publish(now time.Time) *Zone {
	serial := uint32(now.Unix()) //nolint:gosec // serial arithmetic wraps (RFC 1982)
	for i := range b.origins {
		o := &b.origins[i]
		if o.dirty && (o.serial == 0 || int32(serial-o.serial) > 0) { //nolint:gosec // RFC 1982 section 3.2
			o.serial, o.dirty = serial, false
			b.changed = true
		}
	}
	if !b.changed {
		return b.current
	}
	z := &Zone{index: b.index.publish(), origins: slices.Clone(b.origins), owners: make([]view, len(b.owners))}
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
		if o := &b.origins[i]; o.dirty {
			if at := time.Unix(int64(o.serial)+1, 0); due.IsZero() || at.Before(due) {
				due = at
			}
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
	n := b.index.get(fqdn)
	var buf [2][4]*entry // spares an allocation for all but a few names
	before := n.offers(buf[0][:0])
	after := slices.DeleteFunc(append(buf[1][:0], before...), func(o *entry) bool { return o == old })
	if old != nil {
		b.count(old, -1)
		delete(b.owners[old.owner].entries, old.service.Name)
	}
	if e != nil {
		b.count(e, +1)
		b.owners[e.owner].entries[e.service.Name] = e
		at, _ := slices.BinarySearchFunc(after, e, byPrecedence)
		after = slices.Insert(after, at, e)
	}
	o := b.origins.of(fqdn)
	b.assign(fqdn, o, n, after)
	b.shadow(fqdn, o, before, after)
	b.changed = true
	o.dirty = o.dirty || !b.same(first(before), first(after))
}

// assign gives a name, which has the node n or is new, one of these offers.
func (b *Builder) assign(name string, o *origin, n *node, offers []*entry) {
	children := 0
	if n == nil {
		b.link(name, o)
	} else {
		children = n.children
	}
	switch {
	case len(offers) == 1 && children == 0:
		b.index.set(&offers[0].home)
	case len(offers) > 0:
		others := slices.Clone(offers[1:])
		b.index.set(&node{name: name, first: offers[0], others: &others, children: children})
	case children > 0:
		b.index.set(&node{name: name, children: children})
	default:
		b.index.delete(name)
		b.unlink(name, o)
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
		n := b.index.get(name)
		if n != nil {
			more := *n
			more.children++
			b.index.set(&more)
			return
		}
		b.index.set(&node{name: name, children: 1})
	}
}

// unlink is the reverse of link, for a node that was deleted.
func (b *Builder) unlink(name string, o *origin) {
	for name != o.name {
		name = parent(name)
		n := b.index.get(name)
		if n.children > 1 || n.first != nil {
			less := *n
			less.children--
			b.index.set(&less)
			return
		}
		b.index.delete(name)
	}
}

// count adds or takes away what an entry leaves unpublished by itself, and the
// instance names that services have already.
func (b *Builder) count(e *entry, n int) {
	f := &b.owners[e.owner].faults
	for kind, k := range e.faults {
		f.add(kind, n*k)
	}
	for i := range e.instances {
		if node := b.index.get(below(e.instances[i].label, e.fqdn())); node != nil && node.first != nil {
			f.add(FaultInstanceName, n)
		}
	}
}

// shadow counts what a change of the offers at one name does to others: all but
// the first offer are shadowed, and so are the instances of services above
// that have the name.
func (b *Builder) shadow(fqdn string, o *origin, before, after []*entry) {
	for _, e := range before[min(1, len(before)):] {
		b.owners[e.owner].faults.add(FaultFQDN, -1)
	}
	for _, e := range after[min(1, len(after)):] {
		b.owners[e.owner].faults.add(FaultFQDN, +1)
	}
	n := min(1, len(after)) - min(1, len(before))
	if n == 0 {
		return
	}
	for at := fqdn; at != o.name; {
		at = parent(at)
		for _, e := range b.index.get(at).offers(nil) {
			if _, ok := e.instance(relative(fqdn, at)); ok {
				b.owners[e.owner].faults.add(FaultInstanceName, n)
			}
		}
	}
}
