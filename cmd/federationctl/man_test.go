package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// packed is what the packages have in /usr/share, and manPages their manual pages of the commands.
const (
	packed   = "../../deploy/package/files/share/federationctl"
	manPages = packed + "/man/man1"
)

// TestManPages compares the manual page of each command with the file that is packed. The pages
// are made here and not by cobra/doc, which takes a text for Markdown: patterns such as *.ZONE
// would lose their asterisks.
func TestManPages(t *testing.T) {
	root := rootCommand(t.Context())
	root.InitDefaultCompletionCmd()
	var want []string
	for _, command := range commandsBelow(root) {
		if command.HasParent() && command.Parent().Name() == "completion" {
			continue // the library's, of the shells of others
		}
		name := strings.ReplaceAll(command.CommandPath(), " ", "-") + ".1"
		want = append(want, name)
		golden(t, filepath.Join(manPages, name), manPage(command))
	}
	slices.Sort(want)
	var got []string
	for _, entry := range must.Get(os.ReadDir(manPages))(t) {
		got = append(got, entry.Name())
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s has the pages %q, want %q", manPages, got, want)
	}
}

// TestManPagesFormat has man read each page, and the server's, without a warning.
func TestManPagesFormat(t *testing.T) {
	if _, err := exec.LookPath("man"); err != nil {
		t.Skip(err)
	}
	pages := must.Get(filepath.Glob("../../deploy/package/files/share/*/man/man1/*.1"))(t)
	for _, page := range pages {
		command := exec.CommandContext(t.Context(), "man", "--warnings", "-E", "UTF-8", "-l", page)
		var stdout, stderr strings.Builder
		command.Stdout, command.Stderr = &stdout, &stderr
		if err := command.Run(); err != nil || stderr.Len() > 0 || !strings.Contains(stdout.String(), "\nEXAMPLES\n") {
			t.Errorf("%s: %v, with the warnings %q:\n%s", page, err, stderr.String(), stdout.String())
		}
	}
	if len(pages) == 0 {
		t.Error("there is no page")
	}
}

// manPage returns the manual page of a command, as man(7) wants it.
func manPage(command *cobra.Command) string {
	var page strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&page, format+"\n", args...) }
	name := strings.ReplaceAll(command.CommandPath(), " ", "-")
	line(`.\" Made by go test ./cmd/federationctl -run TestManPages -update-help`)
	line(`.TH %s 1 "" federationctl "User Commands"`, roff(strings.ToUpper(name)))
	line(".SH NAME\n%s \\- %s", roff(name), roff(command.Short))
	line(".SH SYNOPSIS\n.nf\n%s\n.fi", roff(usageOf(command)))
	line(".SH DESCRIPTION\n%s", roffText(command.Long))
	below := slices.DeleteFunc(slices.Clone(command.Commands()), func(c *cobra.Command) bool { return !c.IsAvailableCommand() })
	if len(below) > 0 {
		line(".SH COMMANDS")
	}
	for _, child := range below {
		line(".TP\n.B %s\n%s", roff(child.Name()), roff(child.Short))
	}
	line(".SH OPTIONS")
	command.LocalFlags().VisitAll(func(flag *pflag.Flag) {
		name, usage := flagHelp(flag)
		line(".TP\n.B %s\n%s", roff(name), roff(usage))
	})
	line(".SH EXAMPLES\n.nf\n%s\n.fi", roff(command.Example))
	var also []string
	if command.HasParent() {
		below = append(below, command.Parent())
	}
	for _, other := range below {
		if other.Parent() == nil || other.Parent().Name() != "completion" {
			also = append(also, fmt.Sprintf(".BR %s (1)", roff(strings.ReplaceAll(other.CommandPath(), " ", "-"))))
		}
	}
	line(".SH SEE ALSO\n%s", strings.Join(also, " ,\n"))
	return page.String()
}

// roffText returns paragraphs of a help: of them, indented lines stay as they are.
func roffText(text string) string {
	var lines []string
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		switch {
		case line == "":
			lines = append(lines, ".PP")
		case line[0] == ' ' || line[0] == '\t':
			lines = append(lines, ".EX", roff(line), ".EE")
		default:
			lines = append(lines, roff(line))
		}
	}
	return strings.ReplaceAll(strings.Join(lines, "\n"), ".EE\n.EX\n", "")
}

// roff returns a text of which nothing is a command of roff.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
