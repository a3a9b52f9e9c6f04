package serve

import (
	"context"
	"fmt"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/source"
	"github.com/hamlet-federation/coredns-federation/federation/source/relay"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// openRelay returns the source of another owner, which is not subscribed to yet. This owner
// is its consumer under the identity that it has for its own consumers.
//
// What a relay of the same owner in the catalog of the server name holds is taken over.
func (p *Publisher) openRelay(ctx context.Context, s config.Source, serverName string, policy wire.Policy) (source.Source, error) {
	l, store := s.Relay, consumer.Files()
	if l.Persist != "" {
		path, err := consumer.CheckFile(ctx, store, l.Persist)
		if err != nil {
			return nil, fmt.Errorf("persist: %w", err)
		}
		if p.sharedFiles[path] == nil {
			p.sharedFiles[path] = new(consumer.SharedFile)
		}
		store = p.sharedFiles[path].Store(store)
	}
	if !p.identity.ForClients() {
		p.logger.Error("the certificate of the identity is not valid for clients (clientAuth), so owners refuse this relay; have it issued for servers and clients", "source", s.Name)
	}
	before := p.relayOf(serverName)
	if before != nil && before.Name() != l.Name {
		before = nil
	}
	return relay.New(relay.Config{
		Subscription: consumer.Subscription{
			Addresses: l.Addresses, Identity: mtls.Consumer{Source: p.identity, ServerName: l.ServerName, IDs: l.IDs},
			Version: l.Version, Keepalive: l.Keepalive, MaxMessage: l.MaxMessage, File: l.Persist,
		},
		Name: l.Name, FormerNames: l.FormerNames(), Before: before,
		Settle: l.Settle, MaxServices: l.MaxServices, MaxCatalog: l.MaxCatalog, Zones: l.Zones, Policy: policy,
		Logger: p.logger.With("source", s.Name), Tracer: p.tracer, Store: store,
	})
}

// relayOf returns the relay that fills the catalog of the server name, or nil.
func (p *Publisher) relayOf(serverName string) *relay.Source {
	if c := p.catalogs[serverName]; c != nil {
		for _, e := range c.entries {
			if of, ok := e.Source.(*relay.Source); ok { // there is one at most
				return of
			}
		}
	}
	return nil
}
