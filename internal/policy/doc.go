// Package policy decides which consumers of an owner get which services, and in what
// shape. [New] compiles a list of [Rule] values to a [Policy], which a registry follows after
// Registry.SetPolicy. The package is pure: services and identities go in, and decisions
// come out.
//
// The rules of a policy stand in an order. For a consumer and a service the first rule
// decides whose To has one of the identities of the consumer and whose conditions the
// service meets. A service for which no rule decides is hidden. Without a policy, a
// nil [*Policy], every consumer gets everything.
//
// The rule that decides also shapes the service: another fqdn, only some endpoints,
// fields left out. A service that cannot have that shape is hidden. No later rule
// is tried, so that nobody gets by accident what a rule was to hold back.
//
// Consumers to whom the same rules apply are one [ConsumerClass]. A [Verdict] is the result of all rules
// for one service, and has the view of every class. So the work and the memory for a service do not grow
// with the number of consumers. Rules are numbered from 1, everywhere.
package policy
