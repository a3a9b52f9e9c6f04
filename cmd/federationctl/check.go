package main

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/plugin/corefile"
)

func checkCommand(ctx context.Context) *cobra.Command {
	elsewhere := false
	command := &cobra.Command{
		Use:   "check COREFILE",
		Short: "Find all mistakes in the federation blocks of a Corefile",
		Long: `check reads a Corefile as CoreDNS does, and starts nothing. It prints each mistake in
its shape and in its federation blocks with file and line, where CoreDNS would stop at
the first server block with one. Imported files are read as well.

A warning is for what is allowed and probably not meant, such as a zone outside its
server block. Certificates, keys and CA files that cannot be used are mistakes here;
CoreDNS starts with them, and their owners are not connected until they are mended.
Other plugins and addresses in use are not checked, nor whether blocks of several server
blocks agree on an owner.

COREFILE - is standard input. The exit code is 0 without mistakes, also with warnings,
1 with some, and 2 when its output cannot be written.`,
		Example: `  federationctl check Corefile

  # Check an edit before it is used.
  federationctl check Corefile.new && mv Corefile.new Corefile`,
		Args:              oneArg("COREFILE"),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		RunE: func(command *cobra.Command, args []string) error {
			done := make(chan error, 1)
			// When ctx ends the goroutine is left to the end of the process, as with lint.
			look := checkFiles
			if elsewhere {
				look = nil
			}
			go func() {
				done <- toldOn(command.OutOrStdout(), func(out io.Writer) error { return checkCorefile(args[0], look, command.InOrStdin(), out) })
			}()
			select {
			case err := <-done:
				return err
			case <-ctx.Done():
				return newFailuref("interrupted")
			}
		},
	}
	elsewhereFlag(command, &elsewhere)
	return command
}

// elsewhereFlag adds the flag that has no files of certificates read.
func elsewhereFlag(command *cobra.Command, elsewhere *bool) {
	command.Flags().BoolVar(elsewhere, "elsewhere", false, "do not look at certificates, keys and CA files: they are on another machine")
}

// checkFiles returns why files cannot be used, or nil.
func checkFiles(files mtls.Files) error {
	_, err := mtls.Load(files, nil)
	return err
}

// checkCorefile prints the mistakes and warnings of a Corefile, and returns an error where it has
// mistakes. Usable is that of corefile.Check.
func checkCorefile(name string, usable func(mtls.Files) error, stdin io.Reader, stdout io.Writer) error {
	input := stdin
	if name == "-" {
		name = "<stdin>"
	} else {
		opened, err := os.Open(name)
		if err != nil {
			return failureOf(err)
		}
		defer opened.Close()
		input = opened
	}
	mistakes, warnings := corefile.Check(name, input, usable)
	for _, found := range []struct {
		severity string
		in       []*corefile.MistakeError
	}{{"error", mistakes}, {"warning", warnings}} {
		for _, m := range found.in {
			printProblems(stdout, m.File, found.severity, []problem.Problem{{Line: m.Line, Rule: federation.Printable(m.Text)}})
		}
	}
	if len(mistakes) > 0 {
		return newFailuref("%s in the Corefile; mend and check again", status.CountNoun(len(mistakes), "mistake"))
	}
	return nil
}
