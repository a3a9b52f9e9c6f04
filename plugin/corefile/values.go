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
	"github.com/hamlet-federation/coredns-federation/internal/setting"
	"github.com/hamlet-federation/coredns-federation/internal/status/page"
)

// The ranges of the values in a block.
const (
	minTTL        = time.Second // with 0, resolvers ask anew for every look-up
	maxTTL        = time.Hour
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

func parseFiles(args []string) (mtls.Files, error) {
	for _, arg := range args {
		if _, err := parseFile(arg); err != nil {
			return mtls.Files{}, err
		}
	}
	return mtls.Files{Cert: args[0], Key: args[1], CA: args[2]}, nil
}

// parseSPIFFE returns the SPIFFE origin of the arguments SOCKET [TRUST_DOMAIN...].
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

// parseStatus returns the status of the arguments ADDRESS [CERT KEY CA].
func parseStatus(args []string) (c page.Config, err error) {
	host, port, err := net.SplitHostPort(args[0])
	if err != nil {
		return page.Config{}, fmt.Errorf("%q is not HOST:PORT", args[0])
	}
	if c.Address, err = setting.JoinHostPort(args[0], host, port); err != nil {
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
	ttl, err := setting.ParseDuration(s)
	if err != nil || ttl < minTTL || ttl > maxTTL || ttl%time.Second != 0 {
		return 0, fmt.Errorf("%q is not a whole number of seconds from %.0f to %.0f", s, minTTL.Seconds(), maxTTL.Seconds())
	}
	return uint32(ttl / time.Second), nil
}

func parseCount(s string) (int, error) {
	count, err := strconv.Atoi(s)
	if err != nil || count < 1 {
		return 0, fmt.Errorf("%q is not a whole number from 1", s)
	}
	return count, nil
}
