package setting

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// The values of a Corefile and of the files of an owner that look the same in both.

// ParseAddress takes the address of an owner, host:port, or https://host:port, the form of the
// specification.
func ParseAddress(s string) (string, error) {
	host, port, err := net.SplitHostPort(strings.TrimPrefix(s, "https://"))
	if err != nil || host == "" {
		return "", fmt.Errorf("%s is not HOST:PORT or https://HOST:PORT", safetext.Quote(s))
	}
	return JoinHostPort(s, host, port)
}

// JoinHostPort returns the address that was written as s. A host name is in lower case, and an
// IP address as Go writes it, so that equal ones are the same. No host is all addresses.
func JoinHostPort(s, host, port string) (string, error) {
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return "", fmt.Errorf("%s has no port from 1 to 65535", safetext.Quote(s))
	}
	if host != "" {
		if host, err = ParseHost(host); err != nil {
			return "", err
		}
	}
	return net.JoinHostPort(host, strconv.FormatUint(number, 10)), nil
}

// ParseHost takes a host name or an IP address.
func ParseHost(s string) (string, error) {
	address, err := federation.ParseAddress(s)
	if err != nil {
		return "", fmt.Errorf("%s: %w", safetext.Quote(s), err)
	}
	return strings.TrimSuffix(address.String(), "."), nil
}

// ParseDuration takes a duration as Go writes it, or a bare number of seconds.
func ParseDuration(s string) (time.Duration, error) {
	if _, err := strconv.ParseUint(s, 10, 64); err == nil {
		s += "s"
	}
	return time.ParseDuration(s)
}

// ParseDurationIn takes a duration from least to most.
func ParseDurationIn(s string, least, most time.Duration) (time.Duration, error) {
	d, err := ParseDuration(s)
	if err != nil || d < least || d > most {
		return 0, fmt.Errorf("%s is not a duration of %v to %v", safetext.Quote(s), least, most)
	}
	return d, nil
}

// minLifetime is for how long services outlive their origin at least: below it a mere reconnect would end
// them.
const minLifetime = time.Second

// ParseDurationOr takes a duration of minLifetime at least, or the word for endless, which stands for a value.
func ParseDurationOr(s, endless string, value time.Duration) (time.Duration, error) {
	if s == endless {
		return value, nil
	}
	d, err := ParseDuration(s)
	if err != nil || d < minLifetime {
		return 0, fmt.Errorf("%s is not a duration of %v or more; write 24h, or %s", safetext.Quote(s), minLifetime, endless)
	}
	return d, nil
}

// ParsePrefix takes a range of addresses. One of IPv4 addresses in IPv6 would match no endpoint.
func ParsePrefix(s string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(s)
	switch {
	case err != nil, prefix.Addr().Is4In6():
		return netip.Prefix{}, fmt.Errorf("%s is not a CIDR such as 127.0.0.0/8 or fe80::/10", safetext.Quote(s))
	case prefix != prefix.Masked():
		return netip.Prefix{}, fmt.Errorf("%s has host bits set; its prefix is %s", safetext.Quote(s), prefix.Masked())
	}
	return prefix, nil
}

// ParseSize returns the number of bytes that a text stands for: a whole number from 1,
// which KiB, MiB, GiB or TiB may follow.
func ParseSize(text string) (int64, error) {
	digits := strings.TrimRight(text, "BKMGTi")
	unit := max(slices.Index(sizeUnits, text[len(digits):]), 0)
	number, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || number < 1 || number > math.MaxInt64>>(10*unit) || digits[0] == '+' || digits+sizeUnits[unit] != text && digits != text {
		return 0, fmt.Errorf("%s is not a size such as 512MiB", safetext.Quote(text))
	}
	return number << (10 * unit), nil
}

// ParseSizeIn takes a size from least to most.
func ParseSizeIn(text string, least, most int64) (int64, error) {
	size, err := ParseSize(text)
	if err == nil && (size < least || size > most) {
		return 0, fmt.Errorf("%s is not a size of %s to %s", safetext.Quote(text), FormatSize(least), FormatSize(most))
	}
	return size, err
}

// FormatSize returns a number of bytes as ParseSize takes it, with the largest unit
// of which it is a multiple.
func FormatSize(size int64) string {
	unit := 0
	for size != 0 && size%1024 == 0 && unit < len(sizeUnits)-1 {
		size, unit = size/1024, unit+1
	}
	return strconv.FormatInt(size, 10) + sizeUnits[unit]
}

// sizeUnits has the units of a size, each 1024 times the one before.
var sizeUnits = []string{"B", "KiB", "MiB", "GiB", "TiB"}

// WholeNumber returns a function that takes a whole number from 1 to most.
func WholeNumber(most int) func(text string) (int, error) {
	return func(text string) (int, error) {
		number, err := strconv.Atoi(text)
		if err != nil || number < 1 || number > most {
			return 0, fmt.Errorf("%s is not a whole number from 1 to %d", safetext.Quote(text), most)
		}
		return number, nil
	}
}
