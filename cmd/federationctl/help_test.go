package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

var updateHelp = flag.Bool("update-help", false, "write the help of all commands to testdata/help, and the manual pages")

// mostHelp is how many lines the help of a command may have.
const mostHelp = 60

// commandsBelow returns a command and those below it.
func commandsBelow(root *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{root}
	for i := 0; i < len(all); i++ {
		all = append(all, all[i].Commands()...)
	}
	return all
}

// golden compares a text with a file below testdata, or writes the file.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *updateHelp {
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o750))
		must.Do(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; go test ./cmd/federationctl -run '^TestHelp|^TestMan' -update-help writes it", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got); -update-help writes it:\n%s", path, diff)
	}
}

// TestHelp compares the help of every command with a file, and holds its rules: two examples
// before all else, 60 lines of 80 columns, and values that are named in capitals and not by
// the type of a library.
func TestHelp(t *testing.T) {
	root := rootCommand(t.Context())
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	for _, command := range commandsBelow(root) {
		t.Run(command.CommandPath(), func(t *testing.T) {
			library := command.Name() == "help" || strings.HasPrefix(command.CommandPath(), "federationctl completion")
			args := strings.Fields(command.CommandPath() + " --help")[1:]
			code, text, stderr := ctl(t, args...)
			if code != 0 || stderr != "" {
				t.Fatalf("exit code %d, standard error %q", code, stderr)
			}
			golden(t, filepath.Join("testdata", "help", strings.ReplaceAll(command.CommandPath(), " ", "-")+".txt"), text)
			lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
			if len(lines) > mostHelp {
				t.Errorf("the help has %d lines, and at most %d are read", len(lines), mostHelp)
			}
			for _, line := range lines {
				if len(line) > helpWidth && !library {
					t.Errorf("%d columns: %s", len(line), line)
				}
			}
			if found := commandLines(command.Example); len(found) < 2 && !library {
				t.Errorf("there are %d examples, and two show more than one", len(found))
			}
			if !library && lines[2] != "Examples:" {
				t.Errorf("the help begins with %q, and not with examples", lines[2])
			}
			command.Flags().VisitAll(func(flag *pflag.Flag) {
				value, _ := pflag.UnquoteUsage(flag)
				switch quoted := strings.Contains(flag.Usage, "`"); {
				case flag.Value.Type() == "bool" && value == "":
				case !quoted:
					t.Errorf("--%s has the value %q of a library: name it in its usage", flag.Name, value)
				case value != strings.ToUpper(value):
					t.Errorf("--%s has the value %q, not in capitals", flag.Name, value)
				}
			})
			for _, name := range []string{"stringArray", "stringSlice", "--ttl long"} {
				if strings.Contains(text, name) {
					t.Errorf("the help has %q", name)
				}
			}
		})
	}
}
