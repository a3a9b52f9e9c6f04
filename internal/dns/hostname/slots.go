package hostname

import (
	"strings"
	"time"

	"github.com/miekg/dns"
)

const (
	// maxSlots is how many look-ups an owner has at a time, and maxDomainSlots is how
	// many of them are in one domain. A domain has enough for all hosts of one
	// query, and an owner has enough for a few domains that are dead.
	maxSlots       = 256
	maxDomainSlots = MaxHosts

	// failureHold is how long a look-up that has failed keeps its slot. So it bounds
	// how often an owner can make the server ask what does not answer, and also
	// the lines of CoreDNS's plugin errors, which has one for each look-up that fails.
	failureHold = time.Minute
)

// lookupSlots bound an owner's look-ups: those under way, and those that have failed within the
// last failureHold. The lock of the share guards them. Nobody waits for a slot: without one, a
// query is answered from what is remembered.
type lookupSlots struct {
	taken   int            // slots, of all domains
	domains map[string]int // taken slots by domain; has no zeros
	held    []heldSlot     // slots of look-ups that have failed, oldest first
}

type heldSlot struct {
	domain string
	until  time.Time
}

// takeSlot takes a slot for a host, and reports false when there is none.
func (s *lookupSlots) takeSlot(host string, now time.Time) bool {
	for len(s.held) > 0 && !now.Before(s.held[0].until) {
		s.freeSlot(s.held[0].domain)
		s.held = s.held[1:]
	}
	d := domainOf(host)
	if s.taken == maxSlots || s.domains[d] == maxDomainSlots {
		return false
	}
	s.taken++
	s.domains[d]++
	return true
}

// releaseSlot frees the slot of a host: at once, or after failureHold when the look-up has failed.
func (s *lookupSlots) releaseSlot(host string, succeeded bool, now time.Time) {
	if succeeded {
		s.freeSlot(domainOf(host))
		return
	}
	s.held = append(s.held, heldSlot{domainOf(host), now.Add(failureHold)})
}

func (s *lookupSlots) freeSlot(domain string) {
	s.taken--
	if s.domains[domain]--; s.domains[domain] == 0 {
		delete(s.domains, domain)
	}
}

// domainOf returns the last two labels of a host. Hosts with the same two labels are expected to
// fail together, because one registration is mostly served by the same name servers and reached
// through the same forwarder. With three labels, a dead domain with many subdomains would count as
// many domains and take all slots. With two, registrations below a public suffix such as co.uk
// share their slots.
func domainOf(host string) string {
	labels := dns.SplitDomainName(host)
	return strings.Join(labels[max(len(labels)-2, 0):], ".")
}
