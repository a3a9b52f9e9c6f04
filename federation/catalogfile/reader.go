package catalogfile

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/catalogentry"
	"github.com/hamlet-federation/coredns-federation/federation/problem"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// digest is that of the text of one service in a file.
type digest [16]byte

func digestOf(text []byte) digest {
	sum := sha256.Sum256(text)
	return digest(sum[:len(digest{})])
}

// Reader reads the versions of one catalog file, one after the other. It remembers
// the services of the last version without problems by their texts: where one service
// of a million was edited, that one is decoded, and the others are taken as they were.
type Reader struct {
	policy wire.Policy
	known  memory
}

// NewReader returns a Reader that checks each service as a consumer with that policy
// would.
func NewReader(policy wire.Policy) *Reader { return &Reader{policy: policy} }

// memory is what the texts of services say that have no problem. Lines in it are
// relative to the one on which the text begins.
type memory struct {
	services map[digest]remembered
	warnings map[digest][]problem.Problem // of services that have any
}

type remembered struct {
	*federation.Service

	line int32
}

func newMemory() memory {
	return memory{make(map[digest]remembered), make(map[digest][]problem.Problem)}
}

// Read returns what a version of the file says. It calls check before each service
// and fails with its error; nothing else makes it fail.
func (r *Reader) Read(data []byte, check func() error) (Catalog, error) {
	// JSON is not read as YAML: it has escapes that YAML does not know.
	read := (*reading).plain
	if json.Valid(data) {
		read = (*reading).json
	}
	p := newReading(r, check)
	err := read(p, data)
	if errors.Is(err, errNotPlain) {
		hint := p.hint
		p = newReading(r, check)
		err = p.document(data, hint)
	}
	catalog, err := p.result(err)
	if err == nil && len(catalog.Problems) == 0 {
		r.known = p.next
	}
	return catalog, err
}

// reading is the work on one version of a file.
type reading struct {
	*Reader

	check   func() error
	catalog Catalog
	lines   []int           // on which the services of catalog begin
	places  map[string]int  // of the services in catalog, by name
	count   int             // services seen so far, wrong ones included
	next    memory          // for the next version
	hint    problem.Problem // why the file is not in the plain form
}

func newReading(r *Reader, check func() error) *reading {
	return &reading{Reader: r, check: check, places: make(map[string]int), next: newMemory()}
}

// unreadable is the problem of a file of which nothing can be used.
type unreadable problem.Problem

func (u unreadable) Error() string { return problem.Problem(u).String() }

// result returns what the file says, after it was read with err.
func (p *reading) result(err error) (Catalog, error) {
	if u, ok := errors.AsType[unreadable](err); ok {
		u.Rule = problem.Printable(u.Rule)
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

// recall adds the service whose text begins on the line, and reports whether it is
// remembered.
func (p *reading) recall(key digest, line int) bool {
	known, ok := p.known.services[key]
	if !ok {
		return false
	}
	if _, twice := p.places[known.Name]; twice {
		return false // it has to be decoded, as the problem names a line within it
	}
	warnings := slices.Clone(p.known.warnings[key])
	for i := range warnings {
		warnings[i].Line += line
	}
	p.add(known.Service, line+int(known.line), problem.List{Kept: warnings})
	p.next.services[key] = known
	if len(warnings) > 0 {
		p.next.warnings[key] = p.known.warnings[key]
	}
	return true
}

// decode adds the service that the next entry spells, or its problems. If key is not
// nil the service is remembered under it, with lines relative to line, on which its
// text begins.
func (p *reading) decode(e *catalogentry.Entry, line int, key *digest) {
	found := problem.List{Room: problem.Room - len(p.catalog.Problems)}
	service := e.Service(place(p.count), p.policy, &found)
	if service != nil {
		if first, twice := p.places[service.Name]; twice {
			found.Add(problem.Problem{
				Line: e.Line("name"), Service: federation.Quote(service.Name), Field: "name",
				Rule: fmt.Sprintf("the service on line %d has the same name; a name stands for one service", p.lines[first]),
			})
			service = nil
		}
	}
	for _, wrong := range found.Kept {
		wrong.Rule = problem.Printable(wrong.Rule)
		p.catalog.Problems = append(p.catalog.Problems, wrong)
	}
	p.catalog.MoreProblems += found.More
	if service == nil {
		p.count++
		return
	}
	doubts := problem.List{Room: problem.Room}
	e.Doubts(service, &doubts)
	p.add(service, e.Line(""), doubts)
	if key == nil || doubts.More > 0 {
		return
	}
	p.next.services[*key] = remembered{service, int32(e.Line("") - line)} //nolint:gosec // less than maxPiece
	if len(doubts.Kept) > 0 {
		warnings := slices.Clone(doubts.Kept)
		for i := range warnings {
			warnings[i].Line -= line
		}
		p.next.warnings[*key] = warnings
	}
}

// add adds a service that begins on the line.
func (p *reading) add(service *federation.Service, line int, doubts problem.List) {
	p.count++
	p.places[service.Name] = len(p.catalog.Services)
	p.lines = append(p.lines, line)
	p.catalog.Services = append(p.catalog.Services, service)
	for _, w := range doubts.Kept {
		p.warn(w)
	}
	p.catalog.MoreWarnings += doubts.More
}

func (p *reading) warn(warning problem.Problem) {
	if len(p.catalog.Warnings) < problem.Room {
		p.catalog.Warnings = append(p.catalog.Warnings, warning)
	} else {
		p.catalog.MoreWarnings++
	}
}

// warnSharedNames warns of each service whose fqdn is that of another.
func (p *reading) warnSharedNames() {
	// Of one owner's services with one fqdn, consumers serve the smallest name.
	winners := make(map[federation.FQDN]*federation.Service, len(p.catalog.Services))
	for _, s := range p.catalog.Services {
		if winner := winners[s.FQDN]; winner == nil || s.Name < winner.Name {
			winners[s.FQDN] = s
		}
	}
	for i, s := range p.catalog.Services {
		if winner := winners[s.FQDN]; s != winner {
			p.warn(problem.Problem{
				Line: p.lines[i], Service: federation.Quote(s.Name), Field: "fqdn",
				Rule: fmt.Sprintf("%s is also that of service %s, which wins: this one will not be served",
					s.FQDN, federation.Quote(winner.Name)),
			})
		}
	}
}

// expectServices is the rule of a file that is no catalog.
const expectServices = "the file must hold a mapping with the one key services; an empty catalog is 'services: []'"

// place names a service that has no name.
func place(i int) string { return fmt.Sprintf("services[%d]", i) }

// tooLarge returns the entry for a service of so many bytes.
func tooLarge(line, size int) *catalogentry.Entry {
	return catalogentry.Broken(line, fmt.Sprintf("has %d bytes, the limit is %d; is the '-' of the next one missing?", size, maxPiece))
}
