package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/board"
	"github.com/hamlet-federation/coredns-federation/federation/ownerfile"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

func lintCommand() *cobra.Command {
	var ranges []string
	command := &cobra.Command{
		Use:   "lint FILE...",
		Short: "Check catalog files",
		Long: `lint checks catalog files as 'federationctl serve' does before it publishes
them, and as consumers do when they get them. It tells every problem with its
file, line, service and field, and warns of what is allowed and probably not
meant: two services with one fqdn, an endpoint that no instance selects, an
instance that will have no DNS name of its own. Warnings alone are no failure.

A FILE of - is standard input.`,
		Example: `  federationctl lint catalog.yaml
  federationctl lint catalogs/*.json

  # Before it is written where an owner reads it.
  cat catalog.yaml | federationctl lint - && cp catalog.yaml published.yaml`,
		Args: func(_ *cobra.Command, files []string) error {
			if len(files) == 0 {
				return errors.New("name the catalog FILE to check, or several")
			}
			return nil
		},
		RunE: func(command *cobra.Command, files []string) error {
			policy, err := parsePolicy(ranges)
			if err != nil {
				return err
			}
			return lint(files, policy, command.InOrStdin(), command.OutOrStdout())
		},
		ValidArgsFunction: cobra.FixedCompletions(catalogExtensions, cobra.ShellCompDirectiveFilterFileExt),
	}
	rangesFlag(command, &ranges)
	return command
}

func lint(files []string, policy wire.Policy, stdin io.Reader, stdout io.Writer) error {
	problems := 0
	for _, file := range files {
		var data []byte
		var err error
		if file == "-" {
			file = "<stdin>"
			data, err = io.ReadAll(stdin)
		} else {
			data, err = os.ReadFile(file)
		}
		if err != nil {
			problems++
			fmt.Fprintf(stdout, "%s: error: %v\n", file, err)
			continue
		}
		catalog := ownerfile.ParseCatalog(data, policy)
		problems += len(catalog.Problems)
		show(stdout, file, "error", catalog.Problems)
		show(stdout, file, "warning", catalog.Warnings)
		if len(catalog.Problems) == 0 {
			fmt.Fprintf(stdout, "%s: %s, fit to be published\n", file, board.Count(len(catalog.Services), "service"))
		}
	}
	if problems > 0 {
		return failed("problems found: %d; mend them and check again", problems)
	}
	return nil
}

func show(stdout io.Writer, file, severity string, problems []ownerfile.Problem) {
	for _, p := range problems {
		place := file
		if p.Line > 0 {
			place = fmt.Sprintf("%s:%d", file, p.Line)
		}
		fmt.Fprintf(stdout, "%s: %s: %s\n", place, severity, p)
	}
}
