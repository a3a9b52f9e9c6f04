package federationplugin

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/coredns/coredns/plugin/transfer"

	"github.com/hamlet-federation/coredns-federation/federation/agent"
	"github.com/hamlet-federation/coredns-federation/federation/zone"
)

var log = clog.NewWithPlugin(directive)

// owners is the one value that outlives a configuration: a reload hands streams
// and catalogs over through it.
var owners = agent.New(agent.Config{Logger: newLogger(log), Observer: observer{}})

func init() { plugin.Register(directive, setup) }

// setup reads the federation blocks of one server block. What it starts, it
// starts with the server, and ends with it.
func setup(c *caddy.Controller) error {
	configs, err := parse(c)
	if err != nil {
		return plugin.Error(directive, err)
	}
	registerMetrics()
	f := newFederation(configs)
	f.wasReady = owners.Ready()
	config := dnsserver.GetConfig(c)
	configuration := configurationOf(c)
	var attached *agent.Block
	var notifier sync.WaitGroup

	c.OnStartup(func() error {
		tellRunning()
		b, err := owners.Attach(f.blockConfig(configuration, config))
		if wrong, ok := errors.AsType[*agent.OwnerError](err); ok {
			return plugin.Error(directive, fmt.Errorf("%s - Error: %w", configs[wrong.Index].Position, err))
		}
		if err != nil {
			return plugin.Error(directive, err)
		}
		attached = b
		f.serve(b)
		if t, ok := config.Handler("transfer").(*transfer.Transfer); ok {
			notifier.Go(func() { f.notify(b, t) })
		}
		return nil
	})
	c.OnShutdown(func() error {
		if attached != nil {
			owners.Detach(attached)
		}
		notifier.Wait()
		f.hosts.close()
		return nil
	})
	c.OnRestartFailed(retain)

	config.AddPlugin(func(next plugin.Handler) plugin.Handler {
		f.Next = next
		return f
	})
	return nil
}

// storageKey finds the value that stands for a configuration.
type storageKey struct{}

// configurationOf returns a value that is the same for all server blocks that
// are read together, and for no others.
func configurationOf(c *caddy.Controller) any {
	if c.Get(storageKey{}) == nil {
		c.Set(storageKey{}, new(byte))
	}
	return c.Get(storageKey{})
}

// tellRunning makes the configurations that run, and that may have no federation
// block, take back what is attached from now on, should the start fail: only
// they are told.
func tellRunning() {
	for _, instance := range caddy.Instances() {
		instance.StorageMu.Lock()
		if instance.Storage[storageKey{}] == nil {
			instance.Storage[storageKey{}] = new(byte)
			instance.OnRestartFailed = append(instance.OnRestartFailed, retain)
		}
		instance.StorageMu.Unlock()
	}
}

// retain takes back what configurations attached that are not running.
func retain() error {
	var all []any
	for _, instance := range caddy.Instances() {
		instance.StorageMu.RLock()
		all = append(all, instance.Storage[storageKey{}])
		instance.StorageMu.RUnlock()
	}
	owners.Retain(all)
	return nil
}

// blockConfig is what the agent needs to know.
func (f *Federation) blockConfig(configuration any, server *dnsserver.Config) agent.BlockConfig {
	b := agent.BlockConfig{Configuration: configuration, Zone: zone.Config{NameServer: boundAddresses(server.ListenHosts)}}
	for i := range f.configs {
		c := &f.configs[i]
		o := agent.OwnerConfig{
			Addresses: c.Addresses, Files: c.TLS, ServerName: c.ServerName, IDs: c.OwnerIDs, Version: c.API,
			Retention: c.Retention, Settle: c.Settle, Keepalive: c.Keepalive, Persist: c.Persist,
			MaxServices: c.MaxServices, MaxCatalog: c.MaxCatalog, MaxMessage: c.MaxMessage, AllowAddresses: c.AllowAddresses,
		}
		renames := make([]zone.Rename, len(c.Renames))
		for j, r := range c.Renames {
			renames[j] = zone.Rename(r)
		}
		b.Owners = append(b.Owners, o)
		b.Zone.Owners = append(b.Zone.Owners, zone.Owner{
			ID: o.ID(), Origins: c.Zones, Renames: renames,
			TTL: c.TTL, NegativeTTL: c.NegativeTTL, Retention: c.Retention, Admits: f.policies[o.ID()].Admits,
		})
	}
	return b
}

// boundAddresses returns the addresses that clients may reach the server at:
// those that it is bound to, or all of the machine when it is bound to none.
func boundAddresses(hosts []string) []netip.Addr {
	if len(hosts) == 0 || hosts[0] == "" {
		hosts = nil
		interfaces, err := net.InterfaceAddrs()
		if err != nil {
			log.Warningf("No addresses for the name server of the zones: %v", err)
		}
		for _, a := range interfaces {
			hosts = append(hosts, a.String())
		}
	}
	var bound []netip.Addr
	for _, h := range hosts {
		a, err := netip.ParseAddr(h)
		if p, prefixErr := netip.ParsePrefix(h); prefixErr == nil {
			a, err = p.Addr(), nil
		}
		if a = a.Unmap(); err == nil && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsUnspecified() {
			bound = append(bound, a.WithZone(""))
		}
	}
	slices.SortFunc(bound, netip.Addr.Compare)
	return slices.Compact(bound)
}

// notifyDelay is the least time between two rounds of NOTIFY.
const notifyDelay = time.Second

// notify tells secondaries of every zone whose serial moved, until the block is
// detached.
func (f *Federation) notify(b *agent.Block, t *transfer.Transfer) {
	told := make(map[string]uint32)
	for {
		select {
		case <-b.Detached():
			return
		case <-b.Changed():
		}
		z := b.Zone()
		for _, origin := range f.zones() {
			if _, synced := z.Synced(origin, time.Now()); !synced || f.shared(origin) {
				continue
			}
			if serial := z.SOA(origin).Serial; told[origin] != serial {
				told[origin] = serial
				if err := t.Notify(origin); err != nil {
					log.Warningf("%v", err)
				}
			}
		}
		// What changes meanwhile waits in Changed.
		pause := time.NewTimer(notifyDelay)
		select {
		case <-b.Detached():
			pause.Stop()
			return
		case <-pause.C:
		}
	}
}
