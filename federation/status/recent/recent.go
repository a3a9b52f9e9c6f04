// Package recent remembers what happened lately to the services of one catalog: which were
// refused, and which are gone. It answers what the catalog itself cannot, as it forgets
// both. It also remembers who was turned away by an owner.
//
// It is bounded, whatever peers send: so many entries of each kind, so many octets in each.
// It is pure: the time comes in as an argument, and the caller has the lock.
//
// Only packages of this module import it: it is not a stable API.
package recent

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hamlet-federation/coredns-federation/federation/status"
)

const (
	// Limit is how many entries of each kind are remembered. The oldest go.
	Limit = 1000

	maxName = 512 // octets of a name; the longest that package wire accepts is shorter
	maxText = 1024
)

// Memory is what happened lately. The zero value is empty.
type Memory struct {
	refusals latest[refused, status.Refusal]

	gone []status.Gone // a ring, once it is full
	next int           // where the next one goes then
}

// refused is what there is at most one refusal of.
type refused struct{ consumer, service string }

// Refused notes a refusal. It takes the place of an earlier one of the service by the
// same consumer.
func (m *Memory) Refused(r status.Refusal) {
	r.Service, r.FQDN, r.Consumer = cut(r.Service, maxName), cut(r.FQDN, maxName), cut(r.Consumer, maxName)
	r.Field, r.Rule = cut(r.Field, maxText), cut(r.Rule, maxText)
	m.refusals.put(refused{r.Consumer, r.Service}, r, Limit)
}

// Accepted ends the refusal of a service by a consumer, which accepts it now.
func (m *Memory) Accepted(consumer, service string) {
	if len(m.refusals.places) > 0 {
		m.refusals.remove(refused{cut(consumer, maxName), cut(service, maxName)})
	}
}

// Gone notes that a service is gone.
func (m *Memory) Gone(g status.Gone) {
	g.Service, g.FQDN = cut(g.Service, maxName), cut(g.FQDN, maxName)
	if len(m.gone) < Limit {
		m.gone = append(m.gone, g)
		return
	}
	m.gone[m.next] = g
	m.next = (m.next + 1) % Limit
}

// AllRefusals returns the refusals, newest first.
func (m *Memory) AllRefusals() []status.Refusal { return m.refusals.all() }

// AllGone returns the services that are gone, newest first.
func (m *Memory) AllGone() []status.Gone {
	all := slices.Concat(m.gone[m.next:], m.gone[:m.next])
	slices.Reverse(all)
	return all
}

// cut returns a copy of at most so many octets of a text.
func cut(s string, most int) string {
	if len(s) > most {
		for most > 0 && !utf8.RuneStart(s[most]) {
			most--
		}
		s = s[:most]
	}
	return strings.Clone(s)
}
