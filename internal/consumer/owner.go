package consumer

import (
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// Owner is an owner that is followed, as a configuration file has it. Its bounds are those of a Corefile.
type Owner struct {
	Name       string          `yaml:"name" as:"owner" doc:"What the followed owner is called in metrics, status and persist, by default its only identity or its first address."`
	Addresses  []string        `yaml:"addresses" as:"replica" least:"one is required" doc:"The owner to follow, as host:port. Several addresses are its replicas, which are tried in turn."`
	IDs        []federation.ID `yaml:"owner_ids" as:"id" quoted:"true" least:"one is required; leave it out where the server name is that of the certificate" doc:"Identities of which the owner must have one, by default tls_servername. With identity.spiffe, one must be a SPIFFE ID."`
	ServerName string          `yaml:"tls_servername" as:"ip or host" doc:"The name to ask for in the TLS handshake, by default the host of each address."`
	Version    wire.APIVersion `yaml:"api" as:"version" default:"v1alpha2" doc:"The version of the protocol that the owner speaks. With v1alpha1, selectors and labels of endpoints are lost."`

	Zones      []federation.FQDN `yaml:"zones" as:"zone" least:"one is required; leave it out for all" doc:"The zones that the owner may publish in, by default all. Services elsewhere are refused."`
	Settle     time.Duration     `yaml:"settle" as:"duration" default:"5s" max:"10m" min:"100ms" doc:"After which silence the catalog of an owner that does not mark its end is complete, 100ms to 10m. Raise it if the owner pauses within its catalog."`
	MaxCatalog int64             `yaml:"max_catalog" as:"size" default:"1GiB" max:"1TiB" min:"1MiB" doc:"The memory that its services may take, at most 1TiB; further ones are refused. A service with one endpoint counts 700 octets."`
}

// FillName gives the owner its default name where it has none.
func (o *Owner) FillName() {
	if o.Name == "" && len(o.Addresses) > 0 {
		o.Name = mtls.Consumer{ServerName: o.ServerName, IDs: o.IDs}.OwnerName(o.Addresses)
	}
}

// HasOnlyIP reports whether the owner is only known by an IP address, which few certificates have.
func (o *Owner) HasOnlyIP() bool {
	return len(o.IDs) == 0 && o.ServerName == "" && slices.ContainsFunc(o.Addresses, func(address string) bool {
		host, _, err := net.SplitHostPort(address)
		_, failure := netip.ParseAddr(host)
		return err == nil && failure == nil
	})
}

// Subscription returns how the owner is reached with an identity, and in which file its catalog is kept; empty:
// in none.
func (o *Owner) Subscription(identity *mtls.Source, file string) Subscription {
	return Subscription{
		Addresses: o.Addresses, Identity: mtls.Consumer{Source: identity, ServerName: o.ServerName, IDs: o.IDs}, Version: o.Version, File: file,
	}
}
