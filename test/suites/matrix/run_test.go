package matrix

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/dns/agent"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/owner"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/faultowner"
)

// run is one cell while it runs.
type run struct {
	cell
	figures

	t         *testing.T
	passports *passports
	network   *network
	random    *rand.Rand
	config    agent.OwnerConfig
	services  int                  // numbered ones of the catalog; there are three with names beside them
	too       faultowner.Behaviour // of the other replica, where it misbehaves as well
	first     bool                 // it comes before the neighbour in the Corefile
	zone      string
	next      string    // the zone of the neighbour
	fault     bool      // the owners misbehave
	damaged   bool      // the consumer's own files cannot be used
	blind     bool      // the process has started since then, so it has no certificate
	failing   bool      // TLS handshakes have failed: the next attempt may be minutes away
	healthy   time.Time // since when there is a good replica; zero where there is none
	names     []string  // that are looked up

	agent         *agent.Agent
	blocks        []*agent.Block
	configuration int
	stops         map[string]func() // by address
	registry      *registry.Registry
	version       int  // of the neighbour's service that changes
	lives         int  // processes so far
	parked        int  // attempts at the time at which it was parked; -1 while it is not
	fresh         bool // there was no tick since the process has started

	mu       sync.Mutex // guards the fields below, and some that other goroutines read
	oracle   *oracle
	previous map[string][]option // what was allowed since the last tick, by name
	samples  []sample            // taken since then
	dead     bool                // enough is wrong: the rest is not checked
}

// sample is an answer that was seen while goroutines ran.
type sample struct {
	at     time.Time
	name   string
	answer answer
	what   string // when it was seen, in words
}

// newRun draws the parameters of a cell. file is for the property persist.
func newRun(t *testing.T, c cell, p *passports, file string) *run {
	t.Helper()
	r := &run{
		t: t, cell: c, passports: p, random: c.random(),
		stops: make(map[string]func()), parked: -1, previous: make(map[string][]option),
	}
	r.network = &network{
		closed: r.closed, listeners: make(map[string]*bufconn.Listener), dialed: make(map[string]int),
		made: make(map[string]int), open: make(map[string]int),
	}
	p.mend(t)
	r.services = pick(r.random, 3, 24)
	r.too = pick(r.random, faultowner.Behaviours...)
	// A name that both owners publish goes to the first one in the Corefile. So a thief
	// must not be first: it would get the names of the neighbour.
	r.first = r.random.IntN(2) == 0 && c.behaviour.Name != "thief" && r.too.Name != "thief"
	r.zone, r.next = "fed.example", "fed.example"
	if c.beside == "apart" {
		r.next = "next.example"
	}
	r.config = agent.OwnerConfig{
		Identity: mtls.Origin{Files: p.own}, Subscription: consumer.Subscription{Addresses: []string{replicaA}},
		Rules: catalog.Rules{
			Retention: pick(r.random, 20*time.Second, 90*time.Second, 10*time.Minute, 0),
			Settle:    pick(r.random, 2500*time.Millisecond, 5500*time.Millisecond), // not what scripts wait for
		},
	}
	if c.state == "persisted" || r.random.IntN(3) > 0 {
		_ = os.Remove(file)
		r.config.Subscription.File = file
	}
	if c.other != "alone" {
		r.config.Subscription.Addresses = append(r.config.Subscription.Addresses, replicaB)
	}
	if r.random.IntN(4) == 0 {
		slices.Reverse(r.config.Subscription.Addresses)
	}
	r.config.Name = r.config.Subscription.Addresses[0]
	r.oracle = &oracle{
		rules: rules{
			zone: r.zone, shared: r.zone == r.next, retention: r.config.Rules.Retention,
			settle: r.config.Rules.Settle, ttl: 60, largest: 16 << 20,
		},
		refusedBy: make(map[string]bool), now: time.Now,
		wrong: func(format string, args ...any) { r.wrongf(format, args...) },
	}
	for _, name := range []string{
		"web", "v1.web", "deep.x.y", "x.y", "y", "before", "after", "s0", "s1", fmt.Sprintf("s%d", r.services/2),
		fmt.Sprintf("s%d", r.services-1), fmt.Sprintf("v1.s%d", r.services-1), fmt.Sprintf("s%d", r.services+1), "nope", "never.x.y",
	} {
		r.names = append(r.names, name+"."+r.zone+".")
	}
	if c.beside == "joined" {
		r.share()
	}
	r.cells = 1
	return r
}

// share draws how the owner and its neighbour share names.
func (r *run) share() {
	r.oracle.sharing = sharing{
		names: []string{"web." + r.zone, "s0." + r.zone}, tier: pick(r.random, 0, 0, 1), others: pick(r.random, 0, 1, 1), min: pick(r.random, 1, 1, 2),
		theirs: make(map[string]bool), changed: make(map[string]time.Time),
	}
	for _, name := range r.oracle.sharing.names {
		r.names = append(r.names, name+". SRV")
	}
}

// sharing returns how an owner shares names, of which the endpoints are in a tier.
func (r *run) sharing(tier int) zone.Sharing {
	s := &r.oracle.sharing
	all := zone.Sharing{Tiers: []zone.TierRule{{N: tier}}, Min: s.min}
	for _, name := range s.names {
		all.Names = append(all.Names, must.Get(pattern.ParseName(name))(r.t))
	}
	return all
}

// pick draws one of the values.
func pick[T any](random *rand.Rand, values ...T) T { return values[random.IntN(len(values))] }

// seconds draws a duration between two numbers of seconds, in milliseconds.
func (r *run) seconds(from, to int) time.Duration {
	return time.Duration(from)*time.Second + time.Duration(r.random.IntN((to-from)*1000))*time.Millisecond
}

// run runs the cell: the state before, the fault, perhaps a reload or a restart, and
// the recovery.
func (r *run) run() {
	start := time.Now()
	fault := start.Add(begin)
	gap := r.seconds(2, 90)
	r.neighbour()
	if r.state == "none" {
		r.sleepUntil(fault)
	} else {
		r.sleepUntil(fault.Add(-gap - r.seconds(12, 20)))
		r.behave()
		r.start()
		r.pass(time.Until(fault.Add(-gap)))
	}
	switch r.state {
	case "persisted":
		r.end()
		r.halt()
	case "stale":
		r.halt()
		r.pass(gap)
	}
	r.sleepUntil(fault)
	r.halt()
	r.misbehave()
	if r.agent == nil {
		r.start()
	}
	r.pass(r.seconds(20, 90))
	if r.random.IntN(3) == 0 {
		r.reload()
	}
	r.pass(r.seconds(5, 60))
	if r.random.IntN(2) == 0 {
		r.end()
		r.sleepUntil(time.Now().Add(r.seconds(0, 10)))
		if r.random.IntN(2) == 0 {
			r.halt() // only the file is left
		}
		r.start()
		r.pass(r.seconds(10, 40))
	}
	r.halt()
	r.behave()
	r.pass(time.Second)
	if r.status(r.config.Name).State == "parked" {
		r.reload()
	}
	r.recover()
	r.end()
	r.halt()
	r.stops[neighbour]()
	r.simulated, r.messages = time.Since(start), r.oracle.messages
}

// sleepUntil lets the time pass without checks in between.
func (r *run) sleepUntil(at time.Time) {
	if d := time.Until(at); d > 0 {
		time.Sleep(d)
	}
	if r.agent != nil {
		r.tick()
	}
}

// behave starts good replicas at all addresses, and mends the consumer's files.
func (r *run) behave() {
	text := faultowner.Catalog
	if r.random.IntN(2) == 0 {
		text = "announce\n" + text + "end\n"
	}
	good := faultowner.Behaviour{Name: "good", Text: text}
	for _, address := range r.config.Subscription.Addresses {
		r.serve(address, good)
	}
	r.fault, r.healthy = false, time.Now()
	r.passports.mend(r.t)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.damaged, r.blind = false, false
}

// misbehave starts the behaviour of the cell at the first address, and the other
// replica of the cell at the second.
func (r *run) misbehave() {
	r.fault, r.healthy = true, time.Time{}
	r.serve(replicaA, r.behaviour)
	if r.behaviour.Name == ownFiles {
		must.Do(r.t, pick(r.random, damages...)(r.passports))
		r.damaged = true
	}
	switch r.other {
	case "healthy":
		r.serve(replicaB, faultowner.Behaviour{Text: "announce\n" + faultowner.Catalog + "end"})
		r.healthy = time.Now()
	case "hung":
		r.serve(replicaB, faultowner.Behaviour{Text: pick(r.random, "hang", "mute", "tls", "frames")})
	case "too":
		r.serve(replicaB, r.too)
	}
}

// serve starts an owner with a behaviour.
func (r *run) serve(address string, b faultowner.Behaviour) {
	r.mu.Lock()
	r.oracle.notef("%s is %s", address, b.Name)
	r.mu.Unlock()
	switch b.Identity {
	case faultowner.Nobody:
		return
	case faultowner.Right:
	default:
		r.failing = true
	}
	r.failing = r.failing || strings.Contains(b.Text, "plain") || strings.Contains(b.Text, "mute")
	script := must.Get(b.Script(r.zone, r.next, r.services))(r.t)
	o := faultowner.New(faultowner.Config{
		Script: script, Credentials: r.passports.credentials(b.Identity, address),
		Fact: func(f faultowner.Fact) { r.told(address, f) },
		Event: func(what string) {
			if strings.HasPrefix(what, "wrong ") {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.wrongf("%s: %s", address, what)
			}
		},
	})
	r.stops[address] = r.network.serve(r.t, address, o)
}

// halt ends all replicas, as a crash does.
func (r *run) halt() {
	for _, address := range r.config.Subscription.Addresses {
		r.network.unlisten(address) // a consumer that loses one must not find the next one just before that ends
	}
	for _, address := range r.config.Subscription.Addresses {
		if stop := r.stops[address]; stop != nil {
			r.closed(address, r.network.newest(address)) // first: what the consumer does next must find the oracle up to date
			stop()
			delete(r.stops, address)
		}
	}
	r.healthy = time.Time{}
}

// neighbour starts the neighbour with two services: n0 stays and n1 changes. A third
// one, n2, comes and goes.
func (r *run) neighbour() {
	r.registry = registry.New()
	r.upsert("n0", "198.51.100.1")
	r.upsert("n1", "198.51.100.2")
	for _, fqdn := range r.oracle.sharing.names {
		r.join(fqdn)
	}
	s := must.Get(owner.New(owner.Config{
		Catalogs: map[string]*registry.Registry{"": r.registry}, Credentials: r.passports.credentials(faultowner.Right, neighbour), Logger: quiet(),
	}))(r.t)
	r.stops[neighbour] = r.network.serve(r.t, neighbour, s)
}

// upsert publishes a service of the neighbour. At a shared name its endpoint has as many labels as
// one may have: what owners say there together is more than a service may.
func (r *run) upsert(name, address string) {
	fqdn := must.Get(federation.ParseFQDN(name + "." + r.next))(r.t)
	a := must.Get(federation.ParseAddress(address))(r.t)
	var labels []string
	for i := range limits.Labels {
		if r.oracle.sharing.shares(name + "." + r.next) {
			labels = append(labels, fmt.Sprint("l", i))
		}
	}
	must.Get(r.registry.Upsert(&federation.Service{
		Name: name, FQDN: fqdn, Endpoints: []federation.Endpoint{{Address: a, Port: 443, Labels: labels}},
		Instances: []federation.Instance{{ID: "v1", Protocol: federation.HTTPS}},
	}))(r.t)
}

// start starts a process of the consumer: an agent.
func (r *run) start() {
	r.mu.Lock()
	r.oracle.start(time.Now())
	r.fresh = true
	r.blind = r.damaged
	r.lives++
	r.mu.Unlock()
	r.agent = agent.New(agent.Config{
		Logger: quiet(), Observer: observer{r}, Dial: r.network.dial,
		Follow: follow,
	})
	r.attach()
	r.tick()
}

// end shuts the process down.
func (r *run) end() {
	r.tick()
	r.mu.Lock()
	r.oracle.leave()
	r.mu.Unlock()
	for _, b := range r.blocks {
		r.agent.Detach(b)
	}
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.blocks, r.agent, r.parked = nil, nil, -1
	r.oracle.restart(time.Now(), r.config.Subscription.File != "")
	r.samples = nil
}

// attach attaches a block with the configuration of the cell to the agent.
func (r *run) attach() {
	mine, other := r.config, agent.OwnerConfig{
		Name: neighbour, Identity: mtls.Origin{Files: r.passports.consumer}, Subscription: consumer.Subscription{Addresses: []string{neighbour}},
		Rules: catalog.Rules{Retention: r.config.Rules.Retention, Settle: 5 * time.Second},
	}
	r.configuration++
	c := agent.BlockConfig{Configuration: r.configuration}
	add := func(o agent.OwnerConfig, origin string, tier int) {
		fqdn := must.Get(federation.ParseFQDN(origin))(r.t)
		c.AddOwner(o, zone.Owner{Origins: []federation.FQDN{fqdn}, TTL: 60, NegativeTTL: 5, Sharing: r.sharing(tier)})
	}
	if r.first {
		add(mine, r.zone, r.oracle.sharing.tier)
	}
	add(other, r.next, r.oracle.sharing.others)
	if !r.first {
		add(mine, r.zone, r.oracle.sharing.tier)
	}
	b := must.Get(r.agent.Attach(c))(r.t)
	r.mu.Lock()
	r.blocks = append(r.blocks, b)
	r.mu.Unlock()
	go r.watch(b)
}

// reload attaches the same configuration again, or one that needs a new connection,
// and detaches the old block.
func (r *run) reload() {
	r.tick()
	r.mu.Lock()
	r.oracle.notef("reload")
	r.mu.Unlock()
	if r.random.IntN(3) == 0 {
		dir, file := filepath.Split(r.config.Identity.Files.Cert)
		r.config.Identity.Files.Cert = dir + "./" + file // another path, so another connection
		if r.damaged {
			r.healthy = time.Time{} // which has never had a certificate
		}
	}
	r.attach()
	r.tick()
	r.mu.Lock()
	r.oracle.rearm()
	r.parked = -1
	old := r.blocks[0]
	r.blocks = r.blocks[1:]
	r.mu.Unlock()
	r.agent.Detach(old)
	r.tick()
}

// pass lets the time pass, with a tick about once a second and some updates of the
// neighbour.
func (r *run) pass(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end) && !r.dead; {
		time.Sleep(min(time.Until(end), 900*time.Millisecond+time.Duration(r.random.IntN(200))*time.Millisecond))
		if r.random.IntN(4) == 0 {
			r.update()
		}
		r.tick()
	}
}

// recover waits until the good catalog is complete again. It must be so within a
// bound, and stay so.
func (r *run) recover() {
	bound := time.Minute + 35*time.Second // the longest delay, and the wait for a silent stream
	if r.failing {
		bound = 5*time.Minute + 35*time.Second
	}
	back := time.Now()
	for !r.right() && time.Since(back) < bound && !r.dead {
		r.pass(time.Second)
	}
	if !r.right() && !r.dead {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.wrongf("the good catalog is not complete %v after the owner is back", time.Since(back))
		return
	}
	r.pass(r.config.Rules.Settle + 3*time.Second)
}

// right reports whether the good catalog is complete, live, and all there is.
func (r *run) right() bool {
	s := r.status(r.config.Name)
	return s.State == "synced" && s.Stale == 0 && s.Services == r.services+3
}

// status returns the status of an owner.
func (r *run) status(id string) status.FollowedOwner {
	for _, s := range r.agent.OwnerReports(time.Now()) {
		if s.ID == id {
			return s
		}
	}
	return status.FollowedOwner{}
}

// update changes the catalog of the neighbour.
func (r *run) update() {
	r.mu.Lock()
	r.version++
	r.mu.Unlock()
	r.upsert("n1", fmt.Sprintf("198.51.100.%d", 2+r.version%200))
	if r.version%2 == 0 {
		r.registry.Delete("n2")
	} else {
		r.upsert("n2", "198.51.100.250")
	}
	for _, fqdn := range r.oracle.sharing.names {
		if r.random.IntN(6) == 0 {
			r.join(fqdn)
		}
	}
}

// join has the neighbour offer a shared name, or withdraw it.
func (r *run) join(fqdn string) {
	s := &r.oracle.sharing
	r.mu.Lock()
	there := s.theirs[fqdn]
	r.oracle.notef("neighbour has %s: %v", fqdn, !there)
	r.keep(func() {}) // the owner may have changed before
	r.keep(func() {
		s.theirs[fqdn], s.changed[fqdn] = !there, time.Now()
	})
	r.mu.Unlock()
	name, _, _ := strings.Cut(fqdn, ".")
	if there {
		r.registry.Delete(name)
	} else {
		r.upsert(name, neighbourAddress)
	}
}
