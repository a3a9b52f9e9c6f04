package config_test

import (
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
)

// A registry of NSM has an address, and is asked without TLS on this machine only.
func TestRegistryOfNSM(t *testing.T) {
	const form, secured = "is not the address of a registry", "is for a registry on this machine only"
	for registry, want := range map[string]string{
		"tcp://127.0.0.1:5002":           "",
		"tcp://localhost:5002":           "",
		"tcp://[::1]:5002":               "",
		"unix:///run/nsm.sock":           "",
		"tcp://registry.nsm-system:5002": secured,
		"tcp://192.0.2.1:5002":           secured,
		"tcp://localhost.example:5002":   secured,
		"registry:5002":                  form,
		"https://127.0.0.1:5002":         form,
		"tcp://127.0.0.1":                form,
		"tcp://:5002":                    form,
		"tcp://127.0.0.1:5002/path":      form,
		"unix://run/nsm.sock":            form,
		"unix://":                        form,
		"tcp://user@127.0.0.1:5002":      form,
		"tcp://127.0.0.1:x":              form,
	} {
		_, problems := config.Parse([]byte(least + "  - nsm: {registry: \"" + registry + "\", zone: a.example, tls: none}\n"))
		got := strings.Join(problem.FormatLines(problems), "\n")
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: the problems are %q, want %q", registry, got, want)
		}
	}
}
