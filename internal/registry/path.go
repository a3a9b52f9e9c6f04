package registry

import (
	"errors"
	"fmt"
	"slices"

	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// ErrLoop is the error for services that have come through the registry that they are to
// be published in: relays that feed each other would keep them alive for ever.
var ErrLoop = errors.New("the services have come through this catalog already")

// SetPath says through which owners the services of the registry come, before they are
// published in it: empty for an origin, as a new registry is. It is told as a stream opens, so
// the streams that were told another one end: their consumers could not tell a circle from it.
//
// It fails with [ErrLoop] where the registry is one of them itself, and where there are
// too many, and then the path stays as it was.
func (r *Registry) SetPath(path wire.OwnerPath) error {
	if err := r.CheckPath(path); err != nil {
		return err
	}
	r.writing.Lock()
	defer r.writing.Unlock()
	now := r.newest.Load()
	if slices.Equal(now.path, path) {
		return nil
	}
	next := now.mutableCopy()
	next.path = slices.Clone(path)
	next.cuts++
	r.publishVersion(next)
	return nil
}

// CheckPath returns the error of SetPath, and changes nothing.
func (r *Registry) CheckPath(path wire.OwnerPath) error {
	switch {
	case slices.Contains(path, r.hop):
		return ErrLoop
	case len(path) >= wire.MaxHops:
		return fmt.Errorf("the services have come through %d owners, more than %d would have had them", len(path), wire.MaxHops-1)
	}
	return nil
}

// Path returns through which owners the services of the registry come to consumers; the
// last one is the registry.
func (r *Registry) Path() wire.OwnerPath { return append(slices.Clone(r.shown.Load().path), r.hop) }
