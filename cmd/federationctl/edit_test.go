package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/nightly"
)

// volume is a directory whose files are replaced at once, as Kubernetes does it.
type volume struct {
	t        *testing.T
	dir      string
	versions int
}

// set makes these the files.
func (v *volume) set(files map[string]string) {
	v.t.Helper()
	v.versions++
	version := fmt.Sprintf("..%d", v.versions)
	must.Do(v.t, os.MkdirAll(filepath.Join(v.dir, version), 0o700))
	for name, text := range files {
		must.Do(v.t, os.WriteFile(filepath.Join(v.dir, version, name), []byte(text), 0o600))
	}
	must.Do(v.t, os.Symlink(version, filepath.Join(v.dir, "..next")))
	must.Do(v.t, os.Rename(filepath.Join(v.dir, "..next"), filepath.Join(v.dir, "..data")))
	for name := range files {
		if v.versions == 1 {
			must.Do(v.t, os.Symlink("..data/"+name, filepath.Join(v.dir, name)))
		}
	}
}

// edited is all that the files of a volume say: two catalogs, the rules of a registration, who
// may subscribe, and who is told of what.
type edited struct {
	catalogs   [2]map[string]string // the tier of each service, by name
	published  int                  // index of the catalog that is
	registered []string             // what may be registered
	listed     []string             // may subscribe, by the allow file
	named      []string             // may subscribe, by the configuration
	exports    []export
}

func (e edited) allows(consumer string) bool {
	return slices.Contains(e.listed, consumer) || slices.Contains(e.named, consumer)
}

// export is a rule: of services of that tier, where it is not empty, with these names.
type export struct {
	names    []string
	tier, to string
	strip    bool
}

func (x export) tells(name, tier string) bool {
	return slices.Contains(x.names, name) && (x.tier == "" || x.tier == tier)
}

// sees returns what the consumer is told, at most: names, and tiers that are not stripped.
func (e edited) sees(consumer string) map[string]bool {
	services := maps.Clone(e.catalogs[e.published])
	for _, name := range e.registered {
		services["registration/"+name+".fed.example"] = ""
	}
	seen := make(map[string]bool)
	for name, tier := range services {
		short := strings.TrimSuffix(strings.TrimPrefix(name, "registration/"), ".fed.example")
		rule := slices.IndexFunc(e.exports, func(x export) bool { return x.to == consumer && x.tells(short, tier) })
		if rule < 0 || !e.allows(consumer) {
			continue
		}
		if e.exports[rule].strip {
			tier = ""
		}
		seen[name+" "+tier] = true
	}
	return seen
}

// files returns the files of an owner that listens at an address.
func (e edited) files(listen string) map[string]string {
	var catalogs [2]strings.Builder
	for i, of := range e.catalogs {
		catalogs[i].WriteString(map[bool]string{true: "services:\n", false: "services: []\n"}[len(of) > 0])
		for _, name := range slices.Sorted(maps.Keys(of)) {
			fmt.Fprintf(&catalogs[i], "- {name: %s, fqdn: %[1]s.fed.example, labels: {tier: %s}, endpoints: [{address: 192.0.2.20, port: 80}], instances: [{id: v1, protocol: HTTP}]}\n", name, of[name])
		}
	}
	var owner strings.Builder
	fmt.Fprintf(&owner, `listen: %q
metrics: "127.0.0.1:0"
window: 64
identity:
  files: {cert: ../owner.pem, key: ../owner-key.pem, ca: ../ca.pem}
allow: {file: consumers.txt, ids: [%s]}
catalogs:
- sources:
  - file: {path: catalog%d.yaml}
  - registration: {rules: rules.yaml, listen: "127.0.0.1:0", convergence: 1s}
`, listen, strings.Join(e.named, ", "), e.published)
	owner.WriteString(map[bool]string{true: "  exports:\n", false: "  exports: []\n"}[len(e.exports) > 0])
	for _, x := range e.exports {
		fqdns := make([]string, len(x.names))
		for i, name := range x.names {
			fqdns[i] = name + ".fed.example"
		}
		fmt.Fprintf(&owner, "  - match: {fqdn: [%s]", strings.Join(fqdns, ", "))
		if x.tier != "" {
			fmt.Fprintf(&owner, ", labels: {tier: %s}", x.tier)
		}
		fmt.Fprintf(&owner, "}\n    to: [\"%s\"]\n", x.to)
		if x.strip {
			owner.WriteString("    strip: [labels.tier]\n")
		}
	}
	rules := "rules: []\n"
	if len(e.registered) > 0 {
		rules = strings.Replace(shopRules, "shop.fed.example", strings.Join(e.registered, ".fed.example, ")+".fed.example", 1)
	}
	consumers := "[]\n"
	if len(e.listed) > 0 {
		consumers = strings.Join(e.listed, "\n") + "\n"
	}
	return map[string]string{
		"owner.yaml": owner.String(), "catalog0.yaml": catalogs[0].String(), "catalog1.yaml": catalogs[1].String(), "rules.yaml": rules, "consumers.txt": consumers,
	}
}

var (
	fileNames       = []string{"a", "b", "c", "d"}
	registeredNames = []string{"w", "x", "y", "z"}
)

func anyEdit(random *rand.Rand) edited {
	some := func(of []string) (chosen []string) {
		for _, s := range of {
			if random.IntN(2) == 0 {
				chosen = append(chosen, s)
			}
		}
		return chosen
	}
	both := []string{pkiConsumerID, partnerID}
	e := edited{registered: some(registeredNames), listed: some(both), named: some(both)}
	for i := range e.catalogs {
		e.catalogs[i] = make(map[string]string)
		for _, name := range some(fileNames) {
			e.catalogs[i][name] = []string{"high", "low"}[random.IntN(2)]
		}
	}
	for range random.IntN(5) {
		x := export{names: some(slices.Concat(fileNames, registeredNames)), tier: []string{"", "high", "low"}[random.IntN(3)], to: both[random.IntN(2)], strip: random.IntN(3) == 0}
		if len(x.names) > 0 {
			e.exports = append(e.exports, x)
		}
	}
	return e
}

// told is a consumer that comes back again and again, and what it was told.
type told struct {
	again chan struct{}

	mu    sync.Mutex
	holds map[string]string // what the stream of now has said, by name
	whole bool              // whether that is all
	away  bool              // whether it may not subscribe
	heard map[string]bool   // whatever was said since it was asked last
}

// follow subscribes whenever again is sent to, until the test ends.
func (c *told) follow(t *testing.T, conn *grpc.ClientConn) {
	for {
		select {
		case <-t.Context().Done():
			return
		case <-c.again:
		}
		stream, err := rdpb.NewDiscoveryServiceClient(conn).EstablishStream(t.Context())
		for request := wire.Subscribe("session"); err == nil; {
			if err = stream.Send(&rdpb.BidirectionalStream{Request: request}); err != nil {
				_, err = stream.Recv() // says why
				continue
			}
			var m *rdpb.BidirectionalStream
			if m, err = stream.Recv(); err == nil {
				c.hear(m.GetResponse())
				request = wire.Answer(m.GetResponse().GetNonce(), "session", nil)
			}
		}
		c.mu.Lock()
		c.holds, c.whole, c.away = make(map[string]string), false, status.Code(err) == codes.Unauthenticated
		c.mu.Unlock()
	}
}

func (c *told) hear(r *rdpb.StreamResponse) {
	event, err := wire.Decode(r)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.away = false
	switch {
	case err != nil:
		c.heard[err.Error()] = true
	case event.Service != nil:
		c.holds[event.Name] = event.Name + " "
		for _, label := range event.Service.Labels {
			c.holds[event.Name] += label.Value
		}
		c.heard[c.holds[event.Name]] = true
	case event.Name != "":
		delete(c.holds, event.Name)
	default:
		c.whole = true
	}
}

// lacks returns in words what the consumer does not know of that yet.
func (c *told) lacks(want map[string]bool, allowed bool) string {
	select {
	case c.again <- struct{}{}:
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	got := make(map[string]bool)
	for _, s := range c.holds {
		got[s] = true
	}
	if c.away == allowed || allowed && !c.whole || !maps.Equal(got, want) {
		return fmt.Sprintf("a consumer holds %v, expected %v; it is turned away: %v", got, want, c.away)
	}
	return ""
}

// TestEdits replaces the files of an owner at once by others, again and again. At no moment is
// a consumer told a service, or a field of it, that neither the files of before nor those of
// now let it see. Some edits replace a source, too: with these nothing changes before the owner
// restarts, but that consumers have to go that may not subscribe any more.
func TestEdits(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	dir := partiesIn(t)
	address := must.Get(loopback.FreeAddress())(t)
	files := &volume{t: t, dir: filepath.Join(dir, "volume")}
	before := edited{listed: []string{pkiConsumerID, partnerID}}
	files.set(before.files(address))
	c := &configured{dir: dir, file: filepath.Join(dir, "volume", "owner.yaml")}
	c.running = &running{t: t}
	var provider *enrolled
	start := func() {
		var port string
		c.start(&port)
		provider = c.on(port).enroll("partner", "owner.example")
		go func(e *enrolled) { // what the provider hears, it need not know
			for {
				if _, err := e.Recv(); err != nil {
					return
				}
			}
		}(provider)
	}
	start()
	c.complete()

	consumers := make(map[string]*told)
	for party, id := range map[string]string{"consumer": pkiConsumerID, "partner": partnerID} {
		consumers[id] = &told{again: make(chan struct{}, 1), holds: make(map[string]string), heard: make(map[string]bool)}
		go consumers[id].follow(t, c.as(party, "owner.example"))
	}
	applied := 0 // edits, since the last start
	for i := range nightly.Cases(30, 10) {
		await := func(want func(id string) (services map[string]bool, allowed bool)) {
			t.Helper()
			eventually(t, func() (lacking string) {
				for _, name := range registeredNames {
					provider.active(name + ".fed.example")
				}
				for id, consumer := range consumers {
					if why := consumer.lacks(want(id)); why != "" {
						lacking = fmt.Sprintf("edit %d: %s", i, why)
					}
				}
				return lacking
			})
		}
		now := anyEdit(random)
		if now.published = before.published; i%5 == 4 {
			now.catalogs, now.registered, now.listed = before.catalogs, before.registered, before.listed
			now.published = 1 - before.published
		}
		edit := now.files(address)
		edit["owner.yaml"] += fmt.Sprintf("# %d\n", i) // so that each of them is applied
		files.set(edit)
		if now.published != before.published {
			c.shows("", `"restart":[`)
			await(func(id string) (map[string]bool, bool) {
				if before.allows(id) && now.allows(id) {
					return before.sees(id), true
				}
				return nil, false
			})
			c.stop()
			start()
			applied = 0
		} else { // or the next edit would be one with this one
			applied++
			eventually(t, func() string {
				if n := strings.Count(c.errs.String(), `"configuration applied"`); n < applied {
					return fmt.Sprintf("edit %d: %d of %d edits are in effect", i, n, applied)
				}
				return ""
			})
		}
		await(func(id string) (map[string]bool, bool) { return now.sees(id), now.allows(id) })
		for id, consumer := range consumers {
			consumer.mu.Lock()
			for service := range consumer.heard {
				if !before.sees(id)[service] && !now.sees(id)[service] {
					t.Errorf("edit %d: %s was told %q, which it may see neither by\n%v\nnor by\n%v", i, id, service, before, now)
				}
			}
			clear(consumer.heard)
			consumer.mu.Unlock()
		}
		before = now
	}
}
