package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/board"
	"github.com/hamlet-federation/coredns-federation/federation/catalogfile"
	"github.com/hamlet-federation/coredns-federation/federation/problem"
	"github.com/hamlet-federation/coredns-federation/federation/regularfile"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

func lintCommand(ctx context.Context) *cobra.Command {
	var ranges []string
	limit := size(catalogfile.DefaultLimit)
	command := &cobra.Command{
		Use:   "lint FILE...",
		Short: "Check catalog files",
		Long: `lint checks catalog files as 'federationctl serve' does before it publishes
them, and as consumers do when they get them. It prints each problem with its
file, line, service and field, up to a hundred of each file.

It also warns of what is allowed, but probably a mistake: two services with one
fqdn, an endpoint that no instance selects, an instance that will have no DNS name
of its own. With warnings alone the exit code is 0.

The FILE - is standard input. Any other FILE must be a regular file.`,
		Example: `  federationctl lint catalog.yaml
  federationctl lint catalogs/*.json

  # Check a catalog before it is copied to where an owner reads it.
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
			done := make(chan error, 1)
			// When ctx ends the goroutine is left to the end of the process: a read of
			// standard input cannot be interrupted.
			go func() { done <- lint(files, policy, int64(limit), command.InOrStdin(), command.OutOrStdout()) }()
			select {
			case err := <-done:
				return err
			case <-ctx.Done():
				return failed("interrupted")
			}
		},
		ValidArgsFunction: cobra.FixedCompletions(catalogExtensions, cobra.ShellCompDirectiveFilterFileExt),
	}
	rangesFlag(command, &ranges)
	maxCatalogFlag(command, &limit)
	return command
}

// lint checks files, and returns an error where one of them has a problem. limit is
// in bytes.
func lint(files []string, policy wire.Policy, limit int64, stdin io.Reader, stdout io.Writer) error {
	problems, more := 0, false
	for _, file := range files {
		data, err := readCatalog(file, limit, stdin)
		if file == "-" {
			file = "<stdin>"
		}
		if err != nil {
			problems++
			fmt.Fprintf(stdout, "%s: error: %v\n", file, err)
			continue
		}
		catalog := catalogfile.Parse(data, policy)
		problems += len(catalog.Problems) + catalog.MoreProblems
		more = more || catalog.MoreProblems > 0
		show(stdout, file, "error", catalog.Problems)
		if catalog.MoreProblems > 0 {
			fmt.Fprintf(stdout, "%s: error: and at least %d more\n", file, catalog.MoreProblems)
		}
		show(stdout, file, "warning", catalog.Warnings)
		if catalog.MoreWarnings > 0 {
			fmt.Fprintf(stdout, "%s: warning: and %d more\n", file, catalog.MoreWarnings)
		}
		if len(catalog.Problems) == 0 {
			fmt.Fprintf(stdout, "%s: %s, fit to be published\n", file, board.Count(len(catalog.Services), "service"))
		}
	}
	switch {
	case more:
		return failed("problems found: at least %d; fix them and check again", problems)
	case problems > 0:
		return failed("problems found: %d; fix them and check again", problems)
	}
	return nil
}

// readCatalog returns the content of a catalog file, or, for "-", of standard input.
// More than limit bytes are an error.
func readCatalog(file string, limit int64, stdin io.Reader) ([]byte, error) {
	if file != "-" {
		data, _, err := regularfile.Read(file, limit)
		switch {
		case errors.Is(err, regularfile.ErrTooLarge):
			return nil, fmt.Errorf("%w; --max-catalog raises it", err)
		case errors.Is(err, regularfile.ErrNotRegular):
			return nil, fmt.Errorf("%w; 'federationctl lint -' reads standard input", err)
		}
		return data, err
	}
	data, err := io.ReadAll(io.LimitReader(stdin, limit+1))
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("there are more than %d bytes; --max-catalog raises the limit", limit)
	}
	return data, err
}

// show prints problems, one a line.
func show(stdout io.Writer, file, severity string, problems []problem.Problem) {
	for _, p := range problems {
		place := file
		if p.Line > 0 {
			place = fmt.Sprintf("%s:%d", file, p.Line)
		}
		fmt.Fprintf(stdout, "%s: %s: %s\n", place, severity, p)
	}
}
