package config

import (
	"fmt"
	"slices"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
)

const noSPIFFE = "is a DNS name, and where identities come from a SPIFFE agent those of consumers are SPIFFE IDs"

// findWarnings returns what is probably not meant in a configuration without mistakes that
// the reader has read.
func (r *configReader) findWarnings(c Config) []problem.Problem {
	found := problem.List{Room: problem.Room}
	warnf := func(path, format string, args ...any) { found.Add(r.ProblemAt(path, format, args...)) }
	agent := c.Identity.SPIFFE.Socket != ""
	rules := slices.ContainsFunc(c.Catalogs, func(of Catalog) bool { return len(of.Exports) > 0 })
	for i, id := range c.Allow.IDs {
		field := fmt.Sprintf("allow.ids[%d]", i)
		switch {
		case agent && !id.IsSPIFFE():
			warnf(field, noSPIFFE)
		case rules && !slices.ContainsFunc(c.Catalogs, func(of Catalog) bool { return tellsConsumer(of, id) }):
			warnf(field, "may subscribe and is told nothing: it is in the 'to' of no rule")
		}
	}
	for path, s := range c.allSources() {
		if g := s.Registration; g != nil && g.Store.Etcd != nil && slices.ContainsFunc(g.Store.Etcd.Endpoints, isPlainElsewhere) {
			warnf(path+".store.etcd", "is asked without TLS: whoever is on the way can register and withdraw services")
		}
		if s.Relay != nil && s.Relay.HasOnlyIP() {
			warnf(path+".addresses", noName)
		}
	}
	for i, of := range c.Catalogs {
		field := fmt.Sprintf("catalogs[%d].exports", i)
		if of.Policy != nil && len(of.Exports) == 0 {
			warnf(field, "is empty: nobody is told anything; leave it out to tell everything to everyone who may subscribe")
		}
		for j, rule := range of.Exports {
			for k, to := range rule.Rule.To {
				field := fmt.Sprintf("%s[%d].to[%d]", field, j, k)
				p, err := pattern.ParseID(to)
				if err != nil {
					continue // never: it has been checked
				}
				switch {
				case agent && to != "*" && !p.IsSPIFFE():
					warnf(field, noSPIFFE)
				case c.Allow.File == "" && len(c.Allow.IDs) > 0 && !slices.ContainsFunc(c.Allow.IDs, p.Matches):
					warnf(field, "is nobody in allow.ids")
				}
			}
		}
	}
	return found.SortByLine()
}

// tellsConsumer reports whether some rule of a catalog is for a consumer with that identity.
func tellsConsumer(c Catalog, id federation.ID) bool {
	return c.Policy == nil || len(c.Policy.ClassOf([]federation.ID{id}).RuleNumbers()) > 0
}
