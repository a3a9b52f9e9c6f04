package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/allowfile"
	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/rules"
)

// followSettings returns the configuration file, which is not read yet.
func (p *Publisher) followSettings() *file.File {
	return file.New(file.Config{
		Path: p.file, What: "configuration file", Keeps: "everything stays as it was", Limit: config.MaxBytes, Logger: p.logger, Group: p.edits,
		Read: func(_ context.Context, content io.Reader, _ int64) (func(), error) {
			data, err := io.ReadAll(content)
			if err != nil {
				return nil, err
			}
			c, problems := config.Parse(data)
			if len(problems) > 0 {
				return nil, errors.New(strings.Join(problem.FormatLines(problems), "; ")) // so that the author has all of them before the next attempt
			}
			c.ResolvePaths(filepath.Dir(p.file))
			if p.server == nil {
				return func() { p.config = c }, nil
			}
			return func() { p.changeConfig(c) }, nil
		},
	})
}

// openAllowed reads the allow file.
func (p *Publisher) openAllowed(ctx context.Context) (*file.File, error) {
	return allowfile.Open(ctx, allowfile.Config{
		Path: p.config.Allow.File, Logger: p.logger, Group: p.edits,
		Set: func(ids []federation.ID) {
			p.fileIDs = ids
			p.setAllowed()
		},
	})
}

// openRules reads a file of rules, and gives them to set.
func (p *Publisher) openRules(ctx context.Context, path string, set func(*rules.Rules)) (*file.File, error) {
	f := file.New(file.Config{
		Path: path, What: "rules file", Keeps: "the same rules as before are in force", Limit: rules.MaxBytes, Logger: p.logger, Group: p.edits,
		Read: func(_ context.Context, content io.Reader, _ int64) (func(), error) {
			data, err := io.ReadAll(content)
			if err != nil {
				return nil, err
			}
			parsed, problems := rules.Parse(data)
			return func() {
				set(parsed)
				p.logger.Info("rules applied", "file", path)
			}, problem.Error(problems, 0)
		},
	})
	return f, f.Load(ctx)
}

// applyEdit calls what puts an edit in force. Whatever that changes, of who is told of what and of
// what there is to be told, consumers are told when all of it has changed, and who may not
// subscribe before is let in after that. So none is told of a service that neither the files
// of before nor those of now let it see.
func (p *Publisher) applyEdit(edit func()) {
	var release []func()
	for _, c := range p.catalogs {
		release = append(release, c.registry.HoldChanges())
	}
	p.editing = true
	edit()
	for _, tell := range release {
		tell()
	}
	p.editing = false
	p.setAllowed()
}

// setAllowed tells the server who may subscribe: those whom the configuration names, and those in
// its allow file. During an edit these are none who might not before it.
func (p *Publisher) setAllowed() {
	if p.config.Allow.Everybody || p.server == nil {
		return
	}
	ids := make(map[federation.ID]bool)
	for _, id := range slices.Concat(p.config.Allow.IDs, p.fileIDs) {
		if !p.editing || p.admitted[id] {
			ids[id] = true
		}
	}
	if p.admitted == nil || !maps.Equal(ids, p.admitted) {
		p.server.SetAllow(slices.Collect(maps.Keys(ids)))
	}
	p.admitted = ids
}

// apart are the keys that wait for a restart by themselves.
var apart = []string{"audit", "listen", "metrics", "status", "window"}

// changeConfig puts in force what a running owner takes of a configuration: exports and allow.ids.
// What is different beside these waits for a restart.
//
// The new exports may have been written for other sources, and the new names in allow for
// another authority. If one of these waits, so do they, but for consumers that have left: what
// is taken away comes first. So nobody is told what neither the old configuration nor the new
// one tells.
//
// It is a part of an edit, in which nobody is told of anything: see applyEdit.
func (p *Publisher) changeConfig(c config.Config) {
	differ := p.config.DifferentKeys(c)
	restart := slices.DeleteFunc(slices.Clone(differ), func(key string) bool { return key == "allow.ids" || strings.HasSuffix(key, ".exports") })
	whole := !slices.ContainsFunc(restart, func(key string) bool { return !slices.Contains(apart, key) })
	if !whole {
		restart = differ
		c.Allow.IDs = slices.DeleteFunc(c.Allow.IDs, func(id federation.ID) bool { return !slices.Contains(p.config.Allow.IDs, id) })
	}
	p.mu.Lock()
	news := len(restart) > 0 && !slices.Equal(restart, p.restart)
	p.restart, p.config.Allow.IDs = restart, c.Allow.IDs
	for i := range c.Catalogs {
		if key := fmt.Sprintf("catalogs[%d].exports", i); whole && slices.Contains(differ, key) {
			of := &p.config.Catalogs[i]
			of.Policy, of.Exports = c.Catalogs[i].Policy, c.Catalogs[i].Exports
			p.catalogs[of.ServerName].registry.SetPolicy(of.Policy)
		}
	}
	if whole {
		p.applied = time.Now()
	}
	p.mu.Unlock()
	p.setAllowed()
	if whole {
		p.logger.Info("configuration applied", "file", p.file)
	}
	if news {
		p.logger.Warn("restart to apply", "file", p.file, "keys", strings.Join(restart, ", "))
	}
}
