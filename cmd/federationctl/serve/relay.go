package serve

import (
	"context"
	"fmt"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/source/relay"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// openRelay returns the source of another owner, which is not subscribed to yet. This owner
// is its consumer under the identity that it has for its own consumers.
func (p *Publisher) openRelay(ctx context.Context, s config.Source, policy wire.AddressPolicy) (source.Source, error) {
	l := s.Relay
	if l.Persist != "" {
		if _, err := consumer.CheckFile(ctx, consumer.Files(), l.Persist); err != nil {
			return nil, fmt.Errorf("persist: %w", err)
		}
	}
	config := relay.Config{
		Subscription: l.Subscription(p.identity, l.Persist), Name: l.Name,
		Settle: l.Settle, MaxCatalog: l.MaxCatalog, Zones: l.Zones, Policy: policy,
		Logger: p.logger.With("source", s.Name),
	}
	if !p.identity.ForClients() {
		p.logger.Error("the certificate of the identity is not valid for clients (clientAuth), so owners refuse this relay; have it issued for servers and clients", "source", s.Name)
	}
	return relay.New(config)
}
