package registry

import (
	"errors"
	"fmt"
	"slices"

	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// ErrLoop is the error for services that have come through the registry in which they are to be
// published. Relays that feed each other would keep such services alive for ever.
var ErrLoop = errors.New("the services have come through this catalog already")

// SetPath sets the owners through which services come before they are published in the registry.
// For an origin, as a new registry is one, the path is empty. The header of a stream has the path,
// so the streams that were opened with another path end: their consumers could not recognize a loop
// by that path.
//
// SetPath fails with [ErrLoop] where the path has the registry itself, and with another error where
// the path is too long. Then the path stays as it was.
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

// CheckPath returns the error that SetPath would return, and changes nothing.
func (r *Registry) CheckPath(path wire.OwnerPath) error {
	switch {
	case slices.Contains(path, r.hop):
		return ErrLoop
	case len(path) >= wire.MaxHops:
		return fmt.Errorf("the services have come through %d owners already, and the limit is %d", len(path), wire.MaxHops-1)
	}
	return nil
}

// Path returns the owners through which the services come to consumers. The last one is the
// registry.
func (r *Registry) Path() wire.OwnerPath { return append(slices.Clone(r.shown.Load().path), r.hop) }
