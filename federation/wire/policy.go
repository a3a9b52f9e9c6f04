package wire

import (
	"net/netip"
	"slices"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// Policy is what the operator decides about the content of services. The zero
// value is the default.
type Policy struct {
	// AllowAddresses opens ranges of endpoint addresses that are refused by
	// default: loopback, link-local, unspecified and multicast.
	AllowAddresses []netip.Prefix

	// MaxMessage bounds the message of a new or changed service, in bytes. 0
	// means without limit. A deletion may be larger, as public implementations
	// repeat in it what they withdraw.
	MaxMessage int
}

// tooLarge refuses a message of the size. It is called before the resource is
// decoded, which costs several times its size.
func (p Policy) tooLarge(size int) *federation.InvalidError {
	if p.MaxMessage == 0 || size <= p.MaxMessage {
		return nil
	}
	return broken("", federation.ReasonLimit, "message of %d bytes is larger than the %d that max_message allows", size, p.MaxMessage)
}

// Admits tells whether a host of an endpoint may turn out to be at ip, which it
// takes unmapped. What no endpoint may have must not get in behind a name.
func (p Policy) Admits(ip netip.Addr) bool { return p.refused(ip) == "" }

// refused returns the kind of range for which ip is refused, or "". An owner
// that could publish these addresses could point clients at themselves, or at
// the metadata service of their cloud (169.254.169.254). It takes ip unmapped.
func (p Policy) refused(ip netip.Addr) string {
	if slices.ContainsFunc(p.AllowAddresses, func(prefix netip.Prefix) bool { return prefix.Contains(ip) }) {
		return ""
	}
	if nat64.Contains(ip) {
		b := ip.As16()
		ip = netip.AddrFrom4([4]byte(b[12:]))
	}
	switch {
	case ip.IsLoopback():
		return "loopback"
	case ip.IsUnspecified():
		return "unspecified"
	case ip.IsMulticast():
		return "multicast"
	case ip.IsLinkLocalUnicast():
		return "link-local"
	}
	return ""
}

// nat64 holds IPv6 addresses that a translator sends to the IPv4 address in
// their last four bytes (RFC 6052 section 2.1).
var nat64 = netip.MustParsePrefix("64:ff9b::/96")
