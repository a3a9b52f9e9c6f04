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
	c := s.Consul.Config
	c.Token, c.Policy, c.Logger = os.Getenv(tokenVariable), policy, p.logger.With("source", s.Name)
	return consul.New(c)
}
