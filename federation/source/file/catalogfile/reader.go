package catalogfile

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/source/file/internal/catalogentry"
	"github.com/hamlet-federation/coredns-federation/federation/source/internal/claim"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/packed"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
)

// remembered is a service of the last version without problems.
type remembered struct {
	service  *wire.EncodedService
	doubtful bool // whether there are warnings of it, which depend on its lines
}

// memory has services by the hash of their JSON: nobody who writes services finds two for one.
type memory map[[sha256.Size]byte]remembered

// Reader reads the versions of one catalog file, one after the other. It remembers the
// services of the last version without problems: where one service of a million was
// edited, that one is decoded, and the others are taken as they were.
type Reader struct {
	policy wire.AddressPolicy
	known  memory
}

// NewReader returns a Reader that checks each service as a consumer with that policy
// would.
func NewReader(policy wire.AddressPolicy) *Reader { return &Reader{policy: policy} }

// Read returns what a version of the file says, which has about size bytes. It calls
// check before each service. It fails with the error of check or of source; nothing
// else makes it fail.
func (r *Reader) Read(source io.Reader, size int64, check func() error) (Catalog, error) {
	p := newReading(r, check)
	text := bufio.NewReaderSize(source, bufferBytes)
	start, err := text.Peek(startBytes)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
	case isLines(start):
		err = p.jsonLines(text)
	default:
		err = p.whole(text, size, bytes.HasPrefix(bytes.TrimSpace(start), []byte("{")))
	}
	catalog, err := p.result(err)
	if err == nil && len(catalog.Problems) == 0 {
		r.known = p.next
	}
	return catalog, err
}

const (
	bufferBytes = 64 << 10
	startBytes  = 4 << 10 // what shows the form of a file
)

// whole reads a catalog that is one value, in JSON or in YAML, after all of it is there.
// Only JSON may have more than MaxYAML bytes.
func (p *reading) whole(source io.Reader, size int64, mayBeJSON bool) error {
	limit := int64(MaxYAML)
	if mayBeJSON {
		limit = maxSize
	}
	var text bytes.Buffer
	text.Grow(int(min(max(size, 0), limit)) + bytes.MinRead)
	if _, err := text.ReadFrom(io.LimitReader(source, limit+1)); err != nil {
		return err //nolint:wrapcheck // the caller's own source
	}
	// JSON is not read as YAML: it has escapes that YAML does not know.
	if json.Valid(text.Bytes()) {
		return p.json(text.Bytes())
	}
	return p.yaml(text.Bytes())
}

// reading is the work on one version of a file.
type reading struct {
	*Reader

	check   func() error
	catalog Catalog
	lines   []int          // on which the services of catalog begin
	places  map[string]int // of the services in catalog, by name
	count   int            // services seen so far, wrong ones included
	next    memory         // for the next version
}

func newReading(r *Reader, check func() error) *reading {
	n := len(r.known)
	return &reading{
		Reader: r, check: check, catalog: Catalog{Services: make([]*wire.EncodedService, 0, n)},
		lines: make([]int, 0, n), places: make(map[string]int, n),
		next: make(memory, n),
	}
}

// unreadable is the problem of a file of which nothing can be used.
type unreadable problem.Problem

func (u unreadable) Error() string { return problem.Problem(u).String() }

// result returns what the file says, after it was read with err.
func (p *reading) result(err error) (Catalog, error) {
	if u, ok := errors.AsType[unreadable](err); ok {
		u.Rule = federation.Printable(u.Rule)
		return Catalog{Problems: []problem.Problem{problem.Problem(u)}}, nil
	}
	if err != nil {
		return Catalog{}, err
	}
	p.warnSharedNames()
	byLine := func(a, b problem.Problem) int { return a.Line - b.Line }
	slices.SortStableFunc(p.catalog.Problems, byLine)
	slices.SortStableFunc(p.catalog.Warnings, byLine)
	return p.catalog, nil
}

// done reports whether reading ends before the next service, and the error with
// which it does, if any.
func (p *reading) done() (bool, error) {
	err := p.check()
	return err != nil || p.catalog.MoreProblems > maxCounted, err
}

// service adds the service that the next entry spells, or its problems.
func (p *reading) service(e *catalogentry.Entry) {
	found, doubts := problem.List{Room: problem.Room - len(p.catalog.Problems)}, problem.List{Room: problem.Room}
	key := sha256.Sum256(e.JSON())
	known, ok := p.known[key]
	if !ok {
		if service := e.Service(place(p.count), p.policy, &found); service != nil {
			e.Doubts(service, &doubts)
			encoded, _ := wire.NewEncoded(service) // it was decoded, and so is valid
			known = remembered{encoded, len(doubts.Kept) > 0}
		}
	} else if known.doubtful {
		e.Doubts(known.service.Service(), &doubts)
	}
	if known.service != nil {
		if first, twice := p.places[known.service.Name()]; twice {
			found.Add(problem.Problem{
				Line: e.Line("name"), Service: federation.Quote(known.service.Name()), Field: "name",
				Rule: fmt.Sprintf("the service on line %d has the same name; a name stands for one service", p.lines[first]),
			})
		}
	}
	p.count++
	for i := range found.Kept {
		found.Kept[i].Rule = federation.Printable(found.Kept[i].Rule)
	}
	p.wrong(found)
	if len(found.Kept)+found.More > 0 {
		return
	}
	p.next[key] = known
	p.places[known.service.Name()] = len(p.catalog.Services)
	p.lines = append(p.lines, e.Line(""))
	p.catalog.Services = append(p.catalog.Services, known.service)
	for _, w := range doubts.Kept {
		p.warn(w)
	}
	p.catalog.MoreWarnings += doubts.More
}

// wrong adds problems, for which found had what room there is.
func (p *reading) wrong(found problem.List) {
	p.catalog.Problems = append(p.catalog.Problems, found.Kept...)
	p.catalog.MoreProblems += found.More
}

func (p *reading) warn(warning problem.Problem) {
	if len(p.catalog.Warnings) < problem.Room {
		p.catalog.Warnings = append(p.catalog.Warnings, warning)
	} else {
		p.catalog.MoreWarnings++
	}
}

// warnSharedNames warns of each service whose fqdn is that of another, and adds a problem for each
// fqdn of more services than consumers take.
func (p *reading) warnSharedNames() {
	winners := make(map[string]string, len(p.catalog.Services))                                       // the services that are served, by fqdn
	found, counts := problem.List{Room: problem.Room - len(p.catalog.Problems)}, make(map[string]int) // of those that are not served
	rank := func(service string) claim.Rank { return claim.Rank{Service: service} }
	for _, s := range p.catalog.Services {
		if winner, taken := winners[s.FQDN()]; !taken || rank(s.Name()).Compare(rank(winner)) < 0 {
			winners[s.FQDN()] = s.Name()
		}
	}
	for i, s := range p.catalog.Services {
		if winner := winners[s.FQDN()]; winner != s.Name() {
			p.warn(problem.Problem{
				Line: p.lines[i], Service: federation.Quote(s.Name()), Field: "fqdn",
				Rule: fmt.Sprintf("%s. is also that of service %s, which wins: this one will not be served",
					s.FQDN(), federation.Quote(winner)),
			})
			if counts[s.FQDN()]++; counts[s.FQDN()] == packed.MaxServicesPerFQDN {
				found.Add(problem.Problem{
					Line: p.lines[i], Service: federation.Quote(s.Name()), Field: "fqdn",
					Rule: fmt.Sprintf("%s. has more than %d services, which consumers refuse; give them other fqdns", s.FQDN(), packed.MaxServicesPerFQDN),
				})
			}
		}
	}
	p.wrong(found)
}

// expectServices is the rule of a file that is no catalog.
const expectServices = "the file must hold a mapping with the one key services; an empty catalog is 'services: []'"

// place names a service that has no name.
func place(i int) string { return fmt.Sprintf("services[%d]", i) }

// tooLarge returns the entry for a service of so many bytes.
func tooLarge(line, size int) *catalogentry.Entry {
	return catalogentry.Broken(line, fmt.Sprintf("has %d bytes, the limit is %d; is the line break before the next one missing?", size, maxPiece))
}
