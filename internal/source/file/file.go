// Package file is the source of a catalog file, in YAML or JSON: what it says is the
// part, as long as it is not broken. A program gives a [File] to a source.Catalog.
//
// The file is followed. It is read service by service, and what has not changed in it
// stays as it was encoded before. A broken file, which may be one that is gone, empty or
// half written, withdraws nothing: its origin is away until it is in order again.
package file

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/source/file/catalogfile"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// Config says which file is followed. Policy, MaxBytes and Group may be left out.
type Config struct {
	Path     string
	Policy   wire.AddressPolicy // of the consumers, as far as the owner knows it
	MaxBytes int64              // a larger file is broken; 0 stands for catalogfile.DefaultLimit
	Logger   *slog.Logger
	Group    *file.Group // as in file.Config
}

// File is a [source.Source] of one catalog file. It keeps the encoded services of the last good
// version, so that a new version changes only what differs. The goroutine of the group changes
// them, under mu. MaxBytes bounds the file, and with it the services. It logs what happens to the
// file.
type File struct {
	// read-only after New
	config Config
	file   *file.File

	reader *catalogfile.Reader // owned by Load, then by whoever runs the group

	mu       sync.Mutex
	part     source.Part                     // nil before Run
	services map[string]*wire.EncodedService // of the last good version, by name; nil before the first
	warnings string                          // the warnings that were logged last
}

// New returns the source of a file, which is not read before Load or Run.
func New(c Config) *File {
	f := &File{config: c, reader: catalogfile.NewReader(c.Policy)}
	f.file = file.New(f.fileConfig())
	return f
}

// fileConfig returns how the file is followed.
func (f *File) fileConfig() file.Config {
	return file.Config{
		Path: f.config.Path, What: "catalog file", Keeps: "the catalog stays as it was",
		Limit: cmp.Or(f.config.MaxBytes, catalogfile.DefaultLimit), Logger: f.config.Logger,
		Read: f.readCatalog, Trouble: f.reportTrouble, Group: f.config.Group,
	}
}

// Load reads the file, so that Run publishes it at once. Without Load, Run waits for a file that
// can be used. Load fails when the file cannot be read, when ctx ends, or when the file has a
// problem: then the error names the first few. It is called before Run, once.
func (f *File) Load(ctx context.Context) error { return f.file.Load(ctx) }

// Err returns why the current content of the file is not used, or nil. It may be called at any
// time.
func (f *File) Err() error { return f.file.Err() }

// Run implements source.Source.
func (f *File) Run(ctx context.Context, part source.Part) {
	f.publishKnown(part)
	_ = f.file.Run(ctx) // returns nil when ctx ends
}

// publishKnown publishes the last good version to the part, and its trouble. The group may have
// read the file before.
func (f *File) publishKnown(part source.Part) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.part = part
	if f.services != nil {
		part.Replace(slices.Collect(maps.Values(f.services)))
	}
	if err := f.file.Err(); err != nil {
		part.SetAway(source.ReportedError{Reason: err})
	}
}

// readCatalog reads a version of the file, and returns the function that applies it, or an error
// when the version has problems.
func (f *File) readCatalog(ctx context.Context, content io.Reader, size int64) (func(), error) {
	catalog, err := f.reader.Read(content, size, ctx.Err)
	if err := cmp.Or(err, catalog.Err()); err != nil {
		return nil, err
	}
	return func() { f.applyCatalog(catalog) }, nil
}

// applyCatalog replaces the last good version with catalog, publishes it, and logs what has
// changed.
func (f *File) applyCatalog(catalog catalogfile.Catalog) {
	f.mu.Lock()
	defer f.mu.Unlock()
	services := make(map[string]*wire.EncodedService, len(catalog.Services))
	added, changed := 0, 0
	for _, s := range catalog.Services {
		services[s.Name()] = s
		switch before := f.services[s.Name()]; {
		case before == nil:
			added++
		case !before.Equal(s):
			changed++
		}
	}
	removed := len(f.services) + added - len(services)
	f.services = services
	if f.part != nil {
		f.part.Replace(catalog.Services)
	}
	f.config.Logger.Info("catalog applied", "file", f.config.Path, "services", len(f.services),
		"added", added, "changed", changed, "removed", removed)
	warnings := problem.Summary(catalog.Warnings, catalog.MoreWarnings)
	if warnings != f.warnings && warnings != "" {
		f.config.Logger.Warn("catalog has warnings", "file", f.config.Path, "warnings", warnings)
	}
	f.warnings = warnings
}

// reportTrouble reports to the part that the file is broken, or with nil that the file can be used
// again. The reason was logged before.
func (f *File) reportTrouble(reason error) {
	if reason != nil {
		reason = source.ReportedError{Reason: reason}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.part != nil {
		f.part.SetAway(reason)
	}
}
