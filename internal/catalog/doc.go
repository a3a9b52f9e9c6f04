// Package catalog holds what one owner offers: its services, the stream that last
// announced each of them, and how long the catalog keeps those that no open stream
// vouches for. A program that follows an owner with package consumer reads a [Change]
// for each service and a [Summary] of all, and sets the [Rules].
//
// A [Catalog] stands between the owner's subscription, whose events it takes, and the
// zone, which compiles its changes into answers. It is pure: no clock, no goroutine, no
// lock. Time comes in as an argument and results go out as values. The caller has
// the timer: NextDeadline says when to call AdvanceTo.
package catalog
