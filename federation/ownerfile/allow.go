package ownerfile

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
)

// MaxAllow is how large an allow file may be, in bytes: some ten thousand
// identities.
const MaxAllow = 1 << 20

// AllowConfig is what OpenAllow needs. Every field is required.
type AllowConfig struct {
	Path string

	// Set takes the identities that may subscribe, and makes nobody of none:
	// owner.Server.SetAllow, or a function that adds others to them.
	Set func(ids []mtls.ID)

	Logger *slog.Logger
}

// OpenAllow reads a file with the identities of the consumers that may
// subscribe, and sets them. It fails when the file cannot be read or has a
// problem, and names all it can of it.
//
// A file that is gone or names nobody is broken: it never means everybody, and
// it is also what a file looks like that is about to be written.
func OpenAllow(ctx context.Context, c AllowConfig) (*File, error) {
	f := &File{
		path: c.Path, what: "allow file", keeps: "the same consumers as before may subscribe",
		limit: MaxAllow, logger: c.Logger,
	}
	f.apply = func(_ context.Context, data []byte) error {
		ids, problems := ParseAllow(data)
		if len(problems) > 0 {
			return errors.New(summary(problems, 0))
		}
		c.Set(ids)
		c.Logger.Info("allow file applied", "file", c.Path, "identities", len(ids))
		return nil
	}
	return f.open(ctx)
}

var comment = regexp.MustCompile(`(^|\s)#.*`)

// ParseAllow reads a file with identities: one a line, as [mtls.ParseID] takes
// them. What follows a # at the beginning of a line or after a blank is a
// comment. There must be at least one identity; the line [] stands for nobody.
func ParseAllow(data []byte) ([]mtls.ID, []Problem) {
	var ids []mtls.ID
	var problems []Problem
	nobody, number := 0, 0 // the line that says so
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
		id, err := mtls.ParseID(text)
		if err != nil {
			problems = append(problems, Problem{Line: number, Rule: err.Error()})
			continue
		}
		ids = append(ids, id)
	}
	switch {
	case nobody > 0 && len(ids) > 0:
		problems = append(problems, Problem{Line: nobody, Rule: "[] stands for nobody, and other lines name somebody"})
	case nobody == 0 && len(ids) == 0 && len(problems) == 0:
		problems = append(problems, Problem{Rule: "the file names nobody; [] on a line of its own allows nobody"})
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return ids, nil
}
