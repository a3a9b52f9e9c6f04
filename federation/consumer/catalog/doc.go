// Package catalog holds what one owner offers: its services, the stream that last
// announced each of them, and how long the catalog keeps those that no open stream
// vouches for.
//
// It stands between the owner's subscription, whose events it takes, and the zone,
// which compiles its changes into answers. It is pure: no clock, no goroutine, no
// lock. Time comes in as an argument and results go out as values. The caller has
// the timer: Deadline says when to call Advance.
//
// # Generations
//
// The wire has no reliable end of a catalog. A reconnect therefore cannot replace
// the old catalog by the new one, or every name would be gone for a moment. Instead,
// each stream is a new generation. A service that the stream announces is marked
// with it in place. A service that only an earlier stream announced is still served,
// as stale data, until the new catalog is known to be complete. Then the services
// that were not announced are swept.
//
// Three rules say when a catalog is complete:
//
//  1. The owner marks its end (an End event). Services that were not announced are
//     swept.
//  2. At least one valid service or deletion came, and then nothing for
//     Rules.Settle: the catalog has settled. Services that were not announced are
//     swept, unless they are most of the catalog (see guardShare). In that case the
//     guard holds them, because a restarting owner may have loaded only half of its
//     services.
//  3. Until a valid service or deletion comes, the catalog is not complete, however
//     long that takes. Services of an earlier stream stay stale, and the retention
//     clock goes on.
//
// Only an accepted service or deletion counts as valid for rule 2. An empty response
// may come from an owner that has not loaded its services yet, and a refused response
// says nothing about the rest of the catalog. Neither is a reason to sweep services
// that were good before, or to deny names that were not announced. An owner that
// offers nothing but refused services is therefore never complete.
//
// Rules.Settle counts from the last response that can be a part of the catalog: a
// service that this stream had not announced yet, or a refused response, as an owner
// that still sends unwanted services is not silent. Heartbeats, and later deletions
// and updates, do not count, or the catalog of an owner that is never at rest would
// never be complete.
//
// # Resumed streams
//
// A stream may go on with what the catalog holds, and bring only what differs (see package
// resume). Adopt marks the rest with the generation of the stream before its first event:
// these services are live from then on, as the owner has said that it still has them. All
// others are stale until they come, and are swept at the end marker, without which no
// stream is resumed.
//
// # Services that are not imported
//
// What this side does not want (Rules.Admit returns ErrNotImported) is accepted, and not
// kept. It is a part of the owner's catalog all the same, and a valid response: an owner
// of whose services none is imported is complete by rule 1 and by rule 2. A version that
// was kept before goes, as the owner does not offer that any more.
//
// Only a count of such services is kept, by hashes of their names: of the open or last
// stream, and no more than Rules.MaxServices. Of those beyond, a later update cannot be
// told from a first one, so each starts the silence of rule 2 again, and their deletion
// does not change the count. Only a new stream can bring the services themselves.
//
// # Refused responses
//
// A response is refused for one of three reasons: package wire could not make a
// service of it (the caller reports this by Refused), the configuration does not
// admit the service (Rules.Admit), or the service is beyond a limit of the
// configuration. In each case the last good version of the service stays published.
// The refused version is not kept, or an owner could fill the memory with services
// that nobody wants. Only a new stream can bring it again, when the configuration
// comes to admit it or there is room again (see Wanting). The caller asks for one
// with Refetch, which makes no service stale.
//
// # Retention
//
// The retention clock is the owner's. It starts when a synced stream is lost. It goes
// on through failed attempts and through streams that are lost before they are synced.
// It stops when a stream is synced. Silence never starts it: services of an idle
// stream stay live without limit.
package catalog
