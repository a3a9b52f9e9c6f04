// Package source defines what fills the catalog of an owner, and joins several
// sources to one catalog.
package source

import (
	"context"

	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// Source keeps a part of a catalog as its origin says: a file, a cluster, programs
// that register.
type Source interface {
	// Run publishes to part until ctx ends, and returns then. It does not return
	// before: an origin that is away is waited for.
	Run(ctx context.Context, part Part)
}

// Part is the share of one source in a catalog. Its methods may be called from any
// goroutine, one at a time, and do not block.
type Part interface {
	// Replace makes services the whole part: what the origin holds as a whole. The
	// first call says that this is known. The names must be unique in the part.
	// The part may keep the services. A source that gives the same pointers again
	// for what has not changed makes the comparison fast.
	Replace(services []*wire.Encoded)

	// Update changes services of the part, after the first Replace. The names of
	// gone need not be known.
	Update(changed []*wire.Encoded, gone []string)

	// Away says why the origin cannot be asked, or with nil that it can be again.
	// What is published stays, for the lifetime of the source. A source whose
	// origin is back says so only once it has published what is different.
	Away(reason error)

	// Refused says how many entries of the origin are not published, by the rule that
	// they break. The rules are few, as they become the values of a metric's label.
	Refused(entries map[string]int)
}

// Listener is a Source that wants to know what becomes of its services, to tell
// their authors. Its methods do not block.
type Listener interface {
	// Hidden says that a service is not published because a source that stands before
	// this one has the same name or the same fqdn, and which service of which
	// source that is. An empty by says that it is published again, or gone.
	Hidden(service, by string)

	// RefusedBy says that a consumer refuses a service as it is published now.
	RefusedBy(r owner.Refusal)
}
