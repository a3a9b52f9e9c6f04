package serve

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls/allowfile"
	"github.com/hamlet-federation/coredns-federation/internal/file"
)

// allowance is who may subscribe: those whom the configuration names, and those in a
// file.
type allowance struct {
	file *file.File         // nil when there is none; read-only
	stop context.CancelFunc // ends what follows the file; nil before it runs; used by the publisher alone

	mu    sync.Mutex
	ids   []federation.ID           // of the configuration
	read  []federation.ID           // of the file, as it was read last; named follows
	named []federation.ID           // of the file
	set   func(ids []federation.ID) // what both are told to; nil while they are not in effect
}

// openAllowance reads an allow file, if there is one. It is not in effect yet.
func openAllowance(ctx context.Context, path string, logger *slog.Logger, edits *file.Group) (*allowance, error) {
	a := &allowance{}
	if path == "" {
		return a, nil
	}
	var err error
	a.file, err = allowfile.Open(ctx, allowfile.Config{Path: path, Set: a.update, Logger: logger, Read: a.foresee, Group: edits})
	return a, err
}

// foresee notes what update will take.
func (a *allowance) foresee(named []federation.ID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.read = named
}

// foreseen returns who may subscribe if ids are those of the configuration, once the file is
// in force as it was read.
func (a *allowance) foreseen(ids []federation.ID) []federation.ID {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Concat(ids, a.named, a.read)
}

// update takes the identities of the file.
func (a *allowance) update(named []federation.ID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.named = named
	if a.set != nil {
		a.set(slices.Concat(a.ids, named))
	}
}

// enforce tells set who may subscribe, now and when the file changes.
func (a *allowance) enforce(ids []federation.ID, set func(ids []federation.ID)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ids, a.set = ids, set
	set(slices.Concat(ids, a.named))
}

// narrow tells set who may subscribe both now and when next is in effect with ids, and
// ends what enforce does. Next may be a itself.
func (a *allowance) narrow(ids []federation.ID, next *allowance) {
	after := make(map[federation.ID]bool)
	for _, id := range next.with(ids) {
		after[id] = true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.set != nil {
		a.set(slices.DeleteFunc(slices.Concat(a.ids, a.named), func(id federation.ID) bool { return !after[id] }))
	}
	a.set = nil
}

// with returns who may subscribe if ids are those of the configuration.
func (a *allowance) with(ids []federation.ID) []federation.ID {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Concat(ids, a.named)
}

// widens reports whether somebody may subscribe after a change who may not before it.
// Next takes the place of the allowance in effect, unless it is nil.
func (p *Publisher) widens(allow config.Allow, next *allowance) bool {
	if p.allowed == nil {
		return false // there is nothing before
	}
	before := make(map[federation.ID]bool)
	for _, id := range p.allowed.with(p.config.Allow.IDs) {
		before[id] = true
	}
	return slices.ContainsFunc(cmp.Or(next, p.allowed).foreseen(allow.IDs), func(id federation.ID) bool { return !before[id] })
}

// narrow begins a change of who may subscribe, which allow completes: until then it is
// who may before and after. Next takes the place of the allowance in effect, unless it
// is nil.
func (p *Publisher) narrow(allow config.Allow, next *allowance) {
	p.allowed.narrow(allow.IDs, cmp.Or(next, p.allowed))
}

// allow tells the server who may subscribe. Next takes the place of the allowance in
// effect, unless it is nil.
func (p *Publisher) allow(allow config.Allow, next *allowance) {
	if next != nil {
		if old := p.allowed; old != nil && old.stop != nil {
			old.stop()
		}
		p.mu.Lock()
		p.allowed = next
		p.mu.Unlock()
	}
	if allow.Everybody {
		return
	}
	p.allowed.enforce(allow.IDs, p.server.SetAllow)
	if len(allow.IDs) == 0 && allow.File == "" {
		p.logger.Warn("nobody may subscribe; name consumers in allow", "file", p.file)
	}
}

// follow follows the file of an allowance, if there is one.
func (p *Publisher) follow(ctx context.Context, a *allowance) {
	if a.file == nil {
		return
	}
	ctx, a.stop = context.WithCancel(ctx)
	p.running.Go(func() { _ = a.file.Run(ctx) })
}
