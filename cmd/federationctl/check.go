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
		Long: `check reads files, starts nothing, and prints each mistake with its file, line and
key, up to a hundred of each file. It recognizes by the content of a file what the file is:

A Corefile is named Corefile or Corefile.something, or begins with a server block. check
reads it as CoreDNS does, with the files that it imports, and goes on where CoreDNS stops
at the first server block with a mistake. It checks the shape of the file and its
federation blocks. It knows no other plugin, and does not see which addresses are in
use, or whether blocks of several server blocks agree on an owner.

The configuration of an owner has keys such as catalogs or identity at the top. check
reads it as 'federationctl serve --config' does, and then the catalog files and the rules
that the configuration names, with its allow_addresses and max_size, if it can read them.
It does not look at the allow file, clusters and stores.

The configuration of an importer has owners or kubernetes at the top. check reads it as
'federationctl import' does.

A catalog file has services at the top. check applies the rules of the owner that
publishes it and those of consumers that get it. An endpoint that is a name of its own
service, or leads back to it through others, is a mistake; 'federationctl serve' publishes
it nevertheless, because a consumer may rename the service. YAML may have 16 MiB.

A file with rules at the top has the rules of a registration.

Certificates, keys and CA files that cannot be used are mistakes. CoreDNS and owners
start with them, but nobody is connected until they are replaced.

A warning is for what is allowed and probably not meant: for example a zone outside its
server block; two services with one fqdn (more than 64 are a mistake), an endpoint that no
instance selects, an instance that has no DNS name of its own; exports that are empty, an
identity in allow.ids that no rule names, or one that a rule names and that may not
subscribe; a registration with an etcd elsewhere without TLS; a relay or an importer
that knows an owner by an IP address alone, or a relay whose certificate is not valid
for clients.

FILE - is standard input. Any other FILE must be a regular file. The exit code is 0 without
mistakes, also with warnings, 1 with some, and 2 when the output cannot be written.`,
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
