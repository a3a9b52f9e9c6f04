// Package mtls secures the connection between a consumer and an owner: mutual
// TLS 1.3, with certificates from disk that are used from the next handshake on when
// they are rotated, and with owners that are pinned to their identities.
//
// Peers are verified in the handshake, and again when the CA bundle changes: the
// connections of peers whose authority is no longer in it end, on either side, as
// soon as the change is noticed, which takes about a minute at most. They are judged
// at the time of their handshake: a certificate that has expired since ends no
// connection, as its successor is used in the next handshake. A rotation in the usual
// order (the new authority joins the bundles, the leaves are replaced, the old
// authority leaves the bundles) therefore ends each stream that was opened with an old
// leaf once, in the last step, and its next handshake succeeds at once.
//
// Consumer and owner take their gRPC credentials from a Source. Whether a consumer may
// subscribe, by its PeerIDs, is for the owner to decide.
package mtls
