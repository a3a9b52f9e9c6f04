// Package kubernetes is a source that publishes what a cluster exports: it follows the
// objects that say so through the API server, has package export translate them, and
// has package feedback tell their authors what has become of them.
//
// # What is read
//
// Services, ServiceExports, and what the configured kinds of endpoints need: nodes and
// all EndpointSlices for node ports, those of headless Services for pods, Gateways and
// routes. Pods are never read. Namespaces and the selector narrow what the server
// sends; Gateways and routes are read everywhere, as they may be in other namespaces
// than the Service. With a selector, a ServiceExport without a Service that is known is
// passed over: the Service may be one that the selector leaves out. Objects are trimmed
// before they are kept.
//
// Which resources of custom definitions are served, and in which version, is asked for
// every five seconds. None of them need be there.
//
// # Complete, or silent
//
// Nothing is published before everything has been read once. From then on a change
// marks the Services that it belongs to, and one goroutine publishes what has become of
// all that are marked, in one update.
//
// # Away
//
// The server is asked every five seconds whether it is ready, and at once when a watch
// fails. When it has not been for three seconds, or a watch fails for as long, the
// source says why, and keeps what it has published. A server that comes back may have
// been restored from a backup, and so everything is read again, not followed from where
// it was. Nothing is published meanwhile, and only what is missing then is withdrawn. A
// kind of objects that cannot be read then, for want of a permission or for a conversion
// webhook that is broken, holds up those Services alone that have to do with such an
// object. A watch that ends is taken up where it was, or, where the server has forgotten
// that, with a list that is compared in the same way. A kubeconfig that changes is read
// again, as is its CA file. Missing permissions are a reason like others: the source
// recovers within seconds of their being granted.
//
// # Definitions that go
//
// Who deletes the definition of a resource deletes its objects, and the catalog's guard
// against mass withdrawal is all that holds them. Where a resource is only not served any
// more, its objects are kept, and the source says that its origin is away, so that its
// lifetime bounds them.
//
// # Feedback
//
// What consumers say of a service is forgotten when it is published in another form.
// See package feedback for what replicas write.
package kubernetes
