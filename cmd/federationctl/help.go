package main

import (
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
)

// helpWidth is how many columns the help has.
const helpWidth = 80

// shapeHelp gives a command and those below it help of one shape, with the examples first.
func shapeHelp(root *cobra.Command) {
	nameValues(root)
	root.SetHelpFunc(func(command *cobra.Command, _ []string) {
		_, _ = io.WriteString(command.OutOrStdout(), helpOf(command))
	})
}

// quotedValue matches the name of a value in the usage of a flag.
var quotedValue = regexp.MustCompile("`[^`]+`")

// nameValues has the values of flags named in capitals.
func nameValues(command *cobra.Command) {
	command.Flags().VisitAll(func(flag *pflag.Flag) {
		flag.Usage = quotedValue.ReplaceAllStringFunc(flag.Usage, strings.ToUpper)
	})
	for _, child := range command.Commands() {
		nameValues(child)
	}
}

// helpOf returns the help of a command.
func helpOf(command *cobra.Command) string {
	var text strings.Builder
	section := func(title, body string) {
		if body = strings.Trim(body, "\n"); body != "" {
			fmt.Fprintf(&text, "\n%s\n%s\n", title, body)
		}
	}
	text.WriteString(command.Short + ".\n")
	section("Examples:", command.Example)
	section("Usage:", usageOf(command))
	if long := paragraphs(command.Long); long != "" {
		text.WriteString("\n" + long + "\n")
	}
	var commands strings.Builder
	for _, child := range command.Commands() {
		if child.IsAvailableCommand() {
			fmt.Fprintf(&commands, "%s\n", wrap(fmt.Sprintf("%-*s %s", child.NamePadding(), child.Name(), child.Short), "  ", strings.Repeat(" ", child.NamePadding()+3)))
		}
	}
	section("Commands:", commands.String())
	section("Flags:", flagsOf(command))
	return text.String()
}

// usageOf returns the lines by which a command is called.
func usageOf(command *cobra.Command) string {
	usage := command.UseLine()
	if command.HasAvailableSubCommands() {
		usage = command.CommandPath() + " COMMAND"
		if command.Args != nil && command.Runnable() && command.HasParent() && strings.Contains(command.Use, " ") {
			usage = command.UseLine() + "\n" + usage
		}
	}
	var lines []string
	for line := range strings.SplitSeq(usage, "\n") {
		lines = append(lines, wrap(line, "  ", "      "))
	}
	return strings.Join(lines, "\n")
}

// mostPadded is how many columns the names of flags have. Those of a longer one have a line of
// their own.
const mostPadded = 22

// flagsOf returns the flags of a command, each with its value and what it is for.
func flagsOf(command *cobra.Command) string {
	var lines []string
	command.LocalFlags().VisitAll(func(flag *pflag.Flag) {
		name, usage := flagHelp(flag)
		rest := strings.Repeat(" ", mostPadded+3)
		if len(name) > mostPadded {
			lines = append(lines, "  "+name, wrap(usage, rest, rest))
			return
		}
		lines = append(lines, wrap(fmt.Sprintf("%-*s %s", mostPadded, name, usage), "  ", rest))
	})
	return strings.Join(lines, "\n")
}

// flagHelp returns the name of a flag with its value, and what it is for.
func flagHelp(flag *pflag.Flag) (name, usage string) {
	value, usage := pflag.UnquoteUsage(flag)
	name = strings.TrimSpace("--" + flag.Name + " " + value)
	if flag.Shorthand != "" {
		name = "-" + flag.Shorthand + ", " + name
	}
	switch flag.DefValue {
	case "", "false", "0", "0s", "[]":
	default:
		usage += " (default " + flag.DefValue + ")"
	}
	return name, usage
}

// paragraphs wraps the paragraphs of a text. Indented lines stay as they are.
func paragraphs(text string) string {
	var lines []string
	var words []string // of the paragraph
	flush := func() {
		if len(words) > 0 {
			lines = append(lines, wrap(strings.Join(words, " "), "", ""))
		}
		words = nil
	}
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		if line == "" || line[0] == ' ' || line[0] == '\t' {
			flush()
			lines = append(lines, strings.ReplaceAll(line, "\t", "    "))
			continue
		}
		words = append(words, line)
	}
	flush()
	return strings.Join(lines, "\n")
}

// wrap breaks a line at spaces, and begins the lines with the indentations: that of the first
// one and that of the others. Spaces between columns stay.
func wrap(line, first, others string) string {
	return printable.Fill(strings.Split(strings.TrimSpace(line), " "), helpWidth, first, others)
}
