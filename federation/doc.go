// Package federation holds the nouns of federated service discovery that every
// other package shares: names, services, instances, endpoints and the events
// an owner sends about them.
//
// Values of these types are valid by construction. They are made at one border,
// package wire, from what a peer sent, and nothing downstream checks them again.
// The package imports nothing of this module.
package federation
