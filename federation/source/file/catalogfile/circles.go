package catalogfile

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/source/file/internal/catalogentry"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
)

// Check is Parse for whoever writes the file: endpoints that lead back to their own service are
// problems as well. An owner publishes such a service, as a consumer may rename it.
func Check(data []byte, policy wire.Policy) Catalog {
	r := NewReader(policy)
	r.circles = true
	return parse(data, r)
}

// spot is a name of the catalog that a host can be: the fqdn of a service or, with the index of one,
// the name of an instance.
type spot struct{ service, instance int }

const whole = -1 // the instance of a spot that is an fqdn

// circles finds the endpoints that lead back to their own service. It holds the services that have
// hosts as endpoints: no others are a part of a circle.
type circles struct {
	services []*federation.Service
	entries  []*catalogentry.Entry
	spots    [][]spot        // of each service: its own, and those of its instances
	all      map[spot]bool   // those that have all endpoints of their service
	at       map[string]spot // by name
	to, from map[spot][]spot // where the hosts of each spot lead, and back
	left     map[spot]bool   // may be part of a circle
}

// addCircles adds a problem for each endpoint that leads in a circle. Winners has the services that
// have the fqdns.
func (p *reading) addCircles(winners map[string]string) {
	c := circles{
		all: make(map[spot]bool), at: make(map[string]spot), to: make(map[spot][]spot), from: make(map[spot][]spot), left: make(map[spot]bool),
	}
	for i, encoded := range p.catalog.Services {
		s := encoded.Service()
		isHost := func(e federation.Endpoint) bool { _, ok := e.Address.Host(); return ok }
		if slices.ContainsFunc(s.Endpoints, isHost) && winners[encoded.FQDN()] == s.Name {
			c.add(s, winners)
			c.entries = append(c.entries, p.entries[i])
		}
	}
	c.link()
	peel(c.left, c.to, c.from)
	peel(c.left, c.from, c.to)
	found := problem.List{Room: problem.Room - len(p.catalog.Problems)}
	for i := range c.services {
		c.report(i, &found)
	}
	p.wrong(found)
}

// add adds a service with its names, but for those of instances that other services have.
func (c *circles) add(s *federation.Service, winners map[string]string) {
	own := spot{len(c.services), whole}
	spots := []spot{own}
	c.at[s.FQDN.String()], c.all[own] = own, true
	for j, in := range s.Instances {
		label, err := federation.ParseLabel(in.ID)
		name := label.String() + "." + s.FQDN.String()
		_, known := c.at[name]
		if _, taken := winners[strings.TrimSuffix(name, ".")]; err != nil || known || taken {
			continue
		}
		at := spot{own.service, j}
		spots, c.at[name] = append(spots, at), at
		c.all[at] = !slices.ContainsFunc(s.Endpoints, func(e federation.Endpoint) bool { return in.Selects(e.Labels) })
	}
	c.services, c.spots = append(c.services, s), append(c.spots, spots)
}

// link finds where the hosts lead.
func (c *circles) link() {
	for i, s := range c.services {
		for _, from := range c.spots[i] {
			c.left[from] = true
			for _, e := range s.Endpoints {
				if to, ok := c.target(&e); ok && c.has(from, &e) {
					c.to[from], c.from[to] = append(c.to[from], to), append(c.from[to], from)
				}
			}
		}
	}
}

// target returns the name of the catalog that an endpoint is, if it is one.
func (c *circles) target(e *federation.Endpoint) (to spot, ok bool) {
	host, _ := e.Address.Host()
	to, ok = c.at[host.String()]
	return to, ok
}

// has reports whether a name has an endpoint of its service.
func (c *circles) has(s spot, e *federation.Endpoint) bool {
	return c.all[s] || c.services[s.service].Instances[s.instance].Selects(e.Labels)
}

// peel takes what leads to nothing that is left out of left, until all that is left leads on.
func peel(left map[spot]bool, to, from map[spot][]spot) {
	leads := make(map[spot]int)
	var ends []spot
	for s := range left {
		for _, t := range to[s] {
			if left[t] {
				leads[s]++
			}
		}
		if leads[s] == 0 {
			ends = append(ends, s)
		}
	}
	for len(ends) > 0 {
		s := ends[len(ends)-1]
		ends = ends[:len(ends)-1]
		delete(left, s)
		for _, f := range from[s] {
			if leads[f]--; left[f] && leads[f] == 0 {
				ends = append(ends, f)
			}
		}
	}
}

// report adds the endpoints of a service that lead in a circle.
func (c *circles) report(service int, found *problem.List) {
	s := c.services[service]
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		to, ok := c.target(e)
		circular := false
		for _, from := range c.spots[service] {
			circular = circular || ok && c.left[from] && c.left[to] && c.has(from, e)
		}
		field := fmt.Sprintf("endpoints[%d].address", i)
		how := "leads back to this service through others of the catalog"
		switch {
		case !circular:
			continue
		case found.Full():
			found.More++
			continue
		case to.service == service:
			how = "is a name of this service itself"
		}
		found.Add(problem.Problem{
			Line: c.entries[service].Line(field), Service: federation.Quote(s.Name), Field: field,
			Rule: fmt.Sprintf("%s %s, so clients get no address from it; name an IP address, or a host that is no name of the catalog", e.Address, how),
		})
	}
}
