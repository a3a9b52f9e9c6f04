// Command federationctl is the owner's side of federated service discovery: serve
// publishes the services of a catalog file. import makes Services in Kubernetes of what owners
// publish. Around these, watch shows what an owner publishes, register has a program published while
// it runs, check finds mistakes in files, policy explains who is told of what, and pki makes
// certificates for a first try. Of a process that runs, a CoreDNS with the plugin, an owner or an
// importer, status shows how it is doing, why explains an answer, and dump has its catalogs.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/inspect"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/buildinfo"
	"github.com/hamlet-federation/coredns-federation/internal/removed"
)

// The exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// shutdownGrace is how long a command has to end after a signal before the process
// exits without it. A command may be unable to end: when it reads a file of a server
// that is gone, or writes to a pipe that nobody reads. An owner needs less for the
// end of its streams.
const shutdownGrace = 10 * time.Second

// endsItself is the key of an *atomic.Bool in the context of a command, which sets it when
// it ends in time without shutdownGrace, whatever time that is.
type endsItself struct{}

func main() {
	logLibraries(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	signal.Ignore(syscall.SIGPIPE) // a write to a closed pipe returns an error instead
	var own atomic.Bool
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() {
		stop() // a second signal ends the process at once
		time.AfterFunc(shutdownGrace, func() {
			if !own.Load() {
				os.Exit(exitFailed) // without a message: writing one may be what blocks
			}
		})
	})
	os.Exit(runCommandLine(context.WithValue(ctx, endsItself{}, &own), os.Args[1:], os.Stdout, os.Stderr))
}

// runCommandLine executes the command line in args until the command is done or ctx ends, and
// returns the exit code.
func runCommandLine(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := rootCommand(ctx)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.InitDefaultCompletionCmd(args...)
	if completion, _, err := root.Find([]string{"completion"}); err == nil {
		completion.RunE = showHelp // with it, an unknown shell is an error
	}

	command, err := root.ExecuteC()
	if err == nil {
		return exitDone
	}
	end, ok := errors.AsType[exitError](err)
	switch {
	case isClosedPipe(err) && end.code == exitFailed: // and not noAnswer: its code is an answer
		return exitDone
	case !ok:
		reportFailure(stderr, command, fmt.Errorf("%w%s", err, ofRemovedCommand(args)), fmt.Sprintf("see '%s --help'", command.CommandPath()))
		if command.Name() == "status" && slices.Contains(args, "--check") {
			return inspect.Unknown
		}
		return exitUsage
	case end.reason != nil:
		reportFailure(stderr, command, err, "")
	}
	return end.code
}

// ofRemovedCommand returns what serves instead of the command that args begin with, or "".
func ofRemovedCommand(args []string) string {
	return cmp.Or(removed.Commands.RemedyFor(strings.Join(args[:min(len(args), 2)], " ")), removed.Commands.RemedyFor(strings.Join(args[:min(len(args), 1)], "")))
}

// isClosedPipe reports whether an error is that nobody reads the standard output any more, as
// after head -1. Nobody has to be told, unless a script takes the exit code for an answer. A
// connection of the network may end by the same error.
func isClosedPipe(err error) bool {
	at, ok := errors.AsType[*fs.PathError](err)
	return ok && at.Path == os.Stdout.Name() && errors.Is(at, syscall.EPIPE)
}

// rootCommand returns federationctl with all its commands, which end with ctx.
func rootCommand(ctx context.Context) *cobra.Command {
	root := &cobra.Command{
		Use:   "federationctl",
		Short: "Publish services to federated platforms, and see what others publish",
		Long: `A running command follows its files, such as certificates, keys and catalogs. The exit
code is 0 when a command is done, 1 when it failed, and 2 when it was called in a wrong
way. A command whose exit code is an answer, such as check, fails also when its output
cannot be written, for example to a closed pipe.`,
		Example: `  # Try it out on one machine: certificates, an owner, a consumer.
  federationctl pki run
  federationctl serve --catalog catalog.yaml --allow-any \
      --cert run/owner.pem --key run/owner-key.pem --ca run/ca.pem
  federationctl watch localhost:8008 \
      --cert run/consumer.pem --key run/consumer-key.pem --ca run/ca.pem`,
		Version:       buildVersion(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetVersionTemplate("federationctl {{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(serveCommand(ctx), importCommand(ctx), watchCommand(ctx), registerCommand(ctx), checkCommand(ctx), policyCommand(ctx),
		whyCommand(ctx), statusCommand(ctx), servicesCommand(ctx), retryCommand(ctx), confirmCommand(ctx), dumpCommand(ctx), explainCommand(), pkiCommand())
	// Who asks for help wants to see a call first.
	const examples = "{{if .HasExample}}\n\nExamples:\n{{.Example}}{{end}}"
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), examples, "", 1))
	root.SetHelpTemplate("{{.Short}}." + examples + "\n\n{{with .Long}}{{. | trimTrailingWhitespaces}}\n\n{{end}}{{.UsageString}}")
	return root
}

// exitError is the end of a command that was called correctly, with another code than exitDone.
// Every other error is one of usage, with a hint at the help.
type exitError struct {
	code   int
	reason error // is printed; nil for a command that has said everything itself
}

// Error implements error.
func (e exitError) Error() string {
	if e.reason == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.reason.Error()
}

// Unwrap returns the reason.
func (e exitError) Unwrap() error { return e.reason }

// exitResult returns the result of a command that has said everything itself.
func exitResult(code int) error {
	if code == exitDone {
		return nil
	}
	return exitError{code: code}
}

// failureOf returns the result of a command that fails for a reason, or is done without one.
func failureOf(reason error) error {
	if reason == nil {
		return nil
	}
	return exitError{exitFailed, reason}
}

// noAnswer returns the result of a command that says yes or no and cannot. Its exit code is
// that of an error of usage, as with diff and grep, so that no script takes it for an answer.
func noAnswer(reason error) error { return exitError{exitUsage, reason} }

// newFailuref is fmt.Errorf for a failure.
func newFailuref(format string, args ...any) error { return failureOf(fmt.Errorf(format, args...)) }

// buildVersion returns what the binary was built from, and with.
func buildVersion() string {
	return fmt.Sprintf("%s (%s %s/%s)", buildinfo.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// originFlags adds the flags for the identity of a party, such as an owner, whose peers are
// consumers: files or a SPIFFE agent, or else what the flags instead say.
func originFlags(command *cobra.Command, origin *mtls.Origin, party, peers string, instead ...string) {
	flags := command.Flags()
	flags.StringVar(&origin.Files.Cert, "cert", "", "PEM `file`: the "+party+"'s certificate, then intermediate ones")
	flags.StringVar(&origin.Files.Key, "key", "", "PEM `file`: the key of that certificate")
	flags.StringVar(&origin.Files.CA, "ca", "", "PEM `file`: the authorities of "+peers)
	flags.Var(&flagValue{kind: "string", set: func(text string) error {
		if origin.SPIFFE.Socket = text; text == "" {
			return errors.New("the socket is empty")
		}
		return nil
	}}, "spiffe", "`socket` of a SPIFFE agent, unix:///path or tcp://ip:port, in place of the files")
	flags.StringArrayVar(&origin.SPIFFE.TrustDomains, "trust-domain", nil, "further `domain` accepted with --spiffe; repeatable")
	command.MarkFlagsOneRequired(append(instead, "cert", "spiffe")...)
	command.MarkFlagsRequiredTogether("cert", "key", "ca")
	for _, agent := range []string{"spiffe", "trust-domain"} { // which has what is in the files
		for _, file := range []string{"cert", "key", "ca"} {
			command.MarkFlagsMutuallyExclusive(agent, file)
		}
	}
}

// requireFlags makes flags of the command mandatory.
func requireFlags(command *cobra.Command, names ...string) {
	for _, name := range names {
		mustSucceed(command.MarkFlagRequired(name))
	}
}

// mustSucceed panics on an error that only a mistake in this package can cause: that there
// is no such flag.
func mustSucceed(err error) {
	if err != nil {
		panic(err)
	}
}

// showHelp is what a command does that only has others.
func showHelp(command *cobra.Command, _ []string) error { return command.Help() }

// noArgs allows no argument for a command; hint says what to do instead.
func noArgs(hint string) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		if len(args) > 0 {
			return fmt.Errorf("%s takes no argument, not %q; %s", command.Name(), args[0], hint)
		}
		return nil
	}
}

// openOrigin opens the identity of a party, whose files must be in order. Its errors say what
// to do.
func openOrigin(origin mtls.Origin, logger *slog.Logger) (*mtls.Source, error) {
	source, err := mtls.Open(origin, logger)
	if err == nil && origin.SPIFFE.Socket == "" {
		err = source.Missing()
	}
	if err != nil {
		return nil, originFailure(origin, err)
	}
	return source, nil
}

// originFailure returns why the identity that flags name cannot be used, and what to do.
func originFailure(origin mtls.Origin, err error) error {
	switch {
	case origin.SPIFFE.Socket != "":
		return newFailuref("%w; check --spiffe and --trust-domain", err)
	case errors.Is(err, fs.ErrNotExist):
		return newFailuref("%w; 'federationctl pki DIR' makes files for trying it out", err)
	case errors.Is(err, fs.ErrPermission):
		return newFailuref("%w; run it as a user who may read the file", err)
	}
	return newFailuref("%w; check --cert, --key and --ca", err)
}

// checkOwner returns what is wrong with the identities of an owner that is reached by a host.
func checkOwner(ids []federation.ID, origin mtls.Origin, host string) error {
	if origin.SPIFFE.Socket != "" && len(ids) == 0 {
		return fmt.Errorf("--spiffe needs --owner-id: the host of %s is no SPIFFE ID", host)
	}
	return checkIDs("owner-id", ids, origin)
}

// checkIDs returns which of the identities of a flag cannot be that of a peer: with a
// SPIFFE agent only SPIFFE IDs count.
func checkIDs(flag string, ids []federation.ID, origin mtls.Origin) error {
	for _, id := range ids {
		if origin.SPIFFE.Socket != "" && !id.IsSPIFFE() {
			return fmt.Errorf("--%s: %s is no SPIFFE ID, and with --spiffe nothing else is an identity", flag, id)
		}
	}
	return nil
}
