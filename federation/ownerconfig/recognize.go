package ownerconfig

import (
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/federation/problem"
)

// keyLine matches a key of the outermost mapping of a file in YAML.
var keyLine = regexp.MustCompile(`(?m)^["']?(services|` + strings.Join(topKeys, "|") + `)["']?[ \t]*:`)

// Recognize reports whether the content of a file looks like a configuration rather
// than a catalog: its outermost mapping has a key of a configuration, and no services.
// It may be broken.
func Recognize(data []byte) bool {
	if len(data) > MaxBytes {
		return false
	}
	var keys []string
	if root, wrong := parse(data); wrong == (problem.Problem{}) {
		for i := 0; root.Kind == yaml.MappingNode && i < len(root.Content); i += 2 {
			keys = append(keys, root.Content[i].Value)
		}
	} else {
		for _, match := range keyLine.FindAllSubmatch(data, -1) {
			keys = append(keys, string(match[1]))
		}
	}
	return !slices.Contains(keys, "services") &&
		slices.ContainsFunc(keys, func(key string) bool { return slices.Contains(topKeys, key) })
}
