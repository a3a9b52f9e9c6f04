package config

import (
	"fmt"
	"slices"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// Relay is another owner, whose catalog is the whole of this one or a part of it.
type Relay struct {
	consumer.Owner

	Persist string `yaml:"persist" doc:"A file that keeps the catalog through a restart, by default none. Each relay needs a file of its own."`
}

// PartialRelay is a relay beside other sources.
type PartialRelay struct {
	Relay
	sourceLifetime
}

// parseZone takes a zone.
func parseZone(text string) (federation.FQDN, error) {
	zone, err := federation.ParseOrigin(text)
	if err != nil {
		return zone, fmt.Errorf("%s is no zone: %w", safetext.Quote(text), err)
	}
	return zone, nil
}

// checkIdentities notes that an owner at a path has no identity by which it is known, where identities
// come from an agent.
func (r *configReader) checkIdentities(path string, o *consumer.Owner, agent bool) {
	r.addProblemIf(agent && !slices.ContainsFunc(o.IDs, federation.ID.IsSPIFFE), path, "needs a SPIFFE ID in owner_ids: where identities come from a SPIFFE agent the owner is known by that")
}

// noName is a warning of what consumer.Owner.HasOnlyIP reports.
const noName = "has an IP address, for which the certificate of the owner must be valid; few are: name the owner in owner_ids, or its host in tls_servername"
