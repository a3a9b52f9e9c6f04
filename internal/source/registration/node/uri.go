package node

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// maxURIBytes bounds a URI as a provider spells it. The longest name of a host has 254.
const maxURIBytes = 512

// URI says where a node is. The zero value is no place. URIs are comparable with ==.
type URI struct {
	Protocol federation.Protocol
	Address  federation.Address
	Port     uint16
}

// The rules that a URI can break, beside those of [federation.ParseAddress]. Every error of
// ParseURI wraps one of these or of those.
var (
	errLong     = fmt.Errorf("is longer than %d bytes", maxURIBytes)
	errScheme   = errors.New("the scheme is not one of http, https, grpc, http2, mongo, tcp, tls and mtls")
	errExtra    = errors.New("a node has no path, query, fragment or user")
	errBrackets = errors.New("an IPv6 address, and nothing else, stands in brackets")
	errNoPort   = errors.New("the port is missing; only http and https have one by default")
	errPort     = errors.New("the port is not a number from 1 to 65535")
	errNoHost   = errors.New("the host is missing, and the address of the provider is not known")
)

// ParseURI returns the URI of a provider's text. Peer is the address from which the provider
// connects, and is used where the text has no host.
//
// Package net/url is not used because it accepts more than a node may have, such as escapes in
// names and zones of addresses, and decodes that.
func ParseURI(text string, peer netip.Addr) (URI, error) {
	u, err := parseURI(text, peer)
	if err != nil {
		return URI{}, fmt.Errorf("node %s: %w", safetext.Quote(text), err)
	}
	return u, nil
}

// parseAbsolute returns the URI of a text that must have a host.
func parseAbsolute(text string) (URI, error) { return ParseURI(text, netip.Addr{}) }

func parseURI(text string, peer netip.Addr) (u URI, err error) {
	if len(text) > maxURIBytes {
		return u, errLong
	}
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok || strings.Contains(scheme, "ſ") { // U+017F is an S in upper case
		return u, errScheme
	}
	if u.Protocol, ok = federation.ParseProtocol(scheme); !ok {
		return u, errScheme
	}
	rest = strings.TrimSuffix(rest, "/")
	if strings.ContainsAny(rest, "/?#@\\") {
		return u, errExtra
	}
	host, port, err := splitHostPort(rest)
	if err != nil {
		return u, err
	}
	if u.Port, err = parsePort(port, u.Protocol); err != nil {
		return u, err
	}
	switch peer = peer.Unmap().WithZone(""); {
	case host != "":
		u.Address, err = federation.ParseAddress(host)
	case !peer.IsValid():
		err = errNoHost
	default:
		u.Address, err = federation.ParseAddress(peer.String())
	}
	return u, err
}

// splitHostPort returns the host, without brackets, and the port, which is empty where there is
// none.
func splitHostPort(authority string) (host, port string, err error) {
	if strings.HasPrefix(authority, "[") {
		var closed bool
		host, port, closed = strings.Cut(authority[1:], "]")
		if ip, err := netip.ParseAddr(host); err != nil || !ip.Is6() || !closed {
			return "", "", errBrackets
		}
	} else if at := strings.IndexByte(authority, ':'); at >= 0 {
		host, port = authority[:at], authority[at:]
	} else {
		host = authority
	}
	if port == "" {
		return host, "", nil
	}
	number, ok := strings.CutPrefix(port, ":")
	switch {
	case strings.ContainsAny(number, ":]"):
		return "", "", errBrackets
	case !ok || number == "":
		return "", "", errPort
	}
	return host, number, nil
}

func parsePort(text string, protocol federation.Protocol) (uint16, error) {
	switch {
	case text != "":
	case protocol == federation.HTTP:
		return 80, nil
	case protocol == federation.HTTPS:
		return 443, nil
	default:
		return 0, errNoPort
	}
	port, err := strconv.ParseUint(text, 10, 16) // which takes no sign
	if err != nil || port == 0 || text[0] == '0' {
		return 0, errPort
	}
	return uint16(port), nil
}

// String returns the URI in the form that ParseURI reads, always with host and port, or "" for the
// zero value.
func (u URI) String() string {
	if u == (URI{}) {
		return ""
	}
	return strings.ToLower(u.Protocol.String()) + "://" + net.JoinHostPort(u.hostText(), strconv.Itoa(int(u.Port)))
}

// hostText returns the address or the name of the host, without a final dot.
func (u URI) hostText() string { return strings.TrimSuffix(u.Address.String(), ".") }

// Compare orders URIs: IP addresses come before names, then by port and protocol.
func (u URI) Compare(v URI) int {
	a, isIP := u.Address.IP()
	b, isOther := v.Address.IP()
	switch {
	case isIP && isOther:
		if c := a.Compare(b); c != 0 {
			return c
		}
	case isIP:
		return -1
	case isOther:
		return 1
	default:
		if c := strings.Compare(u.Address.String(), v.Address.String()); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(u.Port, v.Port), cmp.Compare(u.Protocol, v.Protocol))
}
