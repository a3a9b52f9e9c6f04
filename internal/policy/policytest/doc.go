// Package policytest is for tests of what enforces a policy: random rules, services and
// consumers, and what the consumers must be told of them. That is evaluated as the
// documentation of package policy reads, with nothing compiled and no code of that
// package, or of package pattern.
package policytest
