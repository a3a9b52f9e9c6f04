// Package catalogfile reads the services that an owner publishes from a file, in the
// protobuf JSON mapping of FederatedService. A file is a mapping in YAML or JSON whose
// one key, services, holds a list of them, or it is JSON lines: one service a line.
//
// JSON lines are for large catalogs: they are never held whole. YAML becomes one tree,
// which is many times as large as the file, and so its size is limited. Of a new version
// only the services that have changed are decoded. Whatever is in a file, the work is in
// proportion to its size, and what is said of it is short and printable.
package catalogfile

import (
	"bytes"
	"math"

	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// The limits of a catalog file, in bytes.
const (
	// DefaultLimit is how large a catalog file may be unless its reader sets another
	// limit.
	DefaultLimit = 256 << 20

	// MaxYAML is how large a catalog in YAML may be. While it is decoded it may take
	// three hundred times as much memory, if it is nothing but commas.
	MaxYAML = 16 << 20

	// maxPiece is how large one service in JSON may be.
	maxPiece = 8 << 20

	// maxSize stands for no limit. A size can be added to it without overflow.
	maxSize = math.MaxInt64 / 2
)

// maxCounted bounds the problems that are counted: of a file with more of them the
// rest is not read.
const maxCounted = 10_000

// Catalog is the content of a catalog file.
type Catalog struct {
	Services []*wire.EncodedService // the valid ones, in the order of the file
	Problems []problem.Problem      // mistakes, the first of them; with any of them the file is not fit to be published
	Warnings []problem.Problem      // what is allowed and probably not meant, the first of them

	// MoreProblems and MoreWarnings count those beyond Problems and Warnings, which have room for
	// [problem.Room] each. There may be more problems yet: beyond the room a wrong
	// service counts once, and a file with too many problems is not read to its end.
	MoreProblems, MoreWarnings int
}

// Err returns nil for a catalog without problems, and otherwise an error that lists the first few
// of them.
func (c Catalog) Err() error { return problem.Error(c.Problems, c.MoreProblems) }

// Parse returns the catalog in the content of a file. It checks each service as a consumer with
// that policy would.
func Parse(data []byte, policy wire.AddressPolicy) Catalog {
	never := func() error { return nil }
	catalog, _ := NewReader(policy).Read(bytes.NewReader(data), int64(len(data)), never) // nothing else makes it fail
	return catalog
}
