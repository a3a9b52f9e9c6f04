// Package source defines what fills the catalog of an owner, and joins several
// sources to one catalog.
//
// A [Source] knows one kind of origin: a file, a cluster, programs that register. It
// passes to a [Part] what its origin says, and nothing else. A [Catalog] keeps the following promises
// of every catalog, once for all sources.
//
//   - What a source has is published when it has called Part.Replace, whatever the others
//     do. Until one has, consumers get Unavailable.
//   - Nothing follows from silence. The end of the catalog waits until every source has
//     called Part.Replace once, and until then consumers keep what they had before. A service
//     waits for each earlier source that may turn out to have its name (NameClaimer).
//   - An origin that is away withdraws nothing (Part.SetAway).
//   - The services of an origin that is away are withdrawn after the lifetime of its source.
//     Where no other origin can be asked either, consumers get Unavailable instead. They also learn
//     when the origin was lost, because their own retention counts from then.
//   - If a source loses more than it may at once, the withdrawal is paused until somebody
//     confirms it, or the origin has said the same for some time (Entry.MaxWithdraw).
//   - What is published depends on the parts and on the order of the sources, and on
//     nothing else. Two owners with the same origins publish the same.
//   - Names and fqdns are unique between sources: the first source that has one
//     publishes it. The services of others with it are hidden until it does not have it
//     any more. Within one source, services may share an fqdn. Package claim has the order.
//   - What an origin says and a source does not publish is counted (Part.SetRefused).
//
// So a source is one method, which may be written like this:
//
//  1. Read the origin as a whole, encode each entry that is valid with
//     [wire.NewEncoded], and call Part.Replace with all of them. Call Part.SetRefused with
//     the number of those that are not.
//  2. Wait for a change. Call Part.Update with what has changed or, where the origin
//     does not tell, Part.Replace with everything: only the difference is published.
//  3. When the origin cannot be asked, call Part.SetAway with the reason, and try again
//     until ctx ends. When it can, do 1, and then call Part.SetAway with nil.
//
// The names of services are unique in a catalog, so a source begins its own with
// something that no other has: west/shop/web.
package source

import (
	"context"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// Source keeps a part of a catalog equal to its origin: a file, a cluster, programs that register.
type Source interface {
	// Run publishes to part until ctx ends, and returns only then, because it waits for an origin
	// that is away. It runs once.
	Run(ctx context.Context, part Part)
}

// Part is the share of one source in a catalog. Its methods may be called from any
// goroutine, one at a time, and do not block.
type Part interface {
	// Replace makes services the whole part, which is all that the origin has. The first call says
	// that the whole is known. The names must be unique in the part. The part may keep the
	// services, but not the slice. A source that passes the same pointers again for unchanged
	// services makes the comparison fast.
	Replace(services []*wire.EncodedService)

	// Update changes services of the part, after the first Replace. The names of
	// gone need not be known. A name in both counts as changed; of two services with
	// one name the last counts.
	Update(changed []*wire.EncodedService, gone []string)

	// SetAway says why the origin cannot be asked, or with nil that it can be asked again, as it can
	// before the first call. The published services stay for the lifetime of the source. A source whose origin is back calls
	// SetAway only after it has published what is different. The catalog logs the first call and
	// the call with nil, so the source need not do that. The reason may be a [ReportedError].
	SetAway(reason error)

	// SetPath sets the owners through which the services of the origin have come, for a source
	// whose origin is another owner. It is called before Replace, or before an Update with services
	// that have come in that way. It fails where they have come through this catalog already: then
	// they have no origin, and the source must not publish them. Consumers are sent the path when
	// the part is published. A later change ends the streams of all consumers, because they could
	// not recognize a loop by the previous path.
	SetPath(path wire.OwnerPath) error

	// SetRefused sets how many entries of the origin are not published, by the rule that they
	// break: all of them, not only new ones. The rules are few, because they become the values of a
	// metric's label. The part keeps a copy, and the source may call it at any time, also with the
	// counts that the part has.
	SetRefused(entries map[string]int)
}

// OutcomeListener is a Source that wants to know what happens to its services, so that it can tell
// their authors. Its methods must not block. They are called soon after the event, on other
// goroutines than the one that has changed the part, and may call the part.
type OutcomeListener interface {
	// HiddenBy says that a service is not published because a source that stands before
	// this one has the same name or the same fqdn, and which service of which
	// source that is. An empty by says that it is published again, or gone. Of several
	// changes only the last may be told.
	HiddenBy(service, by string)

	// RefusedBy says that a consumer refuses a service as it is published now, or with
	// an empty rule that it takes it again.
	RefusedBy(r registry.Refusal)
}

// NameClaimer is a Source that knows, before it is complete, which services it will never have. Any
// other source may turn out to have each name and each fqdn.
type NameClaimer interface {
	// MayClaim reports whether the source may come to have a service with that name, or
	// one with that fqdn. It does not block, and does not call the part.
	MayClaim(name string, fqdn federation.FQDN) bool
}

// ReportedError is a reason for Part.SetAway that the source logs itself, together with the end of
// the absence. The catalog logs neither.
type ReportedError struct {
	Reason error

	Lost time.Time // when the origin was lost, if that was before the call of Part.SetAway; or zero
}

// Error returns the text of the reason.
func (r ReportedError) Error() string { return r.Reason.Error() }

// Unwrap returns the reason.
func (r ReportedError) Unwrap() error { return r.Reason }
