// Package federation has the values of Hamlet Federated Service Discovery. A program that
// follows an owner reads them, and one that publishes services makes them.
//
// Organisations that use each other's services need to know which services exist, at
// which addresses, and over which protocols. Each of them publishes what it offers: it
// is an owner, and its services are its catalog. A consumer subscribes to an owner over
// gRPC and mutual TLS. It gets the whole catalog, and from then on every change at once.
// Versions v1alpha2 and v1alpha1 of https://github.com/vmware/hamlet are both spoken.
//
// A [Service] has a name, which its owner gives it, an [FQDN], by which clients reach it,
// and endpoints. An [Endpoint] is an [Address], which is an IP address or a host name, and
// a port. An [Instance] is one of the backing services that share the fqdn, such as one
// version: it speaks one [Protocol], and selects endpoints by their labels. An [Event]
// is one message of an owner.
//
// Names and addresses are valid by construction: only functions such as [ParseFQDN] make
// them. [Service.Validate] checks a service once. After that nothing checks it again, and
// nothing changes it, so goroutines can share it. An [*InvalidError] names the field and
// the rule.
//
// The packages consumer and catalog follow an owner; owner, source and source/file are
// one; provider registers a program with one. Package mtls has the certificates, policy
// says who is told what, and wire turns messages into values. This package imports no
// other one of the module.
package federation
