package main

import (
	"cmp"
	"encoding/json"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/internal/removed"
	"github.com/hamlet-federation/coredns-federation/internal/setting"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/rules"
)

func explainCommand() *cobra.Command {
	schema := false
	all := config.Schema().Settings("owner.yaml", setting.PropertySettings()...)
	all = config.ImportSchema().Settings("import.yaml", all...)
	all = rules.Schema().Settings("rules.yaml", all...)
	var names []string
	for _, s := range all {
		names = append(names, s.ShortName(all))
	}
	command := &cobra.Command{
		Use:   "explain [KEY]",
		Short: "Say what a property of a Corefile or a key of a file means",
		Long: `explain says what a KEY means, in which unit, what holds without it, and when to touch it.
The end of its path is enough. Without a KEY, explain lists all that can stand in a
federation block of a Corefile, and in the files of serve --config (owner.yaml), of import
(import.yaml) and of the rules that a registration names (rules.yaml).`,
		Example: `  federationctl explain retention
  federationctl explain kubernetes.lifetime

  # Have an editor complete and check owner.yaml: begin the file with the line
  # "# yaml-language-server: $schema=owner.schema.json".
  federationctl explain --schema >owner.schema.json`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(command *cobra.Command, args []string) error {
			out := command.OutOrStdout()
			width := lineWidth(out)
			var lines []string
			switch {
			case schema:
				of := config.Schema()
				of.Draft = "http://json-schema.org/draft-07/schema#"
				encoder := json.NewEncoder(out)
				encoder.SetIndent("", "  ")
				return failureOf(encoder.Encode(of))
			case len(args) == 0:
				var rows [][]string
				for i, s := range all {
					rows = append(rows, []string{s.In, names[i], s.Doc})
				}
				lines = printable.FormatTable([]string{"IN", "KEY", "MEANING"}, rows, width)
			default:
				for i, s := range setting.Find(all, args[0]) {
					lines = append(append(lines, make([]string, min(i, 1))...), describeSetting(s, width)...) // an empty one between two
				}
			}
			if len(lines) == 0 {
				return newFailuref("there is no %q%s", args[0], cmp.Or(removed.Keys.RemedyAt(args[0]), removed.Properties.RemedyFor(args[0]), didYouMean(args[0], names)))
			}
			_, err := io.WriteString(out, strings.Join(lines, "\n")+"\n")
			return failureOf(err)
		},
	}
	command.Flags().BoolVar(&schema, "schema", false, "write the JSON schema of an owner's configuration, for editors")
	return command
}

// didYouMean returns how an error goes on about a key that is none of the names.
func didYouMean(key string, names []string) string {
	near := setting.Nearest(key, names)
	if len(near) == 0 {
		return "; 'federationctl explain' lists all that there is"
	}
	return "; did you mean " + strings.Join(near[:min(len(near), 3)], ", ") + "?"
}

// describeSetting returns lines with all that is known of a setting.
func describeSetting(s setting.Setting, width int) []string {
	place := "  " + s.In
	switch {
	case s.Required:
		place += ", required"
	case s.Default != "":
		place += ", default " + s.Default
	}
	lines := []string{strings.TrimSpace(strings.Join(s.Paths, "\n") + " " + s.Takes), place, printable.WrapText("  "+s.Doc, width, "  ")}
	if len(s.Keys) > 0 {
		lines = append(lines, printable.WrapText("  keys: "+strings.Join(s.Keys, ", "), width, "  "))
	}
	return lines
}
