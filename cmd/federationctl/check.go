package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/source/file/catalogfile"
	"github.com/hamlet-federation/coredns-federation/plugin/corefile"
)

func checkCommand(ctx context.Context) *cobra.Command {
	checker := fileChecker{limit: catalogfile.DefaultLimit}
	command := &cobra.Command{
		Use:   "check FILE...",
		Short: "Find all mistakes in a Corefile, a configuration, a catalog file or rules",
		Long: `check reads files, starts nothing, and prints each mistake with its file, line and key, up
to a hundred of each file. It recognizes by the content of a file what the file is. With
the configuration of an owner it checks the catalog files, rules and certificates that are
named there. It knows no other plugin of CoreDNS, and asks no cluster, store or agent.

A warning is for what is allowed and probably not meant. FILE - is standard input. The
exit code is 0 without mistakes, also with warnings, 1 with some, and 2 when the output
cannot be written.`,
		Example: `  federationctl check Corefile
  federationctl check catalogs/*.json

  # The configuration of an owner, with the catalog files and rules it names.
  federationctl check owner.yaml

  # Check an edit before it is used.
  federationctl check Corefile.new && mv Corefile.new Corefile`,
		Args: func(_ *cobra.Command, files []string) error {
			if len(files) == 0 {
				return errors.New("name the FILE to check, or several")
			}
			return nil
		},
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		RunE: func(command *cobra.Command, files []string) error {
			done := make(chan error, 1)
			// When ctx ends the goroutine is left to the end of the process: a read of
			// standard input cannot be interrupted.
			go func() {
				out := bufio.NewWriter(command.OutOrStdout())
				checker.stdin, checker.stdout = command.InOrStdin(), out
				err := checker.checkFiles(files)
				if failure := out.Flush(); err == nil && failure != nil { // a yes is one only if all of it could be written
					err = noAnswer(failure)
				}
				done <- err
			}()
			select {
			case err := <-done:
				return err
			case <-ctx.Done():
				return newFailuref("interrupted")
			}
		},
	}
	rangesFlag(command, &checker.policy.AllowAddresses)
	maxCatalogFlag(command, &checker.limit)
	command.Flags().BoolVar(&checker.elsewhere, "elsewhere", false, "do not look at certificates, keys and CA files: they are on another machine")
	return command
}

// usableFiles returns why files cannot be used, or nil.
func usableFiles(files mtls.Files) error {
	_, err := mtls.Load(files, nil)
	return err
}

// checkCorefile checks the content of a Corefile.
func (l *fileChecker) checkCorefile(file string, data []byte) {
	usable := usableFiles
	if l.elsewhere {
		usable = nil
	}
	mistakes, warnings := corefile.Check(file, bytes.NewReader(data), usable)
	for _, found := range []struct {
		severity string
		in       []*corefile.MistakeError
	}{{"error", mistakes}, {"warning", warnings}} {
		for _, m := range found.in {
			printProblems(l.stdout, m.File, found.severity, []problem.Problem{{Line: m.Line, Rule: safetext.Printable(m.Text)}})
		}
	}
	if l.problems += len(mistakes); len(mistakes) == 0 {
		fmt.Fprintf(l.stdout, "%s: a Corefile without mistakes\n", file)
	}
}
