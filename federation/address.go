package federation

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// The rules that an endpoint address can break, beside those of a name.
var (
	errAddressZone = errors.New("address has a zone identifier")
	errAddressForm = errors.New("address is neither an IP address nor a host name")
)

// Address is where an endpoint is reached: an IP address or a host name. Only
// [ParseAddress] makes one. The zero value is no address. Two addresses are the same
// when they are equal (==).
type Address struct {
	ip   netip.Addr
	host FQDN
}

// ParseAddress returns the address that s spells: an IPv4 address in dotted
// decimal, an IPv6 address without brackets, or a host name that [ParseFQDN]
// accepts. An IPv4-mapped IPv6 address is the IPv4 address. Zone identifiers, ports,
// prefixes and octets with leading zeros are refused. The error is a sentence about the rule
// that s breaks, without s itself: whoever shows it knows s, and quotes it.
func ParseAddress(s string) (Address, error) {
	if ip, err := netip.ParseAddr(s); err == nil {
		if ip.Zone() != "" {
			return Address{}, errAddressZone
		}
		return Address{ip: ip.Unmap()}, nil
	}
	if strings.ContainsAny(s, ":/[]%") {
		return Address{}, errAddressForm
	}
	host, err := ParseFQDN(s)
	if err != nil {
		return Address{}, fmt.Errorf("%w: %w", errAddressForm, err)
	}
	return Address{host: host}, nil
}

// IP returns the IP address, and whether a is one.
func (a Address) IP() (netip.Addr, bool) { return a.ip, a.ip.IsValid() }

// Host returns the host name, and whether a is one.
func (a Address) Host() (FQDN, bool) { return a.host, !a.host.IsZero() }

// String returns the address as ParseAddress takes it.
func (a Address) String() string {
	if a.ip.IsValid() {
		return a.ip.String()
	}
	return a.host.String()
}
