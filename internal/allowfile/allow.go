package allowfile

import (
	"context"
	"io"
	"log/slog"
	"regexp"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
)

// limit is how large an allow file may be, in bytes: some ten thousand identities.
const limit = 1 << 20

// Config is what Open needs. Every field is required up to Logger.
type Config struct {
	Path string

	// Set is given the identities that may subscribe, and lets nobody in when there
	// are none. It is owner.Server.SetAllow, or a function that adds others to them.
	Set func(ids []federation.ID)

	Logger *slog.Logger
	Group  *file.Group // as in file.Config
}

// Open reads a file with the identities of the consumers that may subscribe, one a
// line, and sets them. It fails when the file cannot be read or has a problem; its error
// names the first few problems.
//
// A file that is gone or names nobody is broken. It never stands for everybody, and
// a file that is about to be written looks the same for a moment.
func Open(ctx context.Context, c Config) (*file.File, error) {
	f := file.New(c.fileConfig())
	return f, f.Load(ctx)
}

// fileConfig says how the file is followed.
func (c Config) fileConfig() file.Config {
	read := func(_ context.Context, content io.Reader, _ int64) (func(), error) {
		data, err := io.ReadAll(content)
		if err != nil {
			return nil, err
		}
		ids, problems := parseIDs(data)
		return func() {
			c.Set(ids)
			c.Logger.Info("allow file applied", "file", c.Path, "allowed", len(ids))
		}, problem.Error(problems, 0)
	}
	return file.Config{
		Path: c.Path, What: "allow file", Keeps: "the same consumers as before may subscribe",
		Limit: limit, Logger: c.Logger, Read: read, Group: c.Group,
	}
}

var comment = regexp.MustCompile(`(^|\s)#.*`)

// parseIDs reads a file with identities: one a line, as [mtls.ParseID] takes
// them. What follows a # at the beginning of a line or after a blank is a
// comment. There must be at least one identity; the line [] stands for nobody.
func parseIDs(data []byte) ([]federation.ID, []problem.Problem) {
	var ids []federation.ID
	var problems []problem.Problem
	nobody, number := 0, 0 // the line that is [], and the current one
	for line := range strings.Lines(string(data)) {
		number++
		text := strings.TrimSpace(comment.ReplaceAllString(line, ""))
		switch text {
		case "":
			continue
		case "[]":
			nobody = number
			continue
		}
		id, err := federation.ParseID(text)
		if err != nil {
			problems = append(problems, problem.Problem{Line: number, Rule: err.Error()})
			continue
		}
		ids = append(ids, id)
	}
	switch {
	case nobody > 0 && len(ids) > 0:
		problems = append(problems, problem.Problem{Line: nobody, Rule: "[] stands for nobody, and other lines name somebody"})
	case nobody == 0 && len(ids) == 0 && len(problems) == 0:
		problems = append(problems, problem.Problem{Rule: "the file names nobody; [] on a line of its own allows nobody"})
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return ids, nil
}
