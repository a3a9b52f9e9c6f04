package serve

import (
	"context"
	"io"

	"github.com/hamlet-federation/coredns-federation/federation/source/registration/rules"
	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
)

// ruleset is a file with the rules of a registration.
type ruleset struct {
	path  string // read-only
	file  *file.File
	rules *rules.Rules       // of the file; changed by what follows it alone
	set   func(*rules.Rules) // what they are told to; set before the file is followed
	stop  context.CancelFunc // ends what follows the file; nil before it runs
}

// openRules reads a file of rules. It is not in effect yet.
func (p *Publisher) openRules(ctx context.Context, path string) (*ruleset, error) {
	r := &ruleset{path: path, set: func(*rules.Rules) {}}
	r.file = file.New(file.Config{
		Path: path, What: "rules file", Keeps: "the same rules as before are in force", Limit: rules.MaxBytes, Logger: p.logger, Group: p.edits,
		Read: func(_ context.Context, content io.Reader, _ int64) (func(), error) {
			data, err := io.ReadAll(content)
			if err != nil {
				return nil, err
			}
			parsed, problems := rules.Parse(data)
			return func() {
				r.rules = parsed
				r.set(parsed)
				p.logger.Info("rules applied", "file", path)
			}, problem.Error(problems, 0)
		},
	})
	return r, r.file.Load(ctx)
}

// followRules follows the rules of a registration. The caller holds the mutex.
func (p *Publisher) followRules(ctx context.Context, g *registered) {
	r := g.rules
	r.set = func(changed *rules.Rules) { g.enforce(r, changed) }
	ctx, r.stop = context.WithCancel(ctx)
	p.running.Go(func() { _ = r.file.Run(ctx) }) // it returns nil when ctx ends
}
