// Command federationctl publishes services to federated platforms, shows what
// an owner publishes, checks catalog files, and makes certificates to try it
// all out with.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
)

// The exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// shutdownGrace is how long a command has to end after a signal. One that reads
// a file of a server that is gone, or writes to a pipe that nobody reads, cannot:
// it is left to the system then. It is longer than what a command takes over the
// end of its streams.
const shutdownGrace = 10 * time.Second

func main() {
	signal.Ignore(syscall.SIGPIPE) // writes tell of it, to those who want to know
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() {
		stop()                                                        // a second signal ends the process at once
		time.AfterFunc(shutdownGrace, func() { os.Exit(exitFailed) }) // in silence: a message might be what is in the way
	})
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run executes the command that args spell, until it is done or ctx ends, and
// returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := rootCommand(ctx)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)

	command, err := root.ExecuteC()
	if err == nil {
		return exitDone
	}
	fmt.Fprintf(stderr, "federationctl: %v\n", err)
	if _, ok := errors.AsType[failure](err); ok {
		return exitFailed
	}
	fmt.Fprintf(stderr, "federationctl: see '%s --help'\n", command.CommandPath())
	return exitUsage
}

func rootCommand(ctx context.Context) *cobra.Command {
	root := &cobra.Command{
		Use:   "federationctl",
		Short: "Publish services to federated platforms, and see what others publish",
		Long: `federationctl is the owner's side of federated service discovery, and what
is needed around it.

Files that hold certificates, keys and catalogs are followed while a command
runs: edit or replace them, and the new content is used.`,
		Example: `  # Try it out on one machine: certificates, an owner, a consumer.
  federationctl pki run
  federationctl serve --catalog catalog.yaml --cert run/owner.pem --key run/owner-key.pem --ca run/ca.pem
  federationctl watch localhost:8008 --cert run/consumer.pem --key run/consumer-key.pem --ca run/ca.pem`,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetVersionTemplate("federationctl {{.Version}}\n")
	root.AddCommand(serveCommand(ctx), watchCommand(ctx), lintCommand(ctx), pkiCommand(), completionCommand())
	completeFlags(root)
	return root
}

// failure is an error of a command that was called in the right way. Every
// other error is one of usage.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

func failed(format string, args ...any) error { return failure{fmt.Errorf(format, args...)} }

// version returns the version of the module that the binary was built from.
func version() string {
	v := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		v = info.Main.Version
	}
	return fmt.Sprintf("%s (%s %s/%s)", v, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// filesFlags adds the flags for the certificate files of a party.
func filesFlags(command *cobra.Command, files *mtls.Files, party, peers string) {
	flags := command.Flags()
	flags.StringVar(&files.Cert, "cert", "", "PEM `file` with the "+party+"'s certificate, and those between it and its authority")
	flags.StringVar(&files.Key, "key", "", "PEM `file` with the private key of the certificate")
	flags.StringVar(&files.CA, "ca", "", "PEM `file` with the authorities that sign the certificates of "+peers)
	require(command, "cert", "key", "ca")
}

// require marks flags of the command that must be given.
func require(command *cobra.Command, names ...string) {
	for _, name := range names {
		must(command.MarkFlagRequired(name))
	}
}

// must is for errors that only a mistake in this package can cause: there is no
// such flag.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// one checks that a command has one argument.
func one(what string) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("%s takes one %s, not %d", command.Name(), what, len(args))
		}
		return nil
	}
}

// loadFiles reads the certificate files of a party.
func loadFiles(files mtls.Files, logger *slog.Logger) (*mtls.Source, error) {
	source, err := mtls.Load(files, logger)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, failed("%w; 'federationctl pki DIR' makes files for trying it out", err)
	case errors.Is(err, fs.ErrPermission):
		return nil, failed("%w; run it as a user who may read the file", err)
	case err != nil:
		return nil, failed("%w; check --cert, --key and --ca", err)
	}
	return source, nil
}

// parseIDs returns the identities that the values of a flag spell.
func parseIDs(flag string, values []string) ([]mtls.ID, error) {
	var ids []mtls.ID
	for _, value := range values {
		id, err := mtls.ParseID(value)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", flag, err)
		}
		ids = append(ids, id)
	}
	return ids, nil
}
