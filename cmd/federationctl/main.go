// Command federationctl is the owner's side of federated service discovery: serve
// publishes the services of a catalog file. Around it, watch shows what an owner
// publishes, lint checks catalog files, policy explains who is told of what, and pki
// makes certificates for a first try.
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
	"k8s.io/klog/v2"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
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

func main() {
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(os.Stderr, nil))) // the log of the Kubernetes client
	signal.Ignore(syscall.SIGPIPE)                                    // a write to a closed pipe returns an error instead
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() {
		stop()                                                        // a second signal ends the process at once
		time.AfterFunc(shutdownGrace, func() { os.Exit(exitFailed) }) // without a message: writing one may be what blocks
	})
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run executes the command line in args until the command is done or ctx ends, and
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
	if errors.Is(err, errNo) {
		return exitFailed
	}
	fmt.Fprintf(stderr, "federationctl: %v\n", err)
	if _, ok := errors.AsType[failure](err); ok {
		return exitFailed
	}
	if _, ok := errors.AsType[trouble](err); ok {
		return exitUsage
	}
	fmt.Fprintf(stderr, "federationctl: see '%s --help'\n", command.CommandPath())
	return exitUsage
}

// rootCommand returns federationctl with all its commands, which end with ctx.
func rootCommand(ctx context.Context) *cobra.Command {
	root := &cobra.Command{
		Use:   "federationctl",
		Short: "Publish services to federated platforms, and see what others publish",
		Long: `federationctl is the owner's side of federated service discovery, with tools
to check a catalog, to watch an owner, to explain who is told of what, and to make
certificates for a first try.

While a command runs it follows its files, such as certificates, keys and
catalogs: edit or replace a file, and the new content is used.

The exit code is 0 when a command is done, 1 when it failed, and 2 when it was
called in a wrong way.`,
		Example: `  # Try it out on one machine: certificates, an owner, a consumer.
  federationctl pki run
  federationctl serve --catalog catalog.yaml --cert run/owner.pem --key run/owner-key.pem --ca run/ca.pem
  federationctl watch localhost:8008 --cert run/consumer.pem --key run/consumer-key.pem --ca run/ca.pem`,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetVersionTemplate("federationctl {{.Version}}\n")
	root.AddCommand(serveCommand(ctx), watchCommand(ctx), lintCommand(ctx), policyCommand(ctx), pkiCommand(), completionCommand())
	completeFlags(root)
	return root
}

// failure is an error of a command that was called correctly. Every other error is
// one of usage, with another exit code and a hint at the help.
type failure struct{ error }

// Unwrap returns the error itself.
func (f failure) Unwrap() error { return f.error }

// errNo is the answer of a command that says yes or no. It is not printed.
var errNo = errors.New("no")

// trouble is why a command that says yes or no does not. Its exit code is that of an
// error of usage, as with diff and grep, so that no script takes it for an answer.
type trouble struct{ error }

// Unwrap returns the error itself.
func (t trouble) Unwrap() error { return t.error }

// failed is fmt.Errorf for a failure.
func failed(format string, args ...any) error { return failure{fmt.Errorf(format, args...)} }

// version returns the version of the module that the binary was built from, and
// what it was built with.
func version() string {
	v := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		v = info.Main.Version
	}
	return fmt.Sprintf("%s (%s %s/%s)", v, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// filesFlags adds the flags for the certificate files of a party, such as an owner,
// whose peers are consumers.
func filesFlags(command *cobra.Command, files *mtls.Files, party, peers string) {
	flags := command.Flags()
	flags.StringVar(&files.Cert, "cert", "", "PEM `file` with the "+party+"'s certificate, followed by any intermediate ones")
	flags.StringVar(&files.Key, "key", "", "PEM `file` with the private key of that certificate")
	flags.StringVar(&files.CA, "ca", "", "PEM `file` with the authorities that sign the certificates of "+peers)
}

// require makes flags of the command mandatory.
func require(command *cobra.Command, names ...string) {
	for _, name := range names {
		must(command.MarkFlagRequired(name))
	}
}

// must panics on an error that only a mistake in this package can cause: that there
// is no such flag.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// one requires exactly one argument of a command.
func one(what string) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("%s takes one %s, not %d", command.Name(), what, len(args))
		}
		return nil
	}
}

// none allows no argument for a command; hint says what to do instead.
func none(hint string) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		if len(args) > 0 {
			return fmt.Errorf("%s takes no argument, not %q; %s", command.Name(), args[0], hint)
		}
		return nil
	}
}

// loadFiles reads the certificate files of a party. Its errors say what to do.
func loadFiles(files mtls.Files, logger *slog.Logger) (*mtls.Source, error) {
	source, err := mtls.Load(files, logger)
	if err != nil {
		return nil, filesFailure(err)
	}
	return source, nil
}

// filesFailure returns why certificate files that flags name cannot be used, and what
// to do.
func filesFailure(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return failed("%w; 'federationctl pki DIR' makes files for trying it out", err)
	case errors.Is(err, fs.ErrPermission):
		return failed("%w; run it as a user who may read the file", err)
	}
	return failed("%w; check --cert, --key and --ca", err)
}

// parseIDs parses the values of a flag as identities.
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
