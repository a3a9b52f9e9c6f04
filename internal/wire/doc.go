// Package wire is the border between the messages of a peer and the values of
// package federation. [Decode] makes an [Event] of a message, and an [EncodedService] is a service as
// v1alpha2 sends it. No other package reads or writes the fields of messages.
//
// The peer is another organisation, so everything it sends is checked once, here.
// [Decode] returns a value of which every part is valid, or a
// [federation.InvalidError] that names the service, the field and the rule; its
// text goes into the NACK.
//
// The rules for a service are those of [federation.Service.Validate], and its limits
// those of package federation. This package adds the rules for messages: what does
// not decode or parse, the limits of limits.go, the size of a message, and the
// number of entries before they are decoded.
//
// Three kinds of rules depend on a configuration that may change on a reload, so
// they are applied where services are kept: the zones of an owner with the names
// reserved in them, the addresses that it may publish ([AddressPolicy.Check]), and how many
// services it may have.
//
// The functions without a version in their name are for v1alpha2. The draft of
// 2019, v1alpha1, has its own beside them.
package wire
