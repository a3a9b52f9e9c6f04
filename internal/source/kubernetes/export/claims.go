package export

import (
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/source/internal/claim"
)

// Claim says how good the claim of an export to its fqdn is. The zero value is the claim of a
// ServiceExport to a name of its namespace.
type Claim = claim.Rank

// Claims keeps which exports of a cluster want which fqdn, and decides between them in the order of
// package claim. Its one caller adds a claim with each verdict, and removes it with the export, so
// that there are as many claims as exports. It publishes nothing: Set and Remove return the exports
// that have to be judged again. It is not safe for concurrent use, and the zero value is ready for
// use.
type Claims struct {
	claims  map[string]fqdnClaim // by key
	claimed claim.ByName[federation.FQDN, fqdnClaim]
}

// fqdnClaim is the wish of one export, which its rank names, to have an fqdn.
type fqdnClaim struct {
	rank claim.Rank
	fqdn federation.FQDN
}

// Rank implements [claim.Claim].
func (w fqdnClaim) Rank() claim.Rank { return w.rank }

// Set records the verdict of the export with the given key, such as namespace/service, and returns
// the keys of all other exports for which [Claims.Judge] has a new answer. A refused export claims
// nothing. Where no two exports want one name, Set returns nothing.
func (c *Claims) Set(key string, v Verdict) (changed []string) {
	if v.Service == nil {
		return c.Remove(key)
	}
	after := fqdnClaim{v.Claim, v.Service.FQDN}
	after.rank.Service = key
	if before, had := c.claims[key]; had && before.fqdn == after.fqdn && before.rank.Compare(after.rank) == 0 {
		return nil
	}
	changed = c.Remove(key)
	if c.claims == nil {
		c.claims, c.claimed = make(map[string]fqdnClaim), make(claim.ByName[federation.FQDN, fqdnClaim])
	}
	c.claims[key] = after
	c.claimed.Add(after.fqdn, after)
	changed = append(changed, c.losersAgainst(after)...)
	slices.Sort(changed)
	return slices.Compact(changed)
}

// Remove removes the export, and returns the keys of all other exports for which [Claims.Judge] has
// a new answer.
func (c *Claims) Remove(key string) (changed []string) {
	old, ok := c.claims[key]
	if !ok {
		return nil
	}
	changed = c.losersAgainst(old)
	delete(c.claims, key)
	c.claimed.Remove(old.fqdn, old)
	return changed
}

// losersAgainst returns, in order, the keys of all exports that do not have the name because of w.
func (c *Claims) losersAgainst(w fqdnClaim) (keys []string) {
	list := c.claimed[w.fqdn]
	if list[0].rank.Service != w.rank.Service {
		return nil
	}
	for _, other := range list[1:] {
		keys = append(keys, other.rank.Service)
	}
	slices.Sort(keys)
	return keys
}

// Judge returns v, or its refusal where another export than key has the fqdn. The verdict must have
// been passed to Set.
func (c *Claims) Judge(key string, v Verdict) Verdict {
	if v.Service == nil {
		return v
	}
	list := c.claimed[v.Service.FQDN]
	if len(list) == 0 || list[0].rank.Service == key {
		return v
	}
	first := list[0].rank
	who := first.Service
	if namespace, _, _ := strings.Cut(key, "/"); !strings.HasPrefix(who, namespace+"/") {
		who = "an export of another namespace"
	}
	v.Refusal = refusef(Conflict, "%s cannot have the name %s: %s has it, %s", key, safetext.Quote(v.Service.FQDN.String()), who, first.BeforeReason(v.Claim))
	v.Refusal.Detail = first.Service + " has the name"
	v.Service, v.Kind = nil, ""
	return v
}
