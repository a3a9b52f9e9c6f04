package main

import (
	"net"
	"strings"

	"github.com/hamlet-federation/coredns-federation/internal/setting"
)

// ownerPort is where an owner listens if nothing else is said.
const ownerPort = "8008"

// parseOwnerAddress returns host:port of an owner. In the text, the port may be missing, and https://
// stand before it.
func parseOwnerAddress(text string) (string, error) {
	address := strings.TrimSuffix(strings.TrimPrefix(text, "https://"), "/")
	if _, _, err := net.SplitHostPort(address); err != nil {
		address = net.JoinHostPort(strings.Trim(address, "[]"), ownerPort)
	}
	return setting.ParseAddress(address)
}
