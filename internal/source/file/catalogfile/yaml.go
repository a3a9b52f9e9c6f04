package catalogfile

import (
	"bytes"
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/source/file/internal/catalogentry"
)

// errTooLarge is the error for a catalog in YAML that is larger than allowed.
var errTooLarge = unreadableError{Rule: fmt.Sprintf("a catalog in YAML may have %d bytes; write a larger one as JSON lines, for example with yq", MaxYAML)}

// readYAML reads a catalog in YAML, which becomes one tree.
func (p *versionReader) readYAML(data []byte) error {
	if len(data) > MaxYAML {
		if bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
			return unreadableError(brokenJSON(data))
		}
		return errTooLarge
	}
	root, wrong := problem.ReadRoot(data, len(data), "a catalog is")
	if wrong.Rule == problem.Empty {
		// An editor that is about to write leaves an empty file for a moment.
		wrong.Rule += "; an empty catalog is 'services: []'"
	}
	if root == nil {
		return unreadableError(wrong)
	}
	services, err := servicesOf(root)
	if err != nil {
		return err
	}
	for _, node := range services.Content {
		if done, err := p.mustStop(); done {
			return err
		}
		p.addService(catalogentry.FromYAML(node))
	}
	return nil
}

// servicesOf returns the list of services of a catalog.
func servicesOf(root *yaml.Node) (*yaml.Node, error) {
	if root.Kind != yaml.MappingNode {
		return nil, unreadableError{Line: root.Line, Rule: expectServices}
	}
	var services *yaml.Node
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		switch {
		case key.Value != "services":
			return nil, unreadableError{Line: key.Line, Rule: "unknown key " + safetext.Quote(key.Value) + "; " + expectServices}
		case services != nil:
			return nil, unreadableError{Line: key.Line, Rule: "services is there twice"}
		case value.Kind != yaml.SequenceNode:
			return nil, unreadableError{Line: key.Line, Rule: "services must be a list; an empty one is []"}
		}
		services = value
	}
	if services == nil {
		return nil, unreadableError{Line: root.Line, Rule: expectServices}
	}
	return services, nil
}
