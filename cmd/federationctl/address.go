package main

import (
	"net"
	"strings"
)

// ownerPort is where an owner listens if nothing else is said.
const ownerPort = "8008"

// ownerAddress returns host:port of an owner, whose port may be missing in text. It returns
// false where text is neither a host nor host:port.
func ownerAddress(text string) (string, bool) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host, port = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"), ownerPort
		if strings.Contains(host, ":") && net.ParseIP(host) == nil {
			return "", false
		}
	}
	if host == "" || port == "" || strings.ContainsAny(host, "/ ") {
		return "", false
	}
	return net.JoinHostPort(host, port), true
}
