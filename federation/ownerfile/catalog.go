package ownerfile

import (
	"cmp"
	"context"
	"io"
	"log/slog"

	"github.com/hamlet-federation/coredns-federation/federation/catalogfile"
	"github.com/hamlet-federation/coredns-federation/federation/livefile"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/problem"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// CatalogConfig is what OpenCatalog needs. Every field is required but Policy and
// MaxBytes.
type CatalogConfig struct {
	Path     string
	Registry *owner.Registry
	Policy   wire.Policy // of the consumers, as far as the owner knows it
	MaxBytes int64       // a larger file is broken; 0 stands for catalogfile.DefaultLimit
	Logger   *slog.Logger
}

// OpenCatalog reads a catalog file and sets the registry to it; later changes are
// applied as differences. It fails when the file cannot be read or has a problem, in
// which case the error names the first few problems, and when ctx ends.
func OpenCatalog(ctx context.Context, c CatalogConfig) (*File, error) {
	doubtful := "" // the warnings that were logged last
	reader := catalogfile.NewReader(c.Policy)
	read := func(ctx context.Context, content io.Reader, size int64) (func(), error) {
		catalog, err := reader.Read(content, size, ctx.Err)
		if err := cmp.Or(err, catalog.Err()); err != nil {
			return nil, err
		}
		return func() {
			d := c.Registry.SetEncoded(catalog.Services)
			c.Logger.Info("catalog applied", "file", c.Path, "services", len(catalog.Services),
				"added", d.Added, "changed", d.Changed, "removed", d.Removed)
			warnings := problem.Summary(catalog.Warnings, catalog.MoreWarnings)
			if warnings != doubtful && warnings != "" {
				c.Logger.Warn("catalog has what is probably not meant", "file", c.Path, "warnings", warnings)
			}
			doubtful = warnings
		}, nil
	}
	f := livefile.New(livefile.Config{
		Path: c.Path, What: "catalog file", Keeps: "the catalog stays as it was",
		Limit: cmp.Or(c.MaxBytes, catalogfile.DefaultLimit), Logger: c.Logger, Read: read,
	})
	return f, f.Load(ctx)
}
