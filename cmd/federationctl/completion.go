package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// shells has the shells that completion can write a script for.
var shells = []string{"bash", "zsh", "fish", "powershell"}

func completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion " + strings.Join(shells, "|"),
		Short: "Let the shell complete commands, flags and files",
		Long: `completion writes a script for a shell, which then completes what you type:
commands, flags, their values, and files of the right kind. The examples show
where each shell looks for the script.

bash needs the package bash-completion; zsh needs 'autoload -U compinit; compinit'
in ~/.zshrc.`,
		Example: `  # In this shell only.
  source <(federationctl completion bash)

  # In every shell from now on.
  federationctl completion bash >~/.local/share/bash-completion/completions/federationctl
  federationctl completion zsh >~/.zfunc/_federationctl
  federationctl completion fish >~/.config/fish/completions/federationctl.fish
  federationctl completion powershell >>~/.config/powershell/profile.ps1`,
		Args:              one("shell: " + strings.Join(shells, ", ")),
		ValidArgsFunction: cobra.FixedCompletions(shells, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(command *cobra.Command, args []string) error {
			return writeCompletion(command.Root(), args[0], command.OutOrStdout())
		},
	}
}

// writeCompletion writes the script for a shell.
func writeCompletion(root *cobra.Command, shell string, stdout io.Writer) error {
	var err error
	switch shell {
	case "bash":
		err = root.GenBashCompletionV2(stdout, true)
	case "zsh":
		err = root.GenZshCompletion(stdout)
	case "fish":
		err = root.GenFishCompletion(stdout, true)
	case "powershell":
		err = root.GenPowerShellCompletionWithDesc(stdout)
	default:
		return fmt.Errorf("there is no completion for %q, only for %s", shell, strings.Join(shells, ", "))
	}
	if err != nil {
		return failure{err}
	}
	return nil
}

// extensions has the extensions of the files that a flag takes, by the words with
// which its usage begins.
var extensions = map[string][]string{
	"PEM":          {"pem", "crt", "cer", "key"},
	"YAML or JSON": catalogExtensions,
}

// catalogExtensions has the extensions of catalog files.
var catalogExtensions = []string{"yaml", "yml", "json", "jsonl"}

// completeFlags sets how a shell completes the flags of the command and of those
// below it: with files of the right kind where a flag takes a file, and with nothing
// otherwise. It leaves flags alone that have a completion of their own.
func completeFlags(command *cobra.Command) {
	command.Flags().VisitAll(func(flag *pflag.Flag) {
		value, usage := pflag.UnquoteUsage(flag)
		complete := cobra.NoFileCompletions
		if value == "file" {
			complete = cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault)
			for words, names := range extensions {
				if strings.HasPrefix(usage, words) {
					complete = cobra.FixedCompletions(names, cobra.ShellCompDirectiveFilterFileExt)
				}
			}
		}
		if _, own := command.GetFlagCompletionFunc(flag.Name); !own && flag.Value.Type() != "bool" {
			insist(command.RegisterFlagCompletionFunc(flag.Name, complete))
		}
	})
	for _, child := range command.Commands() {
		completeFlags(child)
	}
}

// completeValues sets the values with which a shell completes a flag.
func completeValues(command *cobra.Command, flag string, values []string) {
	insist(command.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
}

// checkOutput returns why a format is none of those of the flag -o, or nil.
func checkOutput(format string, formats ...string) error {
	if !slices.Contains(formats, format) {
		return fmt.Errorf("-o: %q is neither %s", format, strings.Join(formats, " nor "))
	}
	return nil
}
