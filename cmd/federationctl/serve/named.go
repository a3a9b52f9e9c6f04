package serve

import (
	"context"
	"io"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls/allowfile"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/rules"
	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
)

// named is a file that the configuration names beside those of catalogs, and that is in
// order when it is opened.
type named[T any] struct {
	path string             // read-only; empty for none
	file *file.File         // nil for none
	stop context.CancelFunc // ends what follows the file; nil before that

	// owned by edits

	read T       // what the file said when it was read last
	says T       // what of it is in force
	tell func(T) // is told what says becomes; nil where it is not in effect
}

// take puts in force what the file says.
func (n *named[T]) take(says T) {
	if n.says = says; n.tell != nil {
		n.tell(says)
	}
}

// follow has the file followed, if there is one.
func (n *named[T]) follow(p *Publisher) {
	if n.file != nil && n.stop == nil {
		n.stop = p.launch(func(ctx context.Context) { _ = n.file.Run(ctx) }) // which returns nil when ctx ends
	}
}

// end ends what follow has begun.
func (n *named[T]) end() {
	if n.stop != nil {
		n.stop()
	}
}

// openAllowed reads an allow file, if there is one.
func (p *Publisher) openAllowed(ctx context.Context, path string) (n *named[[]federation.ID], err error) {
	n = &named[[]federation.ID]{path: path}
	if path != "" {
		n.file, err = allowfile.Open(ctx, allowfile.Config{
			Path: path, Set: n.take, Logger: p.logger, Read: func(ids []federation.ID) { n.read = ids }, Group: p.edits,
		})
	}
	return n, err
}

// openRules reads a file of rules.
func (p *Publisher) openRules(ctx context.Context, path string) (*named[*rules.Rules], error) {
	n := &named[*rules.Rules]{path: path}
	n.file = file.New(file.Config{
		Path: path, What: "rules file", Keeps: "the same rules as before are in force", Limit: rules.MaxBytes, Logger: p.logger, Group: p.edits,
		Read: func(_ context.Context, content io.Reader, _ int64) (func(), error) {
			data, err := io.ReadAll(content)
			if err != nil {
				return nil, err
			}
			parsed, problems := rules.Parse(data)
			return func() {
				n.take(parsed)
				p.logger.Info("rules applied", "file", path)
			}, problem.Error(problems, 0)
		},
	})
	return n, n.file.Load(ctx)
}
