// Package recent remembers what happened lately to the services of one catalog: which were
// refused or left out, and which are gone. It answers what the catalog itself cannot, as it
// forgets all of them. It also remembers who was turned away by an owner.
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

	"github.com/hashicorp/golang-lru/v2/simplelru"

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
	refusals *simplelru.LRU[refused, status.Refusal] // nil: none yet

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
	if m.refusals == nil {
		m.refusals = newest[refused, status.Refusal](Limit)
	}
	m.refusals.Add(refused{r.Consumer, r.Service}, r)
}

// Accepted ends the refusal of a service by a consumer, which accepts it now.
func (m *Memory) Accepted(consumer, service string) {
	if m.refusals != nil && m.refusals.Len() > 0 {
		m.refusals.Remove(refused{cut(consumer, maxName), cut(service, maxName)})
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
func (m *Memory) AllRefusals() (all []status.Refusal) {
	if m.refusals != nil {
		all = m.refusals.Values()
		slices.Reverse(all)
	}
	return all
}

// AllGone returns the services that are gone, newest first.
func (m *Memory) AllGone() []status.Gone {
	all := slices.Concat(m.gone[m.next:], m.gone[:m.next])
	slices.Reverse(all)
	return all
}

// newest returns what has the newest value of each key, of so many keys that were added last.
func newest[K comparable, V any](limit int) *simplelru.LRU[K, V] {
	l, err := simplelru.NewLRU[K, V](limit, nil)
	if err != nil {
		panic(err) // the limit is not positive
	}
	return l
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
