package config

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// FollowedOwner is another owner. Its bounds are those of a Corefile.
type FollowedOwner struct {
	Name       string          `yaml:"name" as:"owner" doc:"What the followed owner is called in metrics, status and persist, by default its only identity or its first address."`
	Addresses  []string        `yaml:"addresses" as:"replica" least:"one is required" doc:"The owner to follow, as host:port. Several addresses are its replicas, which are tried in turn."`
	IDs        []federation.ID `yaml:"owner_ids" as:"id" quoted:"true" least:"one is required; leave it out where the server name is that of the certificate" doc:"Identities of which the owner must have one, by default tls_servername. With identity.spiffe, one must be a SPIFFE ID."`
	ServerName string          `yaml:"tls_servername" as:"ip or host" doc:"The name to ask for in the TLS handshake, by default the host of each address."`
	Version    wire.APIVersion `yaml:"api" as:"version" default:"v1alpha2" doc:"The version of the protocol that the owner speaks. With v1alpha1, selectors and labels of endpoints are lost."`

	Zones      []federation.FQDN `yaml:"zones" as:"zone" least:"one is required; leave it out for all" doc:"The zones that the owner may publish in, by default all. Services elsewhere are refused."`
	Settle     time.Duration     `yaml:"settle" as:"duration" default:"5s" max:"10m" min:"100ms" doc:"After which silence the catalog of an owner that does not mark its end is complete, 100ms to 10m. Raise it if the owner pauses within its catalog."`
	MaxCatalog int64             `yaml:"max_catalog" as:"size" default:"1GiB" max:"1TiB" min:"1MiB" doc:"The memory that its services may take, at most 1TiB; further ones are refused. A service with one endpoint counts 700 octets."`
}

// Relay is another owner, whose catalog is the whole of this one or a part of it.
type Relay struct {
	FollowedOwner

	Persist string `yaml:"persist" doc:"A file that keeps the catalog through a restart, by default none. Each relay needs a file of its own."`
}

// fillName gives the owner its default name where it has none.
func (f *FollowedOwner) fillName() {
	if f.Name == "" && len(f.Addresses) > 0 {
		f.Name = mtls.Consumer{ServerName: f.ServerName, IDs: f.IDs}.OwnerName(f.Addresses)
	}
}

// toSource returns the source that a relay is, under the default name where it has none.
func (l *Relay) toSource(lifetime time.Duration) Source {
	l.fillName()
	return Source{Name: "relay:" + l.Name, Lifetime: lifetime, Relay: l}
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
func (r *configReader) checkIdentities(path string, f *FollowedOwner, agent bool) {
	r.addProblemIf(agent && !slices.ContainsFunc(f.IDs, federation.ID.IsSPIFFE), path, "needs a SPIFFE ID in owner_ids: where identities come from a SPIFFE agent the owner is known by that")
}

// noName is a warning of what isUnnamed reports.
const noName = "has an IP address, for which the certificate of the owner must be valid; few are: name the owner in owner_ids, or its host in tls_servername"

// isUnnamed reports whether an owner is only known by an IP address, which few
// certificates have.
func (f *FollowedOwner) isUnnamed() bool {
	return len(f.IDs) == 0 && f.ServerName == "" && slices.ContainsFunc(f.Addresses, func(address string) bool {
		host, _, err := net.SplitHostPort(address)
		_, failure := netip.ParseAddr(host)
		return err == nil && failure == nil
	})
}
