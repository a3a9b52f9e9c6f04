package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/serve"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/serve/metrics"
	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/internal/importer"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
)

func importCommand(ctx context.Context) *cobra.Command {
	dryRun, logFormat := false, ""
	command := &cobra.Command{
		Use:   "import FILE",
		Short: "Make Services in a Kubernetes cluster of what owners publish",
		Long: `import follows the owners that a configuration file names (docs/import.md), and makes
Services of their services in a cluster, or ServiceImports of the Multi-Cluster Services
API. Of several replicas one writes. The objects stay when import ends. A change of the
file takes a restart.`,
		Example: `  federationctl import import.yaml

  # Look at the objects first.
  federationctl import --dry-run import.yaml`,
		Args:              argsBetween("one FILE", 1, 1),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		RunE: func(command *cobra.Command, args []string) error {
			logger := slog.New(logHandler(command.ErrOrStderr(), logFormat))
			logAll(ctx, logger)
			return importServices(ctx, args[0], dryRun, command.OutOrStdout(), logger)
		},
	}
	command.Flags().BoolVar(&dryRun, "dry-run", false, "print the objects as YAML, and write none")
	logFormatFlag(command, &logFormat)
	return command
}

// importServices imports as a file says until ctx ends.
func importServices(ctx context.Context, name string, dryRun bool, stdout io.Writer, logger *slog.Logger) error {
	c, err := readImport(name)
	if err != nil {
		return configFailure(name, err)
	}
	i, err := importer.New(ctx, importer.Config{
		Owners: c.Owners, Identity: c.Identity, Target: c.Kubernetes, Persist: c.Persist, DryRun: dryRun, Version: buildVersion(), Logger: logger,
	})
	if e, ok := errors.AsType[importer.Error](err); ok {
		err = serve.Error{Key: e.Key, Err: e}
	}
	switch {
	case err != nil:
		return configFailure(name, err)
	case dryRun:
		return failureOf(i.DryRun(ctx, stdout))
	}
	d := daemonProcess{
		logger: logger, stdout: stdout, source: i, metrics: metrics.Handler(i.Status, metrics.NewImportCollector(i.Status)),
		farewell: "the importer stops; the objects stay",
	}
	if err := d.listen(ctx, c.ProcessConfig); err != nil {
		return configFailure(name, err)
	}
	return d.run(ctx, func() error {
		d.announce(fmt.Sprintf("importing %s into %s", name, i.Status().Imports.Cluster))
		return i.Run(ctx)
	})
}

// readImport returns what the configuration file of an importer says.
func readImport(name string) (config.ImportConfig, error) {
	data, _, err := file.Read(name, config.MaxBytes)
	if err != nil {
		return config.ImportConfig{}, err
	}
	c, problems, _ := config.CheckImport(data)
	if len(problems) > 0 {
		return c, fmt.Errorf("configuration file %s: %s", name, strings.Join(problem.FormatLines(problems), "; ")) // so that the author has all of them before the next attempt
	}
	c.ResolvePaths(filepath.Dir(name))
	return c, nil
}

// configFailure returns why a process with a configuration file cannot start, and what to change in it.
func configFailure(name string, err error) error {
	e, ok := errors.AsType[serve.Error](err)
	_, pathError := errors.AsType[*fs.PathError](err)
	switch {
	case ok && e.Key != "":
		return newFailuref("%w; see %s in %s", err, e.Key, name)
	case pathError, errors.Is(err, file.ErrNotRegular), errors.Is(err, file.ErrTooLarge):
		return failureOf(err)
	}
	return newFailuref("%w; 'federationctl check %s' shows each mistake in a line", err, name)
}
