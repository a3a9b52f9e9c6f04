// Package federation defines the types of Hamlet Federated Service Discovery that all
// packages of this library share: names, services, instances, endpoints, and the
// events that an owner sends about them.
//
// # Federated service discovery
//
// Organisations that use each other's services need to know which services exist, at
// which addresses, and over which protocols. In the Hamlet API each of them publishes
// the services that it offers. It is then an owner, and its services are its catalog.
// A consumer subscribes to an owner, over gRPC and mutual TLS. It gets the whole
// catalog, and from then on every change as soon as it happens. It answers every
// message: with an ACK, or with a NACK that says why it refuses the service. What a
// consumer makes of a catalog is up to it. The CoreDNS plugin of this repository
// answers DNS queries from the catalogs of any number of owners.
//
// The specification is at https://github.com/vmware/hamlet. Its version v1alpha2
// and the draft of 2019, v1alpha1, are both spoken here.
//
// # The values
//
//   - A [Service] is an entry of a catalog. The owner knows it by its name, and
//     clients by its fqdn, a DNS name.
//   - An [Endpoint] is a place where the service is reached: an [Address], which is
//     an IP address or a host name, and a port.
//   - An [Instance] is one of the backing services that share the fqdn, such as one
//     version. It speaks one [Protocol], and selects endpoints by their labels.
//   - An [FQDN] is an absolute DNS name, and a [Label] the name that an instance has
//     below the fqdn of its service.
//   - An [Event] is one message of an owner: a service that is new or changed, a
//     service that is gone, the end of the full catalog, or just a heartbeat.
//
// # Validity
//
// Names and addresses are valid by construction: only functions such as [ParseFQDN]
// make them. A service is checked once, by [Service.Validate], by whoever makes it:
// package wire does so for the services of a peer, and the registry of package owner
// for those of a program. A valid service has every required field, only valid
// UTF-8, and nothing over the limits of this package, such as [MaxEndpoints]. After
// that nothing checks it again, and nothing changes it, so goroutines can share it.
// A validation error is an [*InvalidError], which names the field and the rule.
//
// # The packages
//
// To publish services, use
// [github.com/hamlet-federation/coredns-federation/federation/owner]. Its example
// publishes from a program's own data. The package
// [github.com/hamlet-federation/coredns-federation/federation/source] joins several
// sources of services in one catalog; there is one for a file and one for a cluster of
// Kubernetes.
//
// To follow an owner, use
// [github.com/hamlet-federation/coredns-federation/federation/consumer]. It keeps one
// owner's catalog current through failures, and says when it is complete, when it is
// stale and when it has expired. It is made of
// [github.com/hamlet-federation/coredns-federation/federation/consumer/stream], the client
// side of a stream, and of
// [github.com/hamlet-federation/coredns-federation/federation/consumer/catalog], the services
// with what is known about their age.
//
// To answer DNS queries, use
// [github.com/hamlet-federation/coredns-federation/federation/dns/zone], which compiles
// catalogs into a zone. The package
// [github.com/hamlet-federation/coredns-federation/federation/dns/agent] does all of it:
// mirrors in, zones out.
//
// Certificates, and the identities in them, belong to
// [github.com/hamlet-federation/coredns-federation/federation/mtls]. Messages become
// the values of this package, and values become messages, in
// [github.com/hamlet-federation/coredns-federation/federation/wire].
//
// This package imports no other package of the module.
package federation
