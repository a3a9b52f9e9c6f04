package agent

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/internal/status"
)

// Explain returns why the block answers a query for a name, lower case and absolute, as it does
// from a version that Zone has returned. It leaves out what only the code knows that answers
// queries, which is the size of the reply and the addresses of hosts. Explain changes nothing and
// waits for nobody. For a name outside of the zones it returns an answer without a Zone.
func (b *Block) Explain(z *zone.Zone, name string, qtype uint16, now time.Time) status.BlockAnswer {
	a, owners := z.Explain(name, qtype, now)
	h := a.Holder
	if h != nil {
		h.Alone = h.Owners != nil && len(b.config.Zone.SharingOwners(h.FQDN)) == 1
	}
	for _, i := range owners {
		o := b.owners[i]
		u := o.reportStatus(now)
		p := o.log.PartOf(&u, func(service, fqdn string) bool { return b.matchesName(i, service, fqdn, name) })
		holds := h != nil && h.Owner == o.id
		if holds && h.Stale {
			h.StaleFrom = u.Lost
		}
		if !holds && a.Is != domain.NameServer.String() { // otherwise nothing was left out
			p.NotImported, p.NotAdmitted = b.leavesOut(i, name)
		}
		a.Owners = append(a.Owners, p)
	}
	return a
}

// RefusedOwners returns the owners that were refused a name, lower case and absolute, and that are
// in none of the answers, because the name is outside of their zones. It waits for nobody.
func (a *Agent) RefusedOwners(name string, answers []status.BlockAnswer, now time.Time) (parts []status.OwnerPart) {
	for _, o := range *a.owners.Load() {
		if slices.ContainsFunc(answers, func(a status.BlockAnswer) bool {
			return slices.ContainsFunc(a.Owners, func(p status.OwnerPart) bool { return p.ID == o.id })
		}) {
			continue
		}
		u := o.reportStatus(now)
		p := o.log.PartOf(&u, func(service, fqdn string) bool {
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
func (b *Block) matchesName(i int, service, fqdn, name string) bool {
	if status.IsCalled(service, name) {
		return true
	}
	f, err := federation.ParseFQDN(fqdn)
	if err != nil {
		return false
	}
	f, _ = b.config.Zone.PublishedName(i, f)
	if name == f.String() {
		return true
	}
	// Below an fqdn are the names of its instances, protocols and addresses. Below the fqdn of a
	// whole zone are all names of the zone.
	return !slices.Contains(b.config.Zone.Owners[i].Origins, f) && strings.HasSuffix(name, "."+f.String())
}

// leavesOut returns which import filter leaves out services of the owner at an index that have the
// name, and which rule does not admit them. Either is empty where none does.
func (b *Block) leavesOut(i int, name string) (notImported, notAdmitted string) {
	fqdn, err := federation.ParseFQDN(withoutProtocol(name))
	if err != nil {
		return "", "" // no service can have it
	}
	originals := b.config.Zone.OriginalNames(i, fqdn)
	if len(originals) == 0 {
		return "", fmt.Sprintf("rename publishes what this owner has at %s under another name", fqdn)
	}
	for _, of := range originals {
		if missed := b.config.Zone.Owners[i].Import.Missed(of); missed != "" {
			notImported = missed
			continue
		}
		_, invalid := b.config.Zone.PublishedName(i, of)
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
