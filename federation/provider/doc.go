// Package provider registers a program with an owner, which publishes it for as long as the program lives.
// Its main types are [Provider], which keeps the nodes registered, [Node], which is a place where the program
// provides a service, and [Status], which says what has become of a node.
//
// A program sets its nodes, and runs a Provider beside its servers:
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
// The owner's rules decide, by the identity in the certificate, which services the program may register, at
// which addresses and for how long. The owner refuses a node that its rules do not allow, and says which rule
// that is: see Status.Rule. The other nodes stay registered.
//
// # Time
//
// The owner grants a node a time to live, the ttl. The Provider tells the owner of each node again before half
// of the ttl is over. So a program that is killed is withdrawn a ttl later, and a program that is stopped or
// cut off for less than that is not. When a stream breaks, the Provider opens another one, at another address
// if there is one, and registers everything anew there: within the ttl, nobody notices. The Provider also
// leaves an owner that does not answer for half a ttl, and a connection on which nothing arrives any more.
//
// # End
//
// When the context of Run ends, or Drain is called, the Provider clears all nodes, and the owner withdraws
// them at once. Clients may have the answers of DNS in their caches, and go on to connect for a while. A
// program that serves on for that time after Drain loses no request.
package provider
