package domain

import (
	"net/netip"
	"strconv"
	"strings"
)

// MaxAddress is the length of the longest address label.
const MaxAddress = len("0000-0000-0000-0000-0000-0000-0000-0000")

// AppendAddress returns b with the label of an IP address appended: dotted decimal with dashes, or
// all eight groups of IPv6 in full. A shortened form would begin or end with a dash ("::1"), or
// look like an internationalized label ("fd--1", RFC 5891 section 4.2.3.1).
func AppendAddress(b []byte, ip netip.Addr) []byte {
	if ip.Is4() {
		for i, octet := range ip.As4() {
			if i > 0 {
				b = append(b, '-')
			}
			b = strconv.AppendUint(b, uint64(octet), 10)
		}
		return b
	}
	const digits = "0123456789abcdef"
	for i, octet := range ip.As16() {
		if i > 0 && i%2 == 0 {
			b = append(b, '-')
		}
		b = append(b, digits[octet>>4], digits[octet&0xf])
	}
	return b
}

// AddressLen returns the length of the label that AppendAddress appends.
func AddressLen(ip netip.Addr) int {
	if !ip.Is4() {
		return MaxAddress
	}
	n := len("0-0-0-0")
	for _, octet := range ip.As4() {
		if octet >= 10 {
			n++
		}
		if octet >= 100 {
			n++
		}
	}
	return n
}

// ParseAddress returns the address of a label, and reports whether the label is exactly what
// AppendAddress appends.
func ParseAddress(label string) (netip.Addr, bool) {
	if len(label) > MaxAddress {
		return netip.Addr{}, false
	}
	separator := ":"
	if strings.Count(label, "-") == 3 {
		separator = "."
	}
	ip, err := netip.ParseAddr(strings.ReplaceAll(label, "-", separator))
	if err != nil {
		return netip.Addr{}, false
	}
	var buf [MaxAddress]byte
	return ip, string(AppendAddress(buf[:0], ip)) == label
}
