package file

import (
	"cmp"
	"context"
	"os"
	"slices"
	"sync"
	"time"
)

// Group is the files that may change in one edit: a configuration with the files that it
// names, in a volume of Kubernetes that is swapped as a whole. When one of them has
// changed, all that have are read, until none of them changes any more, and only then put
// in force, at once.
type Group struct {
	together func(apply func())

	joining sync.Mutex    // guards the field below
	files   map[*File]int // by how often each of them is run

	mu sync.Mutex // guards what each of the files owns, and is held during an edit
}

// NewGroup returns an empty group. Together is given what puts an edit in force, and calls it;
// nil only calls it.
func NewGroup(together func(apply func())) *Group {
	if together == nil {
		together = func(apply func()) { apply() }
	}
	return &Group{together: together, files: make(map[*File]int)}
}

// enter adds to how often a file is run.
func (g *Group) enter(f *File, n int) {
	g.joining.Lock()
	defer g.joining.Unlock()
	if g.files[f] += n; g.files[f] == 0 {
		delete(g.files, f)
	}
}

// members returns the files, in the order in which they are read.
func (g *Group) members() []*File {
	g.joining.Lock()
	defer g.joining.Unlock()
	files := make([]*File, 0, len(g.files))
	for f := range g.files {
		files = append(files, f)
	}
	slices.SortFunc(files, func(a, b *File) int {
		if a.config.Last != b.config.Last {
			if b.config.Last {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.config.Path, b.config.Path)
	})
	return files
}

// changed is that of a file.
func (g *Group) changed(f *File) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return f.changed()
}

// reload puts an edit in force, if the file has changed.
func (g *Group) reload(ctx context.Context, first *File) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if ctx.Err() != nil || !first.changed() {
		return
	}
	edit := make(map[*File]reading)
	for range attempts {
		g.rest(ctx, first)
		if !g.read(ctx, first, edit) {
			break
		}
	}
	if ctx.Err() != nil { // which is no trouble of the files
		for f := range edit {
			f.info = nil // others read it again
		}
		return
	}
	g.together(func() {
		for _, f := range g.members() {
			r, ok := edit[f]
			if ok && r.err == nil && f.changed() {
				r = f.changing()
			}
			if ok {
				f.settle(r)
			}
		}
	})
}

// read reads the files that have changed since they were read last, and reports whether
// there was anything new.
func (g *Group) read(ctx context.Context, first *File, edit map[*File]reading) (news bool) {
	for _, f := range g.members() {
		if !f.changed() || f != first && f.unrest() > 0 {
			continue
		}
		r := f.read(ctx)
		before, again := edit[f]
		edit[f] = r
		if !again || before.err == nil || r.err == nil || before.err.Error() != r.err.Error() {
			news = true
		}
	}
	return news
}

// patience is how long an edit waits for its other files to be left alone. One that is
// written for longer is not a part of it.
const patience = time.Second

// rest waits until the other files that have changed have been left alone, as the first one
// was.
func (g *Group) rest(ctx context.Context, first *File) {
	for began := time.Now(); time.Since(began) < patience; {
		var pause time.Duration
		for _, f := range g.members() {
			if f != first && f.changed() {
				pause = max(pause, f.unrest())
			}
		}
		if pause <= 0 {
			return
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// unrest returns for how long the file has to be left alone yet before it is read.
func (f *File) unrest() time.Duration {
	info, err := os.Stat(f.config.Path)
	if err != nil || time.Since(info.ModTime()) < 0 {
		return 0 // of a clock that goes wrong nobody can tell
	}
	return quiet - time.Since(info.ModTime())
}
