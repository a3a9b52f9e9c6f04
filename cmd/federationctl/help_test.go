package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// commandsBelow returns a command and those below it.
func commandsBelow(root *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{root}
	for i := 0; i < len(all); i++ {
		all = append(all, all[i].Commands()...)
	}
	return all
}

// TestHelp holds the rules of the help of every command: two examples, which stand before all
// else and not again, and values of flags that are named, and not by the type of a library.
func TestHelp(t *testing.T) {
	root := rootCommand(t.Context())
	for _, command := range commandsBelow(root) {
		t.Run(command.CommandPath(), func(t *testing.T) {
			code, text, stderr := ctl(t, strings.Fields(command.CommandPath() + " --help")[1:]...)
			if code != 0 || stderr != "" {
				t.Fatalf("exit code %d, standard error %q", code, stderr)
			}
			if found := commandLines(command.Example); len(found) < 2 {
				t.Errorf("there are %d examples, and two show more than one", len(found))
			}
			lines := strings.Split(text, "\n")
			if lines[2] != "Examples:" || strings.Count(text, "Examples:") != 1 || !strings.Contains(text, "\nUsage:\n") {
				t.Errorf("the help does not begin with examples, or has them twice, or no usage:\n%s", text)
			}
			command.Flags().VisitAll(func(flag *pflag.Flag) {
				if value, _ := pflag.UnquoteUsage(flag); value != "" && !strings.Contains(flag.Usage, "`") {
					t.Errorf("--%s has the value %q of a library: name it in its usage", flag.Name, value)
				}
			})
		})
	}
}
