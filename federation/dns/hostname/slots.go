package hostname

import (
	"strings"
	"time"

	"github.com/miekg/dns"
)

const (
	// maxSlots is how many look-ups an owner has at a time, and maxDomainSlots how
	// many of them are in one domain. The latter is enough for all hosts that one
	// query waits for, the former for a few domains that are dead.
	maxSlots       = 256
	maxDomainSlots = MaxHosts

	// failureHold is how long a look-up that has failed keeps its slot. It bounds
	// how often the server can be made to try what does not answer, and with it
	// the lines of CoreDNS's plugin errors, one for each look-up that fails.
	failureHold = time.Minute
)

// slots bound an owner's look-ups: those under way, and those that have failed
// within the last failureHold.
type slots struct {
	taken   int
	domains map[string]int // taken, by domain; has no zeros
	held    []heldSlot     // by look-ups that have failed, oldest first
}

type heldSlot struct {
	domain string
	until  time.Time
}

// take takes a slot for a host, or reports false when there is none.
func (s *slots) take(host string, now time.Time) bool {
	for len(s.held) > 0 && !now.Before(s.held[0].until) {
		s.free(s.held[0].domain)
		s.held = s.held[1:]
	}
	d := domain(host)
	if s.taken == maxSlots || s.domains[d] == maxDomainSlots {
		return false
	}
	s.taken++
	s.domains[d]++
	return true
}

// release frees the slot of a host: at once, or after failureHold when the look-up
// has failed.
func (s *slots) release(host string, succeeded bool, now time.Time) {
	if succeeded {
		s.free(domain(host))
		return
	}
	s.held = append(s.held, heldSlot{domain(host), now.Add(failureHold)})
}

func (s *slots) free(domain string) {
	s.taken--
	if s.domains[domain]--; s.domains[domain] == 0 {
		delete(s.domains, domain)
	}
}

// domain returns the last two labels of a host. Hosts that have them in common are
// expected to fail together: what is below one registration is mostly served by
// the same name servers, and reached through the same forwarder. With three labels
// a dead domain with many subdomains would count as many, and take all slots. With
// two, registrations below a public suffix such as co.uk share their slots.
func domain(host string) string {
	labels := dns.SplitDomainName(host)
	return strings.Join(labels[max(len(labels)-2, 0):], ".")
}
