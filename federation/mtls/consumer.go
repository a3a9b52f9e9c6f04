package mtls

import (
	"cmp"
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc/credentials"
)

// Consumer is the identity of a consumer towards one owner: a Source, whose Run
// keeps the certificates current and whose Changed reports that they changed, and the
// identity that the owner must have. It implements consumer.Identity.
type Consumer struct {
	*Source

	ServerName string // for which the owner's certificate must be valid; default: the host of the address
	IDs        []ID   // of which the owner's certificate must have one, instead of ServerName; default: none
}

// Name is what people are shown of the owner at these addresses: they, and the server name
// if there is one, as one address can have several owners.
func (c Consumer) Name(addresses []string) string {
	name := strings.Join(addresses, ",")
	if c.ServerName != "" {
		name += "/" + c.ServerName
	}
	return name
}

// Key is equal for those that mean one owner at these addresses.
func (c Consumer) Key(addresses []string) string {
	return fmt.Sprintf("%q %q %q", addresses, c.ServerName, c.IDs)
}

// Credentials returns those for a connection to an address, host:port. See
// [Source.Client].
func (c Consumer) Credentials(address string) credentials.TransportCredentials {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	return c.Client(cmp.Or(c.ServerName, host), c.IDs)
}
