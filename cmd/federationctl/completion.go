package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// shells are those that scripts can be made for.
var shells = []string{"bash", "zsh", "fish", "powershell"}

func completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion " + strings.Join(shells, "|"),
		Short: "Let the shell complete commands, flags and files",
		Long: `completion writes a script that lets a shell complete what you type: commands,
flags, their values, and files of the right kind. The examples show where each
shell looks for it.

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

// extensions are those of the files that a flag takes, by the word or two that
// its usage begins with.
var extensions = map[string][]string{
	"PEM":          {"pem", "crt", "cer", "key"},
	"YAML or JSON": catalogExtensions,
}

var catalogExtensions = []string{"yaml", "yml", "json"}

// completeFlags tells the shell which flags of the command and of those below it
// take files, and of what kind. All others take none, unless they have a
// completion of their own.
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
			must(command.RegisterFlagCompletionFunc(flag.Name, complete))
		}
	})
	for _, child := range command.Commands() {
		completeFlags(child)
	}
}

// completeValues gives a flag its values.
func completeValues(command *cobra.Command, flag string, values []string) {
	must(command.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
}
