// Package wire is the border between the messages of a peer and the nouns of
// package federation: the only reader and writer of message fields.
//
// The peer is another organisation, so everything it says is checked here once.
// [Decode] returns a value of which every part is valid, or an
// [federation.InvalidError] that names the service, the field and the rule; its
// text goes into the NACK. Three kinds of rules are applied where services are
// kept, since they depend on a configuration that may change on a reload: the zones
// of an owner with the names reserved in them, the addresses that it may publish
// ([Policy.Check], with [AnyAddress] here), and how many services it may have.
package wire
