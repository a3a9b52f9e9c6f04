// Command coredns is CoreDNS with every plugin of its own tree and federation
// right after kubernetes. It takes CoreDNS's flags.
package main

import (
	"fmt"
	"os"
	"runtime/debug"

	"github.com/coredns/coredns/core/dnsserver"
	_ "github.com/coredns/coredns/core/plugin" // every plugin of CoreDNS's tree
	"github.com/coredns/coredns/coremain"

	"github.com/hamlet-federation/coredns-federation/cmd/coredns/directives"
	_ "github.com/hamlet-federation/coredns-federation/plugin" // and federation
)

func main() {
	if err := addFederation(); err != nil {
		fmt.Fprintln(os.Stderr, "coredns:", err)
		os.Exit(1)
	}
	// The build line of CoreDNS's version, and the label revision of its metric
	// coredns_build_info, hold the commit it was built from. Here that is a
	// version of this module.
	if build, ok := debug.ReadBuildInfo(); ok && coremain.GitCommit == "" {
		coremain.GitCommit = "federation " + build.Main.Version
	}
	coremain.Run()
}

func addFederation() error {
	order, err := directives.Insert(dnsserver.Directives)
	if err != nil {
		return err
	}
	return dnsserver.SetDirectives(order)
}
