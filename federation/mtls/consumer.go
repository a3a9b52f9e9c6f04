package mtls

import (
	"cmp"
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// Consumer is the identity of a consumer towards one owner: a Source, whose Run
// keeps the certificates current and whose Changed reports that they changed, and the
// identity that the owner must have. It implements stream.Identity.
type Consumer struct {
	*Source

	ServerName string          // for which the owner's certificate must be valid; default: the host of the address
	IDs        []federation.ID // of which the owner's certificate must have one, instead of ServerName; default: none
}

// maxOwnerName bounds the name of an owner, in bytes: it is a label of metrics, and metadata
// of DNS queries, which are cut there.
const maxOwnerName = 255

// ParseOwnerName returns the name that a configuration gives an owner. It is one word for
// every program that reads it: a line of a log, a label, an argument of a command.
func ParseOwnerName(s string) (string, error) {
	strange := func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }
	if s == "" || len(s) > maxOwnerName || strings.ContainsFunc(s, strange) {
		return "", fmt.Errorf("%s is no name of an owner: it takes 1 to %d characters of printable ASCII, without spaces, double quotes and backslashes",
			safetext.Quote(s), maxOwnerName)
	}
	return s, nil
}

// OwnerName is the name of the owner at these addresses where nobody has given it one: its
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

// Credentials returns those for a connection to an address, host:port. See
// [Source.Client].
func (c Consumer) Credentials(address string) credentials.TransportCredentials {
	return c.Client(c.ServerNameAt(address), c.IDs)
}

// ServerNameAt returns the server name for a connection to an address: the host of that is the default.
func (c Consumer) ServerNameAt(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	return cmp.Or(c.ServerName, host)
}
