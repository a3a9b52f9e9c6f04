// Command coredns is CoreDNS with every plugin of its own tree and federation
// right after kubernetes. It takes CoreDNS's flags.
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	_ "github.com/coredns/coredns/core/plugin" // every plugin of CoreDNS's tree
	"github.com/coredns/coredns/coremain"
	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/coreos/go-systemd/v22/daemon"
	"google.golang.org/grpc/grpclog"

	"github.com/hamlet-federation/coredns-federation/cmd/coredns/directives"
	"github.com/hamlet-federation/coredns-federation/internal/buildinfo"
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
	if coremain.GitCommit == "" {
		coremain.GitCommit = "federation " + buildinfo.Version()
	}
	caddy.RegisterEventHook("systemd", tellSystemd)
	if os.Getenv("GRPC_GO_LOG_SEVERITY_LEVEL") == "" { // with it, somebody wants the log of the library itself
		logGRPC()
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

// logGRPC has the errors that gRPC reports written as lines of CoreDNS's log. The plugin does
// not: other programs have a say in it.
func logGRPC() { grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, lineWriter{})) }

// lineWriter logs what is written to it.
type lineWriter struct{}

// Write implements io.Writer.
func (lineWriter) Write(text []byte) (int, error) {
	clog.Errorf("gRPC reports an error error=%q", bytes.TrimSpace(text))
	return len(text), nil
}

// tellSystemd tells systemd, where it has started the process, that the servers listen
// or begin to end. They are not awaited further: a start that waited for owners would
// fail when one is away, while the plugin ready says that it is. CoreDNS drops its hooks
// when SIGUSR1 has it reload, so nothing is told of reloads, nor of the end after one,
// which systemd need not know.
func tellSystemd(event caddy.EventName, _ any) error {
	var state string
	switch event {
	case caddy.InstanceStartupEvent:
		state = daemon.SdNotifyReady
	case caddy.ShutdownEvent:
		state = daemon.SdNotifyStopping
	default:
		return nil
	}
	_, err := daemon.SdNotify(false, state)
	return err
}
