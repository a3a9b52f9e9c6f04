// Package policy decides which services of an owner are told to whom, and in what
// shape. A program compiles rules with [New], and has a registry follow them with
// Registry.SetPolicy of package registry. It is pure: services and identities go in, and decisions
// come out.
//
// The rules of a policy stand in an order. For a consumer and a service the first rule
// decides whose To has one of the identities of the consumer and whose conditions the
// service meets. A service for which no rule decides is not told. Without a policy, a
// nil [*Policy], every consumer is told everything.
//
// The rule that decides also shapes what is told: another fqdn, only some endpoints,
// fields left out. A service that cannot be told in that shape is hidden; no later rule
// is tried, so that nobody is told by accident what a rule was to hold back.
//
// Consumers for whom the same rules are made are one [ConsumerClass]. What becomes of a service
// under all rules is one [Verdict], from which the view of every class is read, so that
// the work and the memory for a service do not grow with the consumers. Rules are
// numbered from 1, everywhere.
package policy
