package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/inspect"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
)

// overviewOptions are the flags of status.
type overviewOptions struct {
	statusOptions

	watch, check bool
	interval     time.Duration
}

func statusCommand(ctx context.Context) *cobra.Command {
	o := overviewOptions{interval: 2 * time.Second}
	command := o.runOnEndpoint(&cobra.Command{
		Use:   "status",
		Short: "Show how a running CoreDNS, owner or importer is doing",
		Long: `status shows a table with what is worst on top. A level is well, look (by day: names are
still answered) or act (now: names are missing, or will be). Below the table stands what
is wrong, and what to do. -o json shows everything.

--check is for monitoring systems. The exit code is 0 for well, 1 for look, 2 for act or
if no process answers, and 3 after wrong usage or if something else answers.`,
		Example: `  federationctl status
  federationctl status --check --timeout 10s`,
		Args: noArgs("name the endpoint with --at"),
	}, func(e *inspect.Endpoint, _ []string, out io.Writer) error {
		switch {
		case o.check:
			return o.writeCheck(ctx, e, out)
		case o.watch:
			return o.followStatus(ctx, e, out)
		}
		_, err := o.showStatus(ctx, e, out, out)
		return err
	})
	flags := command.Flags()
	outputFlag(command, &o.output)
	flags.BoolVar(&o.watch, "watch", false, "repeat until interrupted; if the output is no terminal, only after a change")
	positiveFlag(command, &o.interval, "interval", "`time` between two looks of --watch")
	flags.BoolVar(&o.check, "check", false, "print a line for a monitoring system, and exit with 0, 1, 2 or 3")
	command.MarkFlagsMutuallyExclusive("check", "watch")
	return command
}

// showStatus writes a status, in the form for a terminal if that is one.
func (o *overviewOptions) showStatus(ctx context.Context, e *inspect.Endpoint, terminal, out io.Writer) (*inspect.Overview, error) {
	reported, sent, err := e.Status(ctx)
	if err != nil {
		return nil, failureOf(err)
	}
	overview := inspect.NewOverview(reported)
	return overview, o.writeAnswer(out, sent, nil, func() string {
		return overview.FormatTable(lineWidth(terminal), hasColours(terminal))
	})
}

// followStatus shows a status until ctx ends, also one of a process that is away for a while. A
// terminal is written anew each time, anything else when something has changed.
func (o *overviewOptions) followStatus(ctx context.Context, e *inspect.Endpoint, out io.Writer) error {
	tick := time.NewTicker(o.interval)
	defer tick.Stop()
	var shown *inspect.Overview
	for begun, trouble := false, ""; ; {
		var text bytes.Buffer
		overview, err := o.showStatus(ctx, e, out, &text)
		if ctx.Err() != nil {
			return nil
		}
		said := ""
		if err != nil {
			overview, said = &inspect.Overview{}, err.Error()
			fmt.Fprintln(&text, printable.WrapText("no answer: "+said, lineWidth(out), "  "))
		}
		switch {
		case canUpdate(out):
			text.WriteString("\x1b[J") // what is left below
			_, err = out.Write(append([]byte("\x1b[H"), bytes.ReplaceAll(text.Bytes(), []byte("\n"), []byte("\x1b[K\n"))...))
		case !begun || said != trouble || !overview.SaysSame(shown):
			if begun && printable.IsTable(o.output) {
				fmt.Fprintln(out)
			}
			_, err = text.WriteTo(out)
		default:
			err = nil
		}
		if err != nil {
			return failureOf(err)
		}
		begun, shown, trouble = true, overview, said
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// writeCheck writes what a monitoring system reads, and returns its exit code.
func (o *overviewOptions) writeCheck(ctx context.Context, e *inspect.Endpoint, out io.Writer) error {
	reported, sent, err := e.Status(ctx)
	if err != nil {
		code := inspect.Unknown
		if _, away := errors.AsType[*inspect.UnreachableError](err); away {
			code = inspect.Critical
		}
		fmt.Fprintln(out, inspect.CheckLine(code, err.Error()))
		return exitResult(code)
	}
	overview := inspect.NewOverview(reported)
	text, code := overview.FormatCheck()
	if err := o.writeAnswer(out, sent, nil, func() string { return text }); err != nil {
		return exitResult(inspect.Unknown)
	}
	return exitResult(code)
}
