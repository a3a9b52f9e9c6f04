package serve

import (
	"context"
	"fmt"
	"strings"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/federation"
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
	before := p.relayOf(serverName)
	if len(l.Accept) > 0 {
		config.Inbound = relay.NewInbound(p.identity, l.Accept, before.Inbound(), config.Logger)
		config.Subscription = config.Inbound.Subscription()
	} else if !p.identity.ForClients() {
		p.logger.Error("the certificate of the identity is not valid for clients (clientAuth), so owners refuse this relay; have it issued for servers and clients", "source", s.Name)
	}
	if before != nil && before.Name() == l.Name {
		config.Before = before
	}
	of := &config.Subscription
	of.Version, of.File, of.FileLock = l.Version, l.Persist, lock
	return relay.New(config)
}

// mayDial returns why an owner may not dial: it may where the catalog that it asks for, as
// consumers do, is filled by a relay that accepts it.
func (p *Publisher) mayDial(serverName string, ids []federation.ID) error {
	if in := p.inbound(serverName); in == nil || !in.May(ids) {
		return fmt.Errorf("no relay accepts it for the server name %s: name its identity in relay.accept", federation.Quote(serverName))
	}
	return nil
}

// take passes on the connection of an owner that may dial.
func (p *Publisher) take(conn *mtls.Reversed) {
	if in := p.inbound(conn.Peer.State.ServerName); in != nil {
		in.Take(conn)
	} else {
		conn.Close()
	}
}

// inbound returns what takes the connections of owners that ask for the server name, or nil.
func (p *Publisher) inbound(serverName string) *relay.Inbound {
	p.mu.Lock()
	defer p.mu.Unlock()
	serverName = strings.ToLower(strings.TrimSuffix(serverName, ".")) // RFC 4343
	if p.catalogs[serverName] == nil {
		serverName = ""
	}
	return p.relayOf(serverName).Inbound()
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
