package main

import (
	"github.com/spf13/cobra"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/inspect"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/watch/tty"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/source/file/catalogfile"
)

func convertCommand() *cobra.Command {
	format, limit := "jsonl", int64(catalogfile.DefaultLimit)
	command := &cobra.Command{
		Use:   "convert FILE",
		Short: "Convert a catalog file into JSON lines, YAML or JSON",
		Long:  `convert writes a catalog as jsonl (JSON, one service a line), yaml or json, sorted by name and without comments.`,
		Example: `  federationctl convert catalog.yaml >catalog.jsonl

  # YAML to edit by hand.
  federationctl convert catalog.yaml -o yaml >edited.yaml`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, files []string) error {
			return showing(command, func(p *tty.Progress) error {
				p.Sayf("converting %s", federation.Printable(files[0]))
				catalog, err := inspect.ReadCatalog(files[0], limit)
				if err != nil {
					return failure(err)
				}
				return failure(catalog.Dump(command.OutOrStdout(), format))
			})
		},
		ValidArgsFunction: cobra.FixedCompletions(catalogExtensions, cobra.ShellCompDirectiveFilterFileExt),
	}
	fileFlag(command, &format)
	maxCatalogFlag(command, &limit)
	return command
}
