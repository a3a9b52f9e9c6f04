// Command nsm is a Network Service Mesh for tests, made of its own SDK: a registry that
// keeps its state in memory, an endpoint that registers and goes on refreshing, and the
// look-up of another domain. It is a module of its own because the SDK pins an older gRPC
// than CoreDNS needs.
//
//	nsm registry -listen ADDRESS            serve a registry until SIGTERM
//	nsm endpoint -registry URL -name ...    register, print what was registered, refresh
//	nsm resolve -dns ADDRESS -domain NAME   print what the SDK finds of another domain
//
// All of them speak plain TCP.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "nsm:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	commands := map[string]func(context.Context, *flag.FlagSet, []string) error{
		"registry": serve, "endpoint": register, "resolve": resolve,
	}
	if len(args) > 0 {
		if command := commands[args[0]]; command != nil {
			return command(ctx, flag.NewFlagSet(args[0], flag.ExitOnError), args[1:])
		}
	}
	return fmt.Errorf("want registry, endpoint or resolve, not %q", args)
}
