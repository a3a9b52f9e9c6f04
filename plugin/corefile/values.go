package corefile

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/status/page"
)

// The ranges of the values in a block.
const (
	minTTL        = time.Second // with 0, resolvers ask anew for every look-up
	maxTTL        = time.Hour
	minRetention  = time.Second
	minSettle     = 100 * time.Millisecond
	maxSettle     = 10 * time.Minute
	minMaxCatalog = 1 << 20 // octets
	maxMaxCatalog = 1 << 40 // octets
)

// parseList returns have and the values of the arguments, each once.
func parseList[T comparable](have []T, args []string, parse func(string) (T, error)) ([]T, error) {
	for _, arg := range args {
		value, err := parse(arg)
		if err != nil {
			return nil, err
		}
		if slices.Contains(have, value) {
			return nil, fmt.Errorf("%q is given twice", arg)
		}
		have = append(have, value)
	}
	return have, nil
}

func parseOrigin(s string) (federation.FQDN, error) {
	origin, err := federation.ParseOrigin(s)
	_, cidrErr := netip.ParsePrefix(s)
	switch name := "." + origin.String(); {
	case cidrErr == nil, strings.HasSuffix(name, ".in-addr.arpa."), strings.HasSuffix(name, ".ip6.arpa."):
		return federation.FQDN{}, fmt.Errorf("%q is a reverse zone, and services are published by name only", s)
	case err != nil:
		return federation.FQDN{}, fmt.Errorf("%q: %w", s, err)
	}
	return origin, nil
}

// parseAddress takes https://host:port as well, the form of the specification.
func parseAddress(s string) (string, error) {
	host, port, err := net.SplitHostPort(strings.TrimPrefix(s, "https://"))
	if err != nil || host == "" {
		return "", fmt.Errorf("%q is not HOST:PORT or https://HOST:PORT", s)
	}
	return joinHostPort(s, host, port)
}

// joinHostPort returns the address that was written as s. A host name is in lower case, and an
// IP address as Go writes it, so that equal ones are the same. No host is all addresses.
func joinHostPort(s, host, port string) (string, error) {
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return "", fmt.Errorf("%q has no port from 1 to 65535", s)
	}
	if host != "" {
		if host, err = parseHost(host); err != nil {
			return "", err
		}
	}
	return net.JoinHostPort(host, strconv.FormatUint(number, 10)), nil
}

func parseHost(s string) (string, error) {
	address, err := federation.ParseAddress(s)
	if err != nil {
		return "", fmt.Errorf("%q: %w", s, err)
	}
	return strings.TrimSuffix(address.String(), "."), nil
}

func parseFiles(args []string) (mtls.Files, error) {
	for _, arg := range args {
		if _, err := parseFile(arg); err != nil {
			return mtls.Files{}, err
		}
	}
	return mtls.Files{Cert: args[0], Key: args[1], CA: args[2]}, nil
}

// parseSPIFFE takes SOCKET [TRUST_DOMAIN...].
func parseSPIFFE(args []string) (mtls.SPIFFE, error) {
	if args[0] == "" {
		return mtls.SPIFFE{}, errors.New("the socket is empty; name that of the agent, such as unix:///run/spire/agent.sock")
	}
	domains, err := parseList(nil, args[1:], parseVerbatim)
	if err != nil {
		return mtls.SPIFFE{}, err
	}
	origin := mtls.SPIFFE{Socket: args[0], TrustDomains: domains}
	return origin, origin.Check()
}

func parseVerbatim(s string) (string, error) { return s, nil }

// parseStatus takes ADDRESS [CERT KEY CA].
func parseStatus(args []string) (c page.Config, err error) {
	host, port, err := net.SplitHostPort(args[0])
	if err != nil {
		return page.Config{}, fmt.Errorf("%q is not HOST:PORT", args[0])
	}
	if c.Address, err = joinHostPort(args[0], host, port); err != nil {
		return page.Config{}, err
	}
	if len(args) > 1 {
		if c.Files, err = parseFiles(args[1:]); err != nil {
			return page.Config{}, err
		}
	}
	return c, c.Validate()
}

func parseFile(s string) (string, error) {
	if s == "" {
		return "", errors.New("the name of the file is empty")
	}
	return s, nil
}

func parseTTL(s string) (uint32, error) {
	ttl, err := parseDuration(s)
	if err != nil || ttl < minTTL || ttl > maxTTL || ttl%time.Second != 0 {
		return 0, fmt.Errorf("%q is not a whole number of seconds from %.0f to %.0f", s, minTTL.Seconds(), maxTTL.Seconds())
	}
	return uint32(ttl / time.Second), nil
}

func parseRetention(s string) (time.Duration, error) {
	if s == "forever" {
		return catalog.Forever, nil
	}
	retention, err := parseDuration(s)
	if err != nil || retention < minRetention {
		return 0, fmt.Errorf("%q is not a duration of %v or more; write 24h, or forever", s, minRetention)
	}
	return retention, nil
}

func parseSettle(s string) (time.Duration, error) {
	duration, err := parseDuration(s)
	if err != nil || duration < minSettle || duration > maxSettle {
		return 0, fmt.Errorf("%q is not a duration from %v to %v", s, minSettle, maxSettle)
	}
	return duration, nil
}

// parseDuration takes a duration as Go writes it, or a bare number of seconds.
func parseDuration(s string) (time.Duration, error) {
	if _, err := strconv.ParseUint(s, 10, 64); err == nil {
		s += "s"
	}
	return time.ParseDuration(s)
}

func parseCount(s string) (int, error) {
	count, err := strconv.Atoi(s)
	if err != nil || count < 1 {
		return 0, fmt.Errorf("%q is not a whole number from 1", s)
	}
	return count, nil
}

// parseMaxCatalog takes a number of octets, or a number with a unit that is a power of 1024.
func parseMaxCatalog(s string) (int64, error) {
	digits := strings.TrimRight(s, "BGKMTibgkmt")
	shifts := map[string]uint{"": 0, "b": 0, "k": 10, "kib": 10, "m": 20, "mib": 20, "g": 30, "gib": 30, "t": 40, "tib": 40}
	shift, ok := shifts[strings.ToLower(s[len(digits):])]
	number, err := strconv.ParseInt(digits, 10, 64)
	if ok && err == nil && number <= maxMaxCatalog>>shift && number >= 0 && minMaxCatalog <= number<<shift {
		return number << shift, nil
	}
	return 0, fmt.Errorf("%q is not a size from 1MiB to 1TiB", s)
}

func parsePrefix(s string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(s)
	switch {
	case err != nil, prefix.Addr().Is4In6(): // endpoints have the IPv4 address instead
		return netip.Prefix{}, fmt.Errorf("%q is not a prefix such as 127.0.0.0/8 or fe80::/10", s)
	case prefix != prefix.Masked():
		return netip.Prefix{}, fmt.Errorf("%q has host bits set; its prefix is %s", s, prefix.Masked())
	}
	return prefix, nil
}
