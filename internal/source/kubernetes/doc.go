// Package kubernetes is a source that publishes what a cluster exports. A [Source] follows objects through
// the API server; package export translates them, and package feedback tells their authors the result.
//
// # What is read
//
// Services, ServiceExports, and what the configured kinds of endpoints need: nodes and
// all EndpointSlices for node ports, those of headless Services for pods, Gateways and
// routes. Pods are never read. Namespaces and the selector narrow what the server
// sends; Gateways and routes are read everywhere, because they may be in other namespaces
// than the Service. With a selector, a ServiceExport without a known Service is
// passed over, because the selector may leave that Service out. Objects are trimmed
// before they are kept.
//
// Every five seconds the source asks which resources of custom definitions are served, and in which
// version. None of them need exist.
//
// # Complete, or silent
//
// Nothing is published before everything has been read once. From then on a change
// marks the Services that it belongs to, and one goroutine evaluates and publishes all marked
// Services in one update.
//
// # Away
//
// The source asks the server every five seconds whether it is ready, and at once when a watch
// fails. When it asks and the server has not been ready for three seconds, or a watch has failed for as long, the
// source reports why, and keeps what it has published. A server that comes back may have
// been restored from a backup, so everything is read again and not followed from where
// it was. Nothing is published meanwhile, and only what is missing afterwards is withdrawn. A
// kind of objects that cannot be read then, for want of a permission or because a conversion
// webhook is broken, holds up only those Services that depend on such an
// object. A watch that ends goes on where it was, or, where the server has forgotten
// that, with a list that is compared in the same way. A changed kubeconfig or CA file is read
// again. Missing permissions are a reason like others: the source
// recovers within seconds after they are granted.
//
// # Definitions that go
//
// Whoever deletes the definition of a resource deletes its objects, and only the catalog's limit
// of withdrawals (source.Entry.MaxWithdraw) keeps their services. Where a resource is merely not served any
// more, its objects are kept, and the source reports that its origin is away, so that its
// lifetime bounds them.
//
// # Feedback
//
// The refusals of a service by consumers are forgotten when the service is published in another form.
// See package feedback for what replicas write.
package kubernetes
