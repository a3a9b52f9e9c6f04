package ownreport

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/serve"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// question is what is asked of one catalog: a name, which may be the fqdn of a service, a
// name below one, or the name of a service.
type question struct {
	catalog   serve.Catalog
	consumers map[string]int // open streams, by version of the API
	name      string         // in lower case, without the final dot

	fqdns  []string        // under which services are looked for
	origin map[string]bool // those of them that a rule may turn into the name, or into one above it

	found []*federation.Service // that are answers
}

// maxFQDNs bounds the fqdns that a service may have whose name a rule changes.
const maxFQDNs = 10_000

func newQuestion(name string, c serve.Catalog, consumers map[string]int) *question {
	q := &question{catalog: c, consumers: consumers, name: strings.TrimSuffix(name, "."), origin: make(map[string]bool)}
	q.fqdns = above(q.name)
	for _, e := range c.Exports {
		for from, to := range e.Rule.As {
			original, renamed := moved(q.name, canonical(to), canonical(from))
			if !renamed || len(q.fqdns) > maxFQDNs {
				continue
			}
			for _, fqdn := range above(original) {
				q.fqdns = append(q.fqdns, fqdn)
				q.origin[fqdn] = true
			}
		}
	}
	return q
}

// canonical returns a name of a rule as q.name is; the root is empty.
func canonical(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// above returns a name and those above it.
func above(name string) []string {
	names := []string{name}
	for {
		_, rest, more := strings.Cut(names[len(names)-1], ".")
		if !more {
			return names
		}
		names = append(names, rest)
	}
}

// moved returns the name with one end in place of another, and whether it has that one.
func moved(name, from, to string) (string, bool) {
	rest, ok := name, from == ""
	if !ok {
		if rest, ok = strings.CutSuffix("."+name, "."+from); !ok {
			return "", false
		}
		rest = strings.TrimPrefix(rest, ".")
	}
	return strings.Trim(rest+"."+to, "."), true
}

// offered returns the services that are answers, those that are published first.
func (q *question) offered() []status.Offered {
	var all []status.Offered
	for _, h := range q.catalog.Sources.Find(q.fqdns, q.name) {
		s := h.Service.Service()
		o := status.Offered{
			Name: h.Service.Name(), FQDN: h.Service.FQDN(), Source: h.Source, Updated: h.Updated.UTC(), Hidden: h.Hidden, Held: h.Kept,
			Endpoints: len(s.Endpoints), Instances: len(s.Instances),
		}
		isAnswer := strings.EqualFold(o.Name, q.name) || q.has(s) || q.origin[o.FQDN]
		if o.Hidden == "" {
			told := q.catalog.Registry.Audiences(o.Name)
			if q.origin[o.FQDN] && !q.has(s) && len(told) > 0 {
				isAnswer = strings.EqualFold(o.Name, q.name) || slices.ContainsFunc(told, func(t registry.Audience) bool { return t.Service != nil && q.has(t.Service.Service()) })
			}
			o.Audience, o.Withheld = tell(told, o.FQDN), withheld(s, q.consumers)
		}
		if isAnswer {
			all = append(all, o)
			q.found = append(q.found, s)
		}
	}
	slices.SortStableFunc(all, func(a, b status.Offered) int {
		return cmp.Compare(min(len(a.Hidden), 1), min(len(b.Hidden), 1))
	})
	return all
}

// has reports whether the service has the name in DNS that is asked for.
func (q *question) has(s *federation.Service) bool { return zone.HasName(s, q.name) }

// tell returns what classes of consumers are told of a service with that fqdn.
func tell(told []registry.Audience, fqdn string) []status.Audience {
	var all []status.Audience
	for _, t := range told[:min(len(told), MaxClasses)] {
		r := status.Audience{Class: className(t.Rules), Consumers: t.Consumers, Rule: t.Rule, Hidden: t.Service == nil}
		if t.Everybody {
			r.Class = "everybody"
		}
		if !r.Hidden && t.Service.FQDN() != fqdn {
			r.As = t.Service.FQDN()
		}
		all = append(all, r)
	}
	return all
}

// withheld returns the versions of the API that cannot say the service, and why. Versions
// that nobody speaks now do not count: most services have no SAN, and so none in v1alpha1.
func withheld(s *federation.Service, consumers map[string]int) []string {
	_, err := wire.EncodeV1Alpha1(federation.Event{Operation: federation.Upsert, Name: s.Name, Service: s}, "", false)
	if err == nil || consumers[wire.V1Alpha1.String()] == 0 {
		return nil
	}
	return []string{fmt.Sprintf("consumers of %s do not get it, and not the end of the catalog: %v", wire.V1Alpha1, err)}
}

// refusals returns those of services that are answers.
func (q *question) refusals(all []status.Refusal) []status.Refusal {
	return keep(all, func(r status.Refusal) bool {
		return r.FQDN == q.name || strings.EqualFold(r.Service, q.name) ||
			slices.ContainsFunc(q.found, func(s *federation.Service) bool { return s.Name == r.Service })
	})
}

// gone returns those services that would be answers, and are no more. Where there is no
// other answer, those count whose fqdn is above the name.
func (q *question) gone(all []status.Gone) []status.Gone {
	return keep(all, func(g status.Gone) bool {
		if slices.ContainsFunc(q.found, func(s *federation.Service) bool { return s.Name == g.Service }) {
			return false // it is back
		}
		return g.FQDN == q.name || strings.EqualFold(g.Service, q.name) || len(q.found) == 0 && slices.Contains(q.fqdns, g.FQDN)
	})
}

// maxEvents bounds the refusals, and the services that are gone, of one answer.
const maxEvents = 20

// keep returns the first of those that are wanted.
func keep[T any](all []T, wanted func(T) bool) []T {
	var some []T
	for _, one := range all {
		if len(some) < maxEvents && wanted(one) {
			some = append(some, one)
		}
	}
	return some
}
