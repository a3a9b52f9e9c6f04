package serve

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
)

// prepareFunc is given what a configuration file says, with its paths taken from the
// directory of the file. It returns a function that puts it into effect, or why that
// cannot be done.
type prepareFunc func(ctx context.Context, c config.Config) (apply func(), err error)

// newSettings returns the configuration file at path, which is not read yet. In an edit it is
// read after the files that it names.
func newSettings(path string, logger *slog.Logger, edits *file.Group, prepare prepareFunc) *file.File {
	return file.New(file.Config{
		Path: path, What: "configuration file", Keeps: "everything stays as it was", Limit: config.MaxBytes, Logger: logger, Group: edits, Last: true,
		Read: func(ctx context.Context, content io.Reader, _ int64) (func(), error) {
			data, err := io.ReadAll(content)
			if err != nil {
				return nil, err
			}
			config, problems := config.Parse(data)
			if len(problems) > 0 {
				return nil, errors.New(strings.Join(problem.Lines(problems), "; ")) // so that the author has all of them before the next attempt
			}
			config.In(filepath.Dir(path))
			return prepare(ctx, config)
		},
	})
}
