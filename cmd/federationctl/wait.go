package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/inspect"
	"github.com/hamlet-federation/coredns-federation/federation/status"
)

// waitOptions are the flags of wait.
type waitOptions struct {
	name          string
	qtype         uint16
	until, server string
	timeout       time.Duration
}

func waitCommand(ctx context.Context) *cobra.Command {
	o := waitOptions{timeout: time.Minute}
	command := &cobra.Command{
		Use:   "wait NAME [TYPE]",
		Short: "Wait until a DNS server answers a name, or does not any more",
		Long: `wait asks a DNS server ten times a second until it has records of the name, and
prints them; with --for gone, until it says that there are none. TYPE is A where it
is left out. An error, such as SERVFAIL, and no answer at all are neither.

The exit code is 0 when that is so, 1 when it is not in time, and 2 when the command
is called in a wrong way.`,
		Example: `  federationctl wait new.fed.example --dns localhost:53
  federationctl wait web.fed.example SRV --for gone --dns localhost:53`,
		Args: func(_ *cobra.Command, args []string) (err error) {
			if len(args) < 1 || len(args) > 2 {
				return fmt.Errorf("wait takes a NAME, and perhaps a TYPE, not %s", status.Count(len(args), "argument"))
			}
			o.name, o.qtype, err = inspect.NewQuestion(args[0], strings.Join(args[1:], ""))
			return err //nolint:wrapcheck // it says what is wrong with which argument
		},
		RunE: func(command *cobra.Command, _ []string) error {
			return toldOn(command.OutOrStdout(), func(out io.Writer) error { return o.run(ctx, out) })
		},
	}
	command.AddCommand(settledCommands(ctx)...)
	flags := command.Flags()
	choiceFlag(command, &o.until, "for", "", "`what` to wait for: answer or gone", "answer", "gone")
	flags.StringVar(&o.server, "dns", "localhost", "`server` to ask, host or host:port")
	positiveFlag(command, &o.timeout, "timeout", "`time` to wait at most")
	return command
}

func (o *waitOptions) run(ctx context.Context, stdout io.Writer) error {
	name := strings.TrimSuffix(o.name, ".")
	server, err := inspect.NewDNS(o.server, min(o.timeout, 2*time.Second), 10)
	if err != nil {
		return trouble(fmt.Errorf("--dns: %w", err))
	}
	late := errors.New("late")
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, late)
	defer cancel()
	last := "no answer yet"
	records, err := server.Wait(ctx, o.name, o.qtype, o.until == "gone", func(said string) {
		last = said
	})
	if errors.Is(err, late) {
		return failure(fmt.Errorf("%s: waited %v for %s, and %s says: %s", name, o.timeout, o.until, o.server, last))
	}
	if err != nil {
		return failure(err)
	}
	for _, r := range records {
		fmt.Fprintln(stdout, r)
	}
	return nil
}
