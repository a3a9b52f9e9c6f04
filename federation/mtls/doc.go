// Package mtls secures the connection between a consumer and an owner: mutual
// TLS 1.3, with certificates from disk or from a SPIFFE agent that are used from the next
// handshake on when they are rotated, and with owners that are pinned to their identities.
// A program opens a [Source] with [Load] or [Open] and hands it on: to an owner as it is, to
// a consumer in a [Consumer], which also says who the owner is.
//
// With files every authority of the CA bundle may sign any peer, and a peer is its SPIFFE
// ID and its DNS names. With a SPIFFE agent a peer is its SPIFFE ID alone: its certificate
// must be an X509-SVID that an authority of its own trust domain has signed, so that no
// domain of a federation can speak for another one. Until the agent has issued the first
// certificate, which Source.Changed announces, handshakes fail; when it is away later,
// what is held stays in use.
//
// Peers are verified in the handshake, and connections end, on either side, when the
// handshake would not succeed any more:
//
//   - The CA bundle has no authority of the peer's certificate any more. That is judged at
//     the time of the handshake as soon as the change is noticed, which takes about a
//     minute at most.
//   - The certificate that the peer has shown has expired for longer than a minute. A peer shows a newer one in the handshake of another connection,
//     which is to take the place of this one before: see Peer.Expiry.
//
// When the own certificate expires and none has come, nothing happens here: new
// handshakes fail, and it is the peer that ends the connection.
//
// Consumer and owner take their gRPC credentials from a Source. Whether a consumer may
// subscribe, by the IDs of its Peer, is for the owner to decide.
package mtls
