package config

import (
	"regexp"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/internal/problem"
)

// The forms that the content of a file can have.
const (
	FormCatalog       = "catalog"       // of services
	FormConfiguration = "configuration" // of an owner
	FormImport        = "import"        // the configuration of an importer
	FormRules         = "rules"         // of a registration
)

// keyLine matches a key of the outermost mapping of a file in YAML.
var keyLine = regexp.MustCompile(`(?m)^["']?([a-z_]+)["']?[ \t]*:`)

// RecognizeForm returns the form that the content of a file looks most like, by the keys of
// its outermost mapping: a catalog has services, and where there are none, the configuration of an
// importer has owners or kubernetes, that of an owner another key of it, and rules have rules. Everything
// else counts as a catalog. The content may be broken.
func RecognizeForm(data []byte) (form string) {
	if len(data) > MaxBytes {
		return FormCatalog
	}
	var keys []string
	if root, _ := problem.ReadRoot(data, MaxBytes, "a file is"); root != nil {
		for i := 0; root.Kind == yaml.MappingNode && i < len(root.Content); i += 2 {
			keys = append(keys, root.Content[i].Value)
		}
	} else {
		for _, match := range keyLine.FindAllSubmatch(data, -1) {
			keys = append(keys, string(match[1]))
		}
	}
	switch known := Schema().Properties; {
	case slices.Contains(keys, "services"):
	case slices.Contains(keys, "owners"), slices.Contains(keys, "kubernetes"):
		return FormImport
	case slices.ContainsFunc(keys, func(key string) bool { return known[key] != nil }):
		return FormConfiguration
	case slices.Contains(keys, "rules"):
		return FormRules
	}
	return FormCatalog
}
