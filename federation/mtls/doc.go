// Package mtls secures the connection between a consumer and an owner by mutual TLS 1.3. Its main types are
// [Source], which has the certificate, the key and the authorities of one side and keeps them current,
// [Consumer], which is a Source and the owner that it expects, and [Peer], which says who the other side is.
//
// A program opens a Source with [Load], of [Files], or with [Open], of a SPIFFE agent or of files that may
// still be missing. An owner takes [Source.Server] for its gRPC server, and a consumer hands on a Consumer.
// [Source.Run] follows the files or the agent: what they give newly is used from the next handshake on. An
// [Authority] issues certificates for tests and for trying things out.
//
// # Whom to believe
//
// With files, every authority of the CA bundle may sign any peer, and a peer is its SPIFFE ID and its DNS
// names. With a SPIFFE agent, a peer is its SPIFFE ID alone: its certificate must be an X509-SVID that an
// authority of its own trust domain has signed, so that no domain of a federation can speak for another one.
// Handshakes fail until the agent has issued the first certificate, which [Source.Changed] announces. When
// the agent is away later, the last certificate stays in use.
//
// An owner decides by [Peer.IDs] whether a consumer may subscribe. [RefusalOf] says why a certificate was
// refused, and what to do about it.
//
// # When connections end
//
// TLS verifies a peer only in the handshake, and a stream may last for months. So either side ends a
// connection as soon as its handshake would not succeed any more:
//
//   - The CA bundle has no authority of the peer's certificate any more, which is noticed within a minute or
//     so. Certificates are judged as of the time of the handshake.
//   - The certificate that the peer has shown has expired for longer than a minute. Before that, the peer is
//     to open another connection and show a newer one there: see [Peer.Expiry].
//
// When the own certificate expires and none has come, this side ends nothing: new handshakes fail, and the
// peer ends the connection.
package mtls
