package export

import (
	"cmp"
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// Claim says how good the claim of an export to its fqdn is. The zero value is that of
// a ServiceExport to a name of its namespace.
type Claim struct {
	Granted  bool // by the configuration, and not by the namespace that the export is in
	Labelled bool // by the label of a Service, which goes behind every ServiceExport
	Since    time.Time
}

// Claims decides between the exports of a cluster that want one fqdn. One of the
// namespace that the name belongs to goes first, then a ServiceExport before a label,
// then the older one, and of two of one age the one with the lesser key. It is not safe
// for concurrent use. The zero value is ready for use.
type Claims struct {
	claims  map[string]claim            // by key
	claimed map[federation.FQDN][]claim // the first has the name
}

// claim is the wish of one export to have a name.
type claim struct {
	Claim

	key  string
	fqdn federation.FQDN
}

func (c claim) compare(d claim) int {
	return cmp.Or(
		cmp.Compare(b2i(c.Granted), b2i(d.Granted)), cmp.Compare(b2i(c.Labelled), b2i(d.Labelled)),
		c.Since.Compare(d.Since), cmp.Compare(c.key, d.key),
	)
}

// before says why c goes before d.
func (c claim) before(d claim) string {
	switch {
	case c.Granted != d.Granted:
		return "which belongs to its namespace"
	case c.Labelled != d.Labelled:
		return "by a ServiceExport, which goes before a label"
	}
	return "which is older"
}

// Set notes the verdict of the export with the given key, such as
// namespace/service, and returns the keys of all other exports for which
// [Claims.Judge] has a new answer. An export that is refused claims nothing. Where no
// two exports want one name, nothing is returned and no list is copied.
func (c *Claims) Set(key string, v Verdict) (changed []string) {
	before, had := c.claims[key]
	if v.Service == nil {
		return c.Remove(key)
	}
	after := claim{v.Claim, key, v.Service.FQDN}
	if had && before.fqdn == after.fqdn && before.compare(after) == 0 {
		return nil
	}
	changed = c.Remove(key)
	if c.claims == nil {
		c.claims = make(map[string]claim)
		c.claimed = make(map[federation.FQDN][]claim)
	}
	list := c.claimed[after.fqdn]
	i, _ := slices.BinarySearchFunc(list, after, claim.compare)
	if i == 0 {
		changed = append(changed, keys(list)...)
	}
	c.claims[key], c.claimed[after.fqdn] = after, slices.Insert(list, i, after)
	slices.Sort(changed)
	return slices.Compact(changed)
}

// Remove forgets the export, and returns what Set does.
func (c *Claims) Remove(key string) (changed []string) {
	old, ok := c.claims[key]
	if !ok {
		return nil
	}
	delete(c.claims, key)
	list := c.claimed[old.fqdn]
	i, _ := slices.BinarySearchFunc(list, old, claim.compare)
	list = slices.Delete(list, i, i+1)
	if len(list) == 0 {
		delete(c.claimed, old.fqdn)
		return nil
	}
	c.claimed[old.fqdn] = list
	if i > 0 {
		return nil
	}
	changed = keys(list)
	slices.Sort(changed)
	return changed
}

func keys(list []claim) (found []string) {
	for i := range list {
		found = append(found, list[i].key)
	}
	return found
}

// Judge returns v, or its refusal where another export than key has the fqdn. The
// verdict must have been Set.
func (c *Claims) Judge(key string, v Verdict) Verdict {
	if v.Service == nil {
		return v
	}
	list := c.claimed[v.Service.FQDN]
	if len(list) == 0 || list[0].key == key {
		return v
	}
	v.Refusal = refusef(Conflict, "%s wants the name %s, and %s has it, %s", key, federation.Quote(v.Service.FQDN.String()), list[0].key, list[0].before(claim{Claim: v.Claim}))
	v.Service, v.Kind = nil, 0
	return v
}
