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
	l := s.Relay
	var lock *consumer.FileLock
	if l.Persist != "" {
		path, err := consumer.CheckFile(ctx, consumer.Files(), l.Persist)
		if err != nil {
			return nil, fmt.Errorf("persist: %w", err)
		}
		if p.fileLocks[path] == nil {
			p.fileLocks[path] = new(consumer.FileLock)
		}
		lock = p.fileLocks[path]
	}
	config := relay.Config{
		Subscription: consumer.Subscription{
			Addresses: l.Addresses, Identity: mtls.Consumer{Source: p.identity, ServerName: l.ServerName, IDs: l.IDs},
		},
		Name: l.Name, FormerNames: l.FormerNames(),
		Settle: l.Settle, MaxCatalog: l.MaxCatalog, Zones: l.Zones, Policy: policy,
		Logger: p.logger.With("source", s.Name),
	}
	if !p.identity.ForClients() {
		p.logger.Error("the certificate of the identity is not valid for clients (clientAuth), so owners refuse this relay; have it issued for servers and clients", "source", s.Name)
	}
	if before := p.relayOf(serverName); before != nil && before.Name() == l.Name {
		config.Before = before
	}
	of := &config.Subscription
	of.Version, of.File, of.FileLock = l.Version, l.Persist, lock
	return relay.New(config)
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
