package catalogfile

import (
	"bytes"
	"errors"
	"io"

	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/source/file/internal/catalogentry"
	"github.com/hamlet-federation/coredns-federation/federation/source/file/internal/simpleyaml"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
)

// errNotPlain says that a file, which may still be a catalog, is not in the plain form.
var errNotPlain = errors.New("the catalog is not in the plain form")

// maxRun is how many bytes of services are decoded together: to make a decoder costs
// as much as to decode a small service.
const maxRun = 32 << 10

// plain reads a catalog in the plain form, service by service. It fails with
// errNotPlain if the services read one by one may differ from those of the whole
// document.
func (p *reading) plain(text *plainText) error {
	var run run
	for {
		item, ok, err := text.next()
		if err != nil {
			return err
		}
		if !ok {
			p.hint = problem.Problem{Line: item.line, Rule: "the end of a document stands in it"}
			return errNotPlain
		}
		if item.size == 0 {
			return p.decodeRun(&run)
		}
		if done, err := p.done(); done {
			return err
		}
		item.key = p.digests.of(item.text)
		known, found := p.find(item.key)
		var service *federation.Service
		if !found {
			service = p.usual(text, item)
		}
		// A service with an anchor is decoded alone. If it were decoded with the services
		// after it, whether their aliases of it are valid would depend on which of them
		// are remembered.
		single := found || service != nil || item.size > maxRun || bytes.IndexByte(item.text, '&') >= 0
		if single || len(run.text) > maxRun {
			if err := p.decodeRun(&run); err != nil {
				return err
			}
		}
		switch {
		case found && p.recall(known, item.line), service != nil && p.take(service, item.line, item.key):
		case !single:
			run.add(item)
		default:
			if err := p.decodePiece(item); err != nil {
				return err
			}
		}
	}
}

// usual returns the service in the piece, if it is in the usual form.
func (p *reading) usual(text *plainText, item piece) *federation.Service {
	if item.text == nil {
		return nil
	}
	r, ok := simpleyaml.Item(string(item.text), text.indent)
	if !ok {
		return nil
	}
	return catalogentry.Usual(r, p.policy)
}

// run is services that follow each other.
type run struct {
	text   []byte
	pieces []piece
}

// add adds a piece, whose text is copied.
func (r *run) add(item piece) {
	begin := len(r.text)
	r.text = append(r.text, item.text...)
	item.text = nil
	item.size += begin // where it ends
	r.pieces = append(r.pieces, item)
}

// decodeRun decodes the services of a run, and empties it.
func (p *reading) decodeRun(r *run) error {
	defer func() { r.text, r.pieces = r.text[:0], r.pieces[:0] }()
	if nodes := r.nodes(); nodes != nil {
		x := problem.NewExpander(r.pieces[0].line-1, 0) // there are no aliases
		for i, node := range nodes {
			p.decode(catalogentry.FromYAML(node, x), r.pieces[i].line, &r.pieces[i].key)
		}
		return nil
	}
	begin := 0
	for _, item := range r.pieces {
		item.text = r.text[begin:item.size]
		begin, item.size = item.size, len(item.text)
		if err := p.decodePiece(item); err != nil {
			return err
		}
	}
	return nil
}

// nodes returns the nodes of the services, one for each, or nil if they have to be
// decoded one by one, as one of them is broken.
func (r *run) nodes() []*yaml.Node {
	if len(r.pieces) < 2 {
		return nil
	}
	nodes, err := items(r.text)
	if err != nil || len(nodes) != len(r.pieces) {
		return nil
	}
	for i, node := range nodes {
		line := node.Line + r.pieces[0].line - 1
		if line < r.pieces[i].line || i+1 < len(nodes) && line >= r.pieces[i+1].line {
			return nil
		}
	}
	return nodes
}

// decodePiece decodes a service by itself.
func (p *reading) decodePiece(item piece) error {
	if item.size > maxPiece {
		p.decode(tooLarge(item.line, item.size), item.line, nil)
		return nil
	}
	nodes, err := items(item.text)
	if err == nil && len(nodes) != 1 {
		err = errNotItems
	}
	if err != nil {
		p.hint = problem.SyntaxProblem(err)
		p.hint.Line = max(p.hint.Line, 1) + item.line - 1
		return errNotPlain
	}
	p.decode(catalogentry.FromYAML(nodes[0], problem.NewExpander(item.line-1, len(item.text))), item.line, &item.key)
	return nil
}

var errNotItems = errors.New("did not find a list of services")

// items returns the items of a text that is one YAML sequence.
func items(text []byte) ([]*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document, next yaml.Node
	if err := decoder.Decode(&document); err != nil {
		return nil, err
	}
	if err := decoder.Decode(&next); !errors.Is(err, io.EOF) {
		return nil, errNotItems
	}
	root := document.Content[0]
	if root.Kind != yaml.SequenceNode {
		return nil, errNotItems
	}
	return root.Content, nil
}
