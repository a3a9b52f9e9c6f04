// Package catalog keeps what one owner offers in a [Catalog]: the services, the stream that last
// announced each of them, and for how long those stay that no open stream vouches for. The [Rules] are
// what the configuration says about the owner, a [Change] is what happened to one service, and a
// [Summary] is the state of all.
//
// A catalog stands between the owner's subscription, whose events are applied to it, and the
// zone, which compiles its changes into answers. The package is pure: it has no clock, no goroutine and
// no lock. Time comes in as an argument and results go out as values. The caller has
// the timer, and NextDeadline says when to call AdvanceTo.
package catalog
