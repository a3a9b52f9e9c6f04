// Package provider registers a program with an owner, which publishes it for as long as
// the program lives.
//
// A program that provides services imports it, sets the nodes at which it provides them,
// and runs a [Provider] beside its servers:
//
//	identity, err := mtls.Load(mtls.Files{Cert: "tls.crt", Key: "tls.key", CA: "ca.crt"}, nil)
//	...
//	p, err := provider.New(provider.Config{
//		Addresses: []string{"owner-a.example:8008", "owner-b.example:8008"},
//		Identity:  mtls.Consumer{Source: identity},
//	})
//	...
//	err = p.Set(provider.Node{Service: "shop.fed.example", URI: "https://:8443"})
//	go p.Run(ctx)
//
// Which services the program may register, at which addresses and for how long, is decided
// by the owner's rules for the identity in its certificate. What they do not allow is
// refused with the rule that is broken: see [Status]. Everything else stays registered.
//
// # Time
//
// The owner grants a time to live, the ttl. The Provider tells it of each node again
// before half of that is over, so a program that is killed is withdrawn a ttl later, and
// one that is stopped or cut off for less is not. A stream that breaks is opened again,
// with another address where there is one, and everything is registered anew there:
// within the ttl, nobody notices. An owner that does not answer for half a ttl is left as
// well. So is a connection on which nothing arrives any more.
//
// # End
//
// When the context of Run ends, or Drain is called, all nodes are cleared, and the owner
// withdraws them at once. Clients may have the answers of DNS in their caches, and go on
// to connect for a while: a program that serves on for that time after Drain loses no
// request.
package provider
