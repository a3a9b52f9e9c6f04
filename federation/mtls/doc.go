// Package mtls secures the connection between a consumer and an owner: mutual
// TLS 1.3 with certificates from disk, of which a rotated one is used from the
// next handshake on, and an owner that is pinned to its identity.
//
// A handshake says who a peer is, and is asked again when the CA bundle changes:
// the connections of peers whose authority is no longer in it end, at either side,
// as soon as the change is noticed, which takes a minute at most. What has changed
// since the handshake does not count: a certificate that has expired is replaced
// for the next one, and ends no connection. So a rotation in the usual order (the
// new authority joins the bundles, the leaves are replaced, the old authority
// leaves the bundles) ends each stream that was opened with an old leaf once, in
// the last step, and its next handshake succeeds at once.
//
// Consumer and owner take their gRPC credentials from a Source; authorizing a
// consumer by its PeerIDs is the owner's work. Of this module the package imports
// only the domain nouns and package regularfile.
package mtls
