package serve

import (
	"net/url"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/source/nsm"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// openNSM returns the source of a registry, which is not connected yet.
func (p *Publisher) openNSM(s config.Source, policy wire.AddressPolicy) (source.Source, error) {
	c := nsm.Config{
		Registry: s.NSM.Registry, Zone: s.NSM.Zone, Name: s.NSM.Name, Policy: policy, Logger: p.logger.With("source", s.Name),
	}
	if !s.NSM.Plain {
		address, err := url.Parse(s.NSM.Registry)
		if err != nil {
			return nil, err
		}
		c.Credentials = p.identity.Client(address.Hostname(), s.NSM.IDs)
	}
	return nsm.New(c), nil
}
