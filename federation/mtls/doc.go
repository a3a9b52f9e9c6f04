// Package mtls secures the connection between a consumer and an owner: mutual
// TLS 1.3 with certificates from disk, of which a rotated one is used from the
// next handshake on, and an owner that is pinned to its identity.
//
// Consumer and owner take their gRPC credentials from a Source; authorizing a
// consumer by its PeerIDs is the owner's work. Of this module the package imports
// only the domain nouns and package regularfile.
package mtls
