package setting

import (
	"fmt"
	"math"
	"net"
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
