package wire

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// AddressPolicy is what the operator of a consumer decides about the addresses of services.
// The zero value is the default.
type AddressPolicy struct {
	// AllowAddresses opens ranges of endpoint addresses that are refused by
	// default. An IPv4 prefix does not open the IPv6 addresses that embed one of
	// its addresses.
	AllowAddresses []netip.Prefix
}

// AnyAddress returns the policy that refuses no address, for readers of a catalog whose addresses
// somebody else judges.
func AnyAddress() AddressPolicy {
	return AddressPolicy{AllowAddresses: []netip.Prefix{
		netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0),
	}}
}

// Check returns why the service may not have one of its endpoints, or nil.
func (p AddressPolicy) Check(s *federation.Service) *federation.InvalidError {
	for i := range s.Endpoints {
		if invalid := p.checkAddress(s.Endpoints[i].Address); invalid != nil {
			invalid.Service, invalid.Field = s.Name, fmt.Sprintf("endpoints[%d].address", i)
			return invalid
		}
	}
	return nil
}

// CheckZones returns why an owner with these zones may not publish the service, or nil. Without zones it
// may publish everywhere.
func CheckZones(zones []federation.FQDN, s *federation.Service) *federation.InvalidError {
	if len(zones) == 0 || slices.ContainsFunc(zones, s.FQDN.Within) {
		return nil
	}
	return federation.Invalidf("fqdn", federation.ReasonOutOfZone, "%s is outside the zones given to this owner", safetext.Quote(s.FQDN.String()))
}

func (p AddressPolicy) checkAddress(address federation.Address) *federation.InvalidError {
	kind, shown := "", address.String()
	if ip, ok := address.IP(); ok {
		kind = p.refusedKind(ip)
	} else if isLocalhost(shown) && !p.opensAddress(netip.AddrFrom4([4]byte{127, 0, 0, 1})) && !p.opensAddress(netip.IPv6Loopback()) {
		// RFC 6761 section 6.3: resolvers answer these names with the loopback
		// addresses and ask no server.
		kind, shown = "loopback", trimFinalDot(shown)
	}
	if kind == "" {
		return nil
	}
	return federation.Invalidf("address", federation.ReasonAddress,
		"%s: consumers refuse %s addresses unless their allow_addresses has them", shown, kind)
}

// isLocalhost reports whether the host is localhost or below it.
func isLocalhost(host string) bool {
	rest, ok := strings.CutSuffix(host, "localhost.")
	return ok && (rest == "" || strings.HasSuffix(rest, "."))
}

// Admits reports whether the host name of an endpoint may resolve to ip. An address
// that no endpoint may have must not get in behind a name.
func (p AddressPolicy) Admits(ip netip.Addr) bool { return p.refusedKind(ip) == "" }

// opensAddress reports whether the operator opened the address.
func (p AddressPolicy) opensAddress(ip netip.Addr) bool {
	return slices.ContainsFunc(p.AllowAddresses, func(prefix netip.Prefix) bool { return prefix.Contains(ip) })
}

// refusedKind returns the kind of range for which ip is refused, or "". An owner
// that could publish these addresses could point clients at themselves, or at
// the metadata service of their cloud, which hands out credentials.
func (p AddressPolicy) refusedKind(ip netip.Addr) string {
	ip = ip.Unmap()
	if p.opensAddress(ip) {
		return ""
	}
	if kind := kindOf(ip); kind != "" {
		return kind
	}
	for i := range embeddings {
		if v4, ok := embeddings[i].embeddedIPv4(ip); ok {
			if kind := kindOf(v4); kind != "" {
				return kind
			}
		}
	}
	return ""
}

// kindOf returns the kind of the refused range that has the address, or "".
func kindOf(ip netip.Addr) string {
	for i := range refusedRanges {
		if refusedRanges[i].prefix.Contains(ip) {
			return refusedRanges[i].kind
		}
	}
	return ""
}

// metadata is the kind of the addresses where a cloud serves the metadata and
// credentials of a machine. Most of them are link-local; those here are not.
const metadata = "cloud metadata"

// refusedRanges are the addresses that are refused unless the operator opens them.
// README.md has the same table.
var refusedRanges = []struct {
	prefix netip.Prefix
	kind   string
}{
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},         // RFC 1122 section 3.2.1.3
	{netip.MustParsePrefix("::1/128"), "loopback"},             // RFC 4291 section 2.5.3
	{netip.MustParsePrefix("0.0.0.0/8"), "unspecified"},        // RFC 1122 section 3.2.1.3: never a destination
	{netip.MustParsePrefix("::/128"), "unspecified"},           // RFC 4291 section 2.5.2
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},    // RFC 3927
	{netip.MustParsePrefix("fe80::/10"), "link-local"},         // RFC 4291 section 2.5.6
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},        // RFC 5771
	{netip.MustParsePrefix("ff00::/8"), "multicast"},           // RFC 4291 section 2.7
	{netip.MustParsePrefix("255.255.255.255/32"), "broadcast"}, // RFC 919 section 7

	{netip.MustParsePrefix("fd00:ec2::254/128"), metadata},      // AWS, 'Use the Instance Metadata Service'
	{netip.MustParsePrefix("fd00:ec2::23/128"), metadata},       // AWS, EKS Pod Identity Agent: credentials of a pod
	{netip.MustParsePrefix("fd20:ce::254/128"), metadata},       // Google Cloud, machines without IPv4
	{netip.MustParsePrefix("fd00:c1::a9fe:a9fe/128"), metadata}, // Oracle Cloud Infrastructure
	{netip.MustParsePrefix("192.0.0.192/32"), metadata},         // Oracle Cloud Infrastructure Classic
	{netip.MustParsePrefix("fd00:42::42/128"), metadata},        // Scaleway; cloud-init has it as well
	{netip.MustParsePrefix("100.100.100.200/32"), metadata},     // Alibaba Cloud ECS
	{netip.MustParsePrefix("168.63.129.16/32"), metadata},       // Azure, WireServer: the goal state of a machine, with its secrets
}

// ipv4Embedding is a form of IPv6 address with an IPv4 address in it, to which a translator or the
// end of a tunnel delivers.
type ipv4Embedding struct {
	prefix netip.Prefix
	octets [4]int // the places of the IPv4 address
	mask   byte   // with which each of its octets is combined (XOR)

	// OneOfMany says that addresses under the prefix may have other forms as
	// well. An address has this form if all octets after the IPv4 address are
	// zero, and the first octet of the IPv4 address is not.
	oneOfMany bool
}

// embeddings are the forms that are refused where their IPv4 address is refused. The NAT64 prefix
// of an operator's own network cannot be known here.
var embeddings = []ipv4Embedding{
	{prefix: netip.MustParsePrefix("64:ff9b::/96"), octets: [4]int{12, 13, 14, 15}}, // NAT64: RFC 6052 section 2.1

	// NAT64 in a local prefix of any length: RFC 8215, RFC 6052 section 2.2.
	{prefix: localNAT64, octets: [4]int{12, 13, 14, 15}, oneOfMany: true},
	{prefix: localNAT64, octets: [4]int{9, 10, 11, 12}, oneOfMany: true},
	{prefix: localNAT64, octets: [4]int{7, 9, 10, 11}, oneOfMany: true},
	{prefix: localNAT64, octets: [4]int{6, 7, 9, 10}, oneOfMany: true},

	{prefix: netip.MustParsePrefix("::/96"), octets: [4]int{12, 13, 14, 15}},                 // IPv4-compatible: RFC 4291 section 2.5.5.1
	{prefix: netip.MustParsePrefix("2002::/16"), octets: [4]int{2, 3, 4, 5}},                 // 6to4: RFC 3056, RFC 3964 section 5
	{prefix: netip.MustParsePrefix("2001::/32"), octets: [4]int{12, 13, 14, 15}, mask: 0xff}, // Teredo: RFC 4380 section 4
}

var localNAT64 = netip.MustParsePrefix("64:ff9b:1::/48")

// embeddedIPv4 returns the IPv4 address in ip, and whether ip has this form.
func (e *ipv4Embedding) embeddedIPv4(ip netip.Addr) (netip.Addr, bool) {
	if !e.prefix.Contains(ip) {
		return netip.Addr{}, false
	}
	b := ip.As16()
	var v4 [4]byte
	for i, at := range e.octets {
		v4[i] = b[at] ^ e.mask
	}
	if e.oneOfMany {
		behind := b[e.octets[3]+1:]
		if v4[0] == 0 || slices.ContainsFunc(behind, func(octet byte) bool { return octet != 0 }) {
			return netip.Addr{}, false
		}
	}
	return netip.AddrFrom4(v4), true
}
