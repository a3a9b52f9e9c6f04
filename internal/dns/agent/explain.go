package agent

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/internal/status"
)

// blockExplainer brings together what explains one name: the zone, the configuration, and what
// happened lately to services that had the name.
type blockExplainer struct {
	*Block

	reports []status.FollowedOwner // one for each owner, index by index
}

// Explain returns why the block answers a query for a name, lower case and absolute, as it does
// from a version that Zone has returned. It leaves out what only the code knows that answers
// queries, which is the size of the reply and the addresses of hosts. Explain changes nothing and
// waits for nobody. For a name outside of the zones it returns an answer without a Zone.
func (b *Block) Explain(z *zone.Zone, name string, qtype uint16, now time.Time) status.BlockAnswer {
	e := z.Explain(name, qtype, now)
	if e.Result.Kind == zone.Outside {
		return status.BlockAnswer{}
	}
	x := blockExplainer{Block: b}
	for _, o := range b.owners {
		x.reports = append(x.reports, o.reportStatus(now))
	}
	a := status.BlockAnswer{
		Zone: e.Result.OriginName(), Serial: e.Result.SOA("").Serial, Is: e.Role.String(), Verdict: verdictOf(e), Circle: e.Circle, MoreRivals: e.More,
	}
	if e.Holder != nil {
		a.Holder = x.reportHolder(e.Holder)
	}
	if e.Result.Kind == zone.NameError {
		a.Nearest = z.NearestNames(name, now)
	}
	for _, r := range e.Rivals {
		a.Rivals = append(a.Rivals, status.RivalService{Owner: b.owners[r.Owner].id, Service: r.Service, FQDN: r.FQDN, Rule: r.Rule})
	}
	for _, i := range e.Owners {
		a.Owners = append(a.Owners, x.reportOwner(i, name, e.Holder != nil && e.Holder.Owner == i || e.Role == domain.NameServer))
	}
	return a
}

// verdictOf returns why a look-up has that result. Addresses of hosts may still change the verdict.
func verdictOf(e *zone.NameExplanation) status.AnswerVerdict {
	r := &e.Result
	switch r.Kind {
	case zone.Success, zone.Indirect:
		switch {
		case r.IsStale():
			return status.Stale
		case e.Holder == nil || r.Type == dns.TypeSOA || r.Type == dns.TypeNS:
			return status.OwnData
		}
		return status.Live
	case zone.NoData:
		if r.IsDenied() {
			return status.Denied
		}
		return status.NoData
	case zone.NameError:
		if r.HasLostOwner() {
			return status.NoNameLost
		}
		return status.NoName
	case zone.Unsynced, zone.Unheard, zone.Outside:
	}
	return status.NotKnownYet
}

// reportHolder returns what the status shows of the service that has the name.
func (x *blockExplainer) reportHolder(h *zone.Holder) *status.NameHolder {
	u := &x.reports[h.Owner]
	holder := &status.NameHolder{
		Owner: u.ID, Service: h.Service, FQDN: h.FQDN, Instance: h.Instance, Updated: h.Updated, Stale: h.Stale, Faults: countFaults(h.Faults),
	}
	if h.Original != h.FQDN {
		holder.Original = h.Original
	}
	if h.Stale {
		holder.StaleFrom, holder.Expires = u.Lost, h.Expires.UTC()
	}
	holder.Alone = len(h.Part) > 0 && len(x.config.Zone.SharingOwners(h.FQDN)) == 1
	for _, i := range h.Part {
		holder.Owners = append(holder.Owners, x.owners[i].id)
	}
	for i := range h.Shared {
		holder.Shared = append(holder.Shared, x.reportEndpoint(&h.Shared[i]))
	}
	return holder
}

// reportEndpoint returns why an endpoint of a shared name is answered or not.
func (x *blockExplainer) reportEndpoint(e *zone.SharedEndpoint) status.SharedEndpoint {
	s := status.SharedEndpoint{
		Endpoint: net.JoinHostPort(e.Address, strconv.Itoa(int(e.Port))), Tier: e.Tier, Answered: e.Answered,
	}
	var gone time.Time // when the last retention ends
	for n, i := range e.Owners {
		u := &x.reports[i]
		s.Owners = append(s.Owners, u.ID)
		if n == 0 || u.Expires.IsZero() || !gone.IsZero() && gone.Before(u.Expires) {
			gone = u.Expires
		}
	}
	switch {
	case !e.Live:
		s.Rule, s.Expires = "its owner is lost, so live endpoints go first", gone
	case e.Answered:
		s.Rule = "it is live"
	default:
		s.Rule = "it is live, but better tiers have enough live endpoints (min)"
	}
	return s
}

// reportOwner returns what the owner at an index has to do with a name. With taken, one of its
// services or the zone itself has the name, so that nothing was left out.
func (x *blockExplainer) reportOwner(i int, name string, taken bool) status.OwnerPart {
	p := status.PartOf(&x.reports[i])
	if !taken {
		p.NotImported, p.NotAdmitted = x.leavesOut(i, name)
	}
	x.owners[i].log.AddTo(&p, func(service, fqdn string) bool { return x.matchesName(i, service, fqdn, name) })
	return p
}

// RefusedOwners returns the owners that were refused a name, lower case and absolute, and that are
// in none of the answers, because the name is outside of their zones. It waits for nobody.
func (a *Agent) RefusedOwners(name string, answers []status.BlockAnswer, now time.Time) (parts []status.OwnerPart) {
	for _, o := range a.inOrder() {
		if slices.ContainsFunc(answers, func(a status.BlockAnswer) bool {
			return slices.ContainsFunc(a.Owners, func(p status.OwnerPart) bool { return p.ID == o.id })
		}) {
			continue
		}
		u := o.reportStatus(now)
		p := status.PartOf(&u)
		o.log.AddTo(&p, func(service, fqdn string) bool {
			_, above, _ := strings.Cut(withoutProtocol(name), ".") // of an instance
			return status.IsCalled(service, name) || fqdn != "" && (fqdn == withoutProtocol(name) || fqdn == above)
		})
		if len(p.Refusals) > 0 {
			parts = append(parts, p)
		}
	}
	return parts
}

// matchesName reports whether a service of the owner at an index has the name, has an fqdn above
// it, or is called so.
func (x *blockExplainer) matchesName(i int, service, fqdn, name string) bool {
	if status.IsCalled(service, name) {
		return true
	}
	f, err := federation.ParseFQDN(fqdn)
	if err != nil {
		return false
	}
	f, _ = x.config.Zone.PublishedName(i, f)
	if name == f.String() {
		return true
	}
	// Below an fqdn are the names of its instances, protocols and addresses. Below the fqdn of a
	// whole zone are all names of the zone.
	return !slices.Contains(x.config.Zone.Owners[i].Origins, f) && strings.HasSuffix(name, "."+f.String())
}

// leavesOut returns which import filter leaves out services of the owner at an index that have the
// name, and which rule does not admit them. Either is empty where none does.
func (x *blockExplainer) leavesOut(i int, name string) (notImported, notAdmitted string) {
	fqdn, err := federation.ParseFQDN(withoutProtocol(name))
	if err != nil {
		return "", "" // no service can have it
	}
	originals := x.config.Zone.OriginalNames(i, fqdn)
	if len(originals) == 0 {
		return "", fmt.Sprintf("rename publishes what this owner has at %s under another name", fqdn)
	}
	for _, of := range originals {
		if missed := x.config.Zone.Owners[i].Import.Missed(of); missed != "" {
			notImported = missed
			continue
		}
		_, invalid := x.config.Zone.PublishedName(i, of)
		if invalid == nil {
			return "", ""
		}
		notAdmitted = invalid.Rule
	}
	return notImported, notAdmitted
}

// withoutProtocol returns a name without the labels of a protocol before it, such as _http._tcp.
func withoutProtocol(name string) string {
	for strings.HasPrefix(name, "_") {
		name = name[strings.IndexByte(name, '.')+1:]
	}
	return name
}

// countFaults returns how many names and records are not published, by reason.
func countFaults(faults map[zone.Fault]int) map[string]int {
	all := make(map[string]int, len(faults))
	for kind, n := range faults {
		if n > 0 {
			all[string(kind)] = n
		}
	}
	return all
}
