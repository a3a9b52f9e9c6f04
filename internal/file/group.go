package file

import (
	"cmp"
	"context"
	"slices"
)

// Group is the files that may change in one edit: a configuration with the files that it names, in
// a volume of Kubernetes that is swapped as a whole. One [Watch] follows them, and its Run alone
// reads them. When a file has changed and nobody writes to any of them, the group reads all changed
// files until none of them changes any more, and only then puts them in force, at once. It has the
// files that were added before it runs.
type Group struct {
	together func(apply func())

	// Read-only once it runs.
	watch *Watch
	files []*File
}

// NewGroup returns an empty group. Together gets a function that puts an edit in force, and calls
// it; a nil together only calls it.
func NewGroup(together func(apply func())) *Group {
	if together == nil {
		together = func(apply func()) { apply() }
	}
	g := &Group{together: together}
	g.watch = NewWatch(WatchConfig{
		Interval: pollInterval, Quiet: quiet, Patience: pollInterval, Changed: g.anyChanged, Reload: g.reloadChanged,
	})
	return g
}

// addFile adds a file.
func (g *Group) addFile(f *File) {
	g.files = append(g.files, f)
	watched := &g.watch.config
	watched.Paths, watched.Events, watched.Logger = append(watched.Paths, f.config.Path), cmp.Or(f.config.Events, watched.Events), f.config.Logger
}

// Run follows the files until ctx ends, and then returns nil; see [File.Run]. Like that of a Watch,
// it may run several times at once.
func (g *Group) Run(ctx context.Context) error { return g.watch.Run(ctx) }

// anyChanged reports whether one of the files may have changed since it was read.
func (g *Group) anyChanged() bool { return slices.ContainsFunc(g.files, (*File).hasChanged) }

// reloadChanged reads the changed files, and puts them in force.
func (g *Group) reloadChanged(ctx context.Context) {
	edit := make(map[*File]readResult)
	for attempt := 0; attempt < attempts && g.anyChanged(); attempt++ {
		for _, f := range g.files {
			if f.hasChanged() {
				edit[f] = f.readContent(ctx)
			}
		}
	}
	switch {
	case len(edit) == 0:
		return
	case ctx.Err() != nil: // which is no trouble of the files
		for f := range edit {
			f.info = nil // whoever follows next reads it again
		}
		return
	}
	g.together(func() {
		for _, f := range g.files {
			r, read := edit[f]
			if read && r.err == nil && f.hasChanged() {
				r = f.changingResult()
			}
			if read {
				f.applyOrReport(r)
			}
		}
	})
}
