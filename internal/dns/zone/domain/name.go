package domain

import (
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
)

const (
	// Addr is the label of the names of addresses, <ip>.addr.<fqdn>.
	Addr = "addr"

	// TCP is the label below the protocols: all protocols of the specification run
	// over TCP.
	TCP = "_tcp"

	// MaxName is the longest name in presentation form with its final dot
	// (RFC 1035 section 2.3.4: 255 octets on the wire).
	MaxName = 254
)

// Role is what a name stands for.
type Role uint8

// The roles.
const (
	Missing     Role = iota // no such name
	Empty                   // an empty non-terminal at which there may be a service
	EmptyAlways             // an empty non-terminal at which there cannot be a service: dns.<origin>, _tcp.<fqdn>
	Apex                    // the origin, with the service there, if there is one
	NameServer              // ns.dns.<origin>
	Service                 // an fqdn
	Instance                // <id>.<fqdn>
	Protocol                // _<protocol>._tcp, of the fqdn or of an instance
	Address                 // <ip>.addr.<fqdn>
)

// String returns the role in words, as reports have it.
func (r Role) String() string {
	return [...]string{
		Missing: "missing", Empty: "empty", EmptyAlways: "empty", Apex: "zone", NameServer: "name server",
		Service: "service", Instance: "instance", Protocol: "protocol", Address: "address",
	}[r]
}

// ServiceLabels returns the labels of a protocol (RFC 8552), in the form of RFC 6335 section 5.1.
// MongoDB has its registered name as well, which RFC 2782 calls the only legal one.
func ServiceLabels(p federation.Protocol) []string { return serviceLabels[p] }

// Protocols is the number of protocols, including zero, which is none.
const Protocols = len(serviceLabels)

var serviceLabels = [...][]string{
	federation.HTTP:  {"_http._tcp"},
	federation.HTTPS: {"_https._tcp"},
	federation.GRPC:  {"_grpc._tcp"},
	federation.HTTP2: {"_http2._tcp"},
	federation.MONGO: {"_mongo._tcp", "_mongodb._tcp"},
	federation.TCP:   {"_tcp._tcp"},
	federation.TLS:   {"_tls._tcp"},
	federation.MTLS:  {"_mtls._tcp"},
}

// IsWithin reports whether name is origin or below it. Name has no escaped dot.
func IsWithin(name, origin string) bool {
	if origin == "." {
		return true
	}
	n := len(name) - len(origin)
	return n >= 0 && name[n:] == origin && (n == 0 || name[n-1] == '.')
}

// JoinLabels returns the labels in front of another name, as one name.
func JoinLabels(labels, name string) string {
	if name == "." {
		return labels + "."
	}
	return labels + "." + name
}

// Parent returns the name without its first label, and "." for one label.
func Parent(name string) string {
	rest := name[strings.IndexByte(name, '.')+1:]
	if rest == "" {
		return "."
	}
	return rest
}

// RelativeLabels returns the labels of a name in front of above. The name is below above.
func RelativeLabels(name, above string) string {
	if above == "." {
		return name[:len(name)-1]
	}
	return name[:len(name)-len(above)-1]
}

// CutLabels returns what follows the first labels of a relative name, and reports
// whether the name begins with them.
func CutLabels(name, first string) (string, bool) {
	rest, ok := strings.CutPrefix(name, first)
	if rest == "" {
		return "", ok
	}
	return strings.CutPrefix(rest, ".")
}

// ReservedReason returns why no service and no instance in a zone can have a name, or "". Without
// the first two rules an owner could take over the name server of the zone or of the zone above,
// and without the third one the target of another service's SRV records.
func ReservedReason(name, origin string) string {
	if IsWithin(name, JoinLabels("dns", origin)) {
		return "dns." + strings.TrimPrefix(origin, ".") + " holds the name server of the zone"
	}
	first, rest, _ := strings.Cut(name, ".")
	// In the zone dns.example or ns.dns.example: another server block may serve
	// the zone example.
	if first == "ns" && (rest == origin || name == origin) && strings.HasPrefix(rest, "dns.") {
		return name + " is the name server of the zone above"
	}
	if second, _, _ := strings.Cut(rest, "."); second == Addr {
		if _, ok := ParseAddress(first); ok {
			return "<ip>.addr.<fqdn> is where SRV records point"
		}
	}
	return ""
}
