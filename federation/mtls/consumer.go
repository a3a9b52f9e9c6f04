package mtls

import (
	"cmp"
	"net"

	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// Consumer is the identity of a program towards one owner, of which it gets services or with which it
// registers: a Source, which says who the program is, and the identity that the owner must have.
type Consumer struct {
	*Source

	ServerName string          // for which the owner's certificate must be valid; default: the host of the address
	IDs        []federation.ID // of which the owner's certificate must have one, instead of ServerName; default: none
}

// OwnerName returns the name of the owner at these addresses, at least one, where nobody has given it one: its
// identity if there is exactly one, otherwise the first address. The server name follows if
// there is one, as one owner can have several catalogs.
func (c Consumer) OwnerName(addresses []string) string {
	name := addresses[0]
	if len(c.IDs) == 1 {
		name = c.IDs[0].String()
	}
	if c.ServerName != "" {
		name += "/" + c.ServerName
	}
	return name
}

// Credentials returns the credentials of gRPC for a connection to an address, host:port, as
// [Source.Client] makes them.
func (c Consumer) Credentials(address string) credentials.TransportCredentials {
	return c.Client(c.ServerNameAt(address), c.IDs)
}

// ServerNameAt returns the server name for a connection to an address, host:port: ServerName, or the host
// where that is empty.
func (c Consumer) ServerNameAt(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	return cmp.Or(c.ServerName, host)
}
