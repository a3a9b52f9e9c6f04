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

	"github.com/hamlet-federation/coredns-federation/internal/dns/agent"
	"github.com/hamlet-federation/coredns-federation/internal/dns/hostname"
	"github.com/hamlet-federation/coredns-federation/internal/loglimit"
	"github.com/hamlet-federation/coredns-federation/internal/status/page"
	"github.com/hamlet-federation/coredns-federation/plugin/corefile"
	"github.com/hamlet-federation/coredns-federation/plugin/loopback"
)

var log = clog.NewWithPlugin(corefile.Directive)

// owners is the agent of the process, which outlives a configuration: it keeps streams and
// catalogs through a reload.
var owners = agent.New(agent.Config{Logger: newLogger(log), Observer: metricsObserver{}})

// shown is the status of the process, which outlives a configuration as well.
var shown = &statusPage{Agent: owners, logger: newLogger(log), began: time.Now(), asking: make(chan struct{}, maxAsking)}

var panics = panicReporter{loglimit.NewLogger(newLogger(log))}

func init() { plugin.Register(corefile.Directive, setup) }

// setup reads the federation blocks of one server block. It starts nothing itself:
// what runs, starts with the server and ends with it.
func setup(c *caddy.Controller) error {
	config := dnsserver.GetConfig(c)
	blocks, warnings, err := corefile.Parse(c.Dispenser, corefile.Server{Keys: c.ServerBlockKeys, Root: config.Root})
	if err != nil {
		return plugin.Error(corefile.Directive, err)
	}
	for _, warning := range warnings {
		newLogger(log).Warn("Corefile has warnings", "file", warning.File, "warnings", fmt.Sprintf("line %d: %s", warning.Line, warning.Text))
	}
	registerMetrics()
	f := newFederation(blocks)
	f.wasReady = owners.Ready()
	own := configurationOf(c)
	own.hosts = append(own.hosts, f.hosts)
	if err := own.addStatus(blocks); err != nil {
		return plugin.Error(corefile.Directive, err)
	}
	var notifier sync.WaitGroup
	leave := func(detach func(...*agent.Block)) {
		// The first server block ends all of them: one after the other, each could take
		// seconds.
		shown.keepConfigurations(func(c *instanceConfig) bool { return c != own })
		detach(own.blocks...)
		notifier.Wait()
		hostname.Close(own.hosts...)
	}

	c.OnStartup(func() error {
		watchRestart()
		f.takeOver(own)
		b, err := owners.Attach(f.blockConfig(own, config))
		if wrong, ok := errors.AsType[*agent.OwnerError](err); ok {
			return plugin.Error(corefile.Directive, fmt.Errorf("%s - Error: %w", blocks[wrong.Index].Position, err))
		}
		if err != nil {
			return plugin.Error(corefile.Directive, err)
		}
		own.blocks = append(own.blocks, b)
		f.setBlock(b)
		if err := shown.openPort(own); err != nil {
			return plugin.Error(corefile.Directive, err)
		}
		shown.showServer(&startedServer{f, own, b, c.ServerBlockKeys, loopback.NewNetwork(c.ServerBlockKeys, config.ListenHosts)})
		if t, ok := config.Handler("transfer").(*transfer.Transfer); ok {
			notifier.Go(func() { f.notifySecondaries(b, t) })
		}
		return nil
	})
	c.OnShutdown(func() error {
		// A reload has stopped the servers, and taken the instance out, before. Otherwise the
		// process ends, and answers until it has.
		if !slices.Contains(allConfigurations(), own) {
			leave(owners.DetachReplaced)
		}
		return nil
	})
	c.OnFinalShutdown(func() error {
		// After that of health, which stands earlier in the order of plugins, and answers for
		// as long as lameduck says.
		leave(owners.Detach)
		return nil
	})
	c.OnRestartFailed(retainRunning)

	config.AddPlugin(func(next plugin.Handler) plugin.Handler {
		f.Next = next
		return f
	})
	return nil
}

// storageKey is the key of the configuration in the storage of an instance.
type storageKey struct{}

// instanceConfig is the configuration of the server blocks that were read together.
type instanceConfig struct {
	statusBlock *corefile.Block // the block that says where the status is served, or nil; only addStatus writes it
	blocks      []*agent.Block  // blocks that have started
	hosts       []*hostname.Resolver
}

// addStatus adds what the blocks of one more server block say of the status, or returns a conflict
// between them.
func (own *instanceConfig) addStatus(blocks []corefile.Block) error {
	for i := range blocks {
		b := &blocks[i]
		if b.Status == (page.Config{}) {
			continue
		}
		if own.statusBlock == nil {
			own.statusBlock = b
		}
		if err := b.StatusConflict(own.statusBlock); err != nil {
			return fmt.Errorf("%s - Error: %w in the block at %s", b.Position, err, own.statusBlock.Position)
		}
	}
	return nil
}

// configurationOf returns the configuration that the server block belongs to.
func configurationOf(c *caddy.Controller) *instanceConfig {
	known, ok := c.Get(storageKey{}).(*instanceConfig)
	if !ok {
		known = new(instanceConfig)
		c.Set(storageKey{}, known)
	}
	return known
}

// watchRestart registers retainRunning with the running configurations, which may have no
// federation block. When the new configuration fails to start, CoreDNS calls OnRestartFailed of the
// running ones only.
func watchRestart() {
	for _, instance := range caddy.Instances() {
		instance.StorageMu.Lock()
		if instance.Storage[storageKey{}] == nil {
			instance.Storage[storageKey{}] = new(instanceConfig)
			instance.OnRestartFailed = append(instance.OnRestartFailed, retainRunning)
		}
		instance.StorageMu.Unlock()
	}
}

// retainRunning detaches the blocks of configurations that are not running.
func retainRunning() error {
	running := allConfigurations()
	owners.RetainConfigurations(func(c any) bool {
		return slices.ContainsFunc(running, func(r *instanceConfig) bool { return c == r })
	})
	shown.keepConfigurations(func(c *instanceConfig) bool { return slices.Contains(running, c) })
	return nil
}

// takeOver takes over the addresses of hosts that other configurations have looked up, so that a
// reload forgets none.
func (f *Federation) takeOver(own *instanceConfig) {
	for _, c := range allConfigurations() {
		if c == own {
			continue
		}
		for _, before := range c.hosts {
			f.hosts.TakeOver(before)
		}
	}
}

// allConfigurations returns the configurations of all instances, with federation blocks or without.
func allConfigurations() (all []*instanceConfig) {
	for _, instance := range caddy.Instances() {
		instance.StorageMu.RLock()
		if c, ok := instance.Storage[storageKey{}].(*instanceConfig); ok {
			all = append(all, c)
		}
		instance.StorageMu.RUnlock()
	}
	return all
}

// blockConfig returns the configuration of the server block for the agent.
func (f *Federation) blockConfig(configuration any, server *dnsserver.Config) agent.BlockConfig {
	c := f.config
	c.Configuration = configuration
	c.Zone.NameServer = boundAddresses(server.ListenHosts)
	return c
}

// boundAddresses returns the addresses at which clients may reach the server, sorted: those that
// the server is bound to, or those of all interfaces when it is bound to none. It leaves out
// loopback and link-local addresses.
func boundAddresses(hosts []string) []netip.Addr {
	if len(hosts) == 0 || hosts[0] == "" {
		hosts = nil
		interfaces, err := net.InterfaceAddrs()
		if err != nil {
			newLogger(log).Warn("the name server of the zones has no address: those of this machine cannot be read", "error", err)
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

// notifySecondaries sends NOTIFY to the secondaries of every zone whose serial has changed,
// until the block is detached.
func (f *Federation) notifySecondaries(b *agent.Block, t *transfer.Transfer) {
	notified := make(map[string]uint32) // serial by origin
	for {
		select {
		case <-b.Detached():
			return
		case <-b.Changed():
		}
		z := b.Zone()
		for _, origin := range f.zoneNames() {
			select {
			case <-b.Detached():
				return // a secondary that does not answer takes seconds
			default:
			}
			if _, synced := z.OriginSynced(origin, time.Now()); !synced || f.mayPassOn(origin) {
				continue
			}
			if serial := z.SOA(origin).Serial; notified[origin] != serial {
				notified[origin] = serial
				if err := t.Notify(origin); err != nil {
					newLogger(log).Warn("secondaries were not notified", "zone", origin, "error", err)
				}
			}
		}
		// Changed remembers what changes during the pause.
		pause := time.NewTimer(notifyDelay)
		select {
		case <-b.Detached():
			pause.Stop()
			return
		case <-pause.C:
		}
	}
}
