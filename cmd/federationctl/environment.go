package main

import (
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// environment returns the variables that stand for flags that are not given, by the names of
// these flags.
func environment() map[string]string {
	return map[string]string{"at": "FEDERATION_AT", "cert": "FEDERATION_CERT", "key": "FEDERATION_KEY", "ca": "FEDERATION_CA"}
}

// readEnvironment has a command and those below it take flags from the environment, and say
// so in their help.
func readEnvironment(command *cobra.Command) {
	for name, variable := range environment() {
		if flag := command.Flags().Lookup(name); flag != nil {
			flag.Usage += " [$" + variable + "]"
		}
	}
	command.PersistentPreRunE = func(command *cobra.Command, _ []string) error { return setFromEnvironment(command.Flags()) }
	for _, child := range command.Commands() {
		readEnvironment(child)
	}
}

// setFromEnvironment sets the flags that are not given and that a variable stands for. Files
// give way to the flags that say something else in their place.
func setFromEnvironment(flags *pflag.FlagSet) error {
	for name, variable := range environment() {
		flag, text := flags.Lookup(name), os.Getenv(variable)
		if flag == nil || flag.Changed || text == "" || name != "at" && (flags.Changed("spiffe") || flags.Changed("config")) {
			continue
		}
		if err := flags.Set(name, text); err != nil {
			return fmt.Errorf("$%s: %w", variable, err)
		}
		if err := flags.SetAnnotation(name, fromEnvironment, []string{variable}); err != nil {
			return fmt.Errorf("$%s: %w", variable, err)
		}
	}
	return nil
}

// fromEnvironment annotates a flag that a variable has set.
const fromEnvironment = "federation_environment"

// given reports whether one of these flags is on the command line, and not only in the
// environment.
func given(flags *pflag.FlagSet, names ...string) bool {
	for _, name := range names {
		if flag := flags.Lookup(name); flag != nil && flag.Changed && flag.Annotations[fromEnvironment] == nil {
			return true
		}
	}
	return false
}

// ownerPort is where an owner listens if nothing else is said.
const ownerPort = "8008"

// ownerAddress returns host:port of an owner, whose port may be missing in text. It returns
// false where text is neither a host nor host:port.
func ownerAddress(text string) (string, bool) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host, port = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"), ownerPort
		if strings.Contains(host, ":") && net.ParseIP(host) == nil {
			return "", false
		}
	}
	if host == "" || port == "" || strings.ContainsAny(host, "/ ") {
		return "", false
	}
	return net.JoinHostPort(host, port), true
}
