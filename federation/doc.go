// Package federation has the values of Hamlet Federated Service Discovery. Its main types are [Service],
// which one publishes and another one resolves, and [InvalidError], which says why a service is refused.
//
// Organisations that use each other's services need to know which services exist, at which addresses, and
// over which protocols. Each of them publishes what it offers: it is an owner, and its services are its
// catalog. A consumer subscribes to an owner over gRPC and mutual TLS. It gets the whole catalog, and from
// then on every change at once. Versions v1alpha2 and v1alpha1 of https://github.com/vmware/hamlet are
// both spoken.
//
// A Service has a name, which its owner gives it, an [FQDN], by which clients reach it, and endpoints. An
// [Endpoint] is a port of an [Address], and that is an IP address or a host name. An [Instance] is one of the
// backing services that share the fqdn, such as one version: it speaks one [Protocol], and selects endpoints
// by their labels. An [ID] says who a consumer or an owner is.
//
// Names and addresses are valid by construction, because only functions such as [ParseFQDN] make them.
// [Service.Validate] checks a service once. After that nothing checks it again, and nothing changes it, so
// that goroutines can share it.
//
// Package consumer follows an owner, and package owner is one; package provider registers a program with an
// owner that others run. Package mtls has the certificates of all three.
package federation
