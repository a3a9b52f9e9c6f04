package serve

import (
	"os"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/source/consul"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// tokenVariable has the token in the environment, as for Consul's own tools.
const tokenVariable = "CONSUL_HTTP_TOKEN" //nolint:gosec // the name of one

// openConsul returns the source of a datacenter, which is not connected yet.
func (p *Publisher) openConsul(s config.Source, policy wire.AddressPolicy) source.Source {
	c := s.Consul
	return consul.New(consul.Config{
		Address: c.Address, TLS: c.TLS, TokenFile: c.TokenFile, Token: os.Getenv(tokenVariable), Datacenter: c.Datacenter,
		Name: c.Name, Zone: c.Zone, Services: c.Services, Tags: c.Tags, AddressOf: c.AddressOf, Warning: c.Warning, ByTag: c.ByTag,
		Policy: policy, Logger: p.logger.With("source", s.Name),
	})
}
