package catalogfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/source/file/internal/catalogentry"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
)

// memory is what the texts of services say that have no problem. Lines in it are
// relative to the one on which the text begins.
type memory struct {
	services []remembered                 // in the order of the file
	warnings map[digest][]problem.Problem // of services that have any
}

type remembered struct {
	key     digest
	service *wire.Encoded
	line    int32
}

// Reader reads the versions of one catalog file, one after the other. It remembers
// the services of the last version without problems by their texts: where one service
// of a million was edited, that one is decoded, and the others are taken as they were.
type Reader struct {
	policy  wire.Policy
	digests digester
	known   memory
}

// NewReader returns a Reader that checks each service as a consumer with that policy
// would.
func NewReader(policy wire.Policy) *Reader {
	return &Reader{policy: policy, digests: newDigester()}
}

// Read returns what a version of the file says, which has about size bytes. It calls
// check before each service. It fails with the error of check or of source; nothing
// else makes it fail.
func (r *Reader) Read(source io.Reader, size int64, check func() error) (Catalog, error) {
	data, ended, err := head(source, size)
	if err != nil {
		return Catalog{}, err
	}
	p := newReading(r, check)
	if text := newPlainText(data, source, ended); text != nil { // and so it is no JSON
		err = p.plain(text)
		if errors.Is(err, errNotPlain) {
			hint := p.hint
			if !ended {
				return p.result(notPlain(hint))
			}
			p = newReading(r, check)
			err = p.document(data, hint)
		}
	} else if !ended && !mayBeJSON(data) {
		err = notPlain(problem.Problem{})
	} else {
		if data, err = remainder(data, source, size, ended); err != nil {
			return Catalog{}, err
		}
		// JSON is not read as YAML: it has escapes that YAML does not know.
		if json.Valid(data) {
			err = p.json(data)
		} else {
			err = p.document(data, problem.Problem{})
		}
	}
	catalog, err := p.result(err)
	if err == nil && len(catalog.Problems) == 0 {
		r.known = p.next
	}
	return catalog, err
}

// head reads the source to its end, or until it has given more than maxPiece bytes,
// which are then in a buffer of bufferBytes at least.
func head(source io.Reader, size int64) (data []byte, ended bool, err error) {
	data = make([]byte, 0, min(max(size, 0)+1, bufferBytes))
	for len(data) <= maxPiece && !ended && err == nil {
		data, ended, err = more(data, source)
	}
	if !ended && cap(data) < bufferBytes {
		data = append(make([]byte, 0, bufferBytes), data...)
	}
	return data, ended, err
}

// remainder reads the source to its end.
func remainder(data []byte, source io.Reader, size int64, ended bool) ([]byte, error) {
	var err error
	if !ended && int64(cap(data)) <= size {
		data = append(make([]byte, 0, size+1), data...)
	}
	for !ended && err == nil {
		data, ended, err = more(data, source)
	}
	return data, err
}

// more appends what one call of Read gives.
func more(data []byte, source io.Reader) (longer []byte, ended bool, err error) {
	if len(data) == cap(data) {
		data = slices.Grow(data, 1)
	}
	n, err := source.Read(data[len(data):cap(data)])
	data = data[:len(data)+n]
	if errors.Is(err, io.EOF) {
		return data, true, nil
	}
	return data, false, err
}

// mayBeJSON reports whether a text that begins with data may be JSON.
func mayBeJSON(data []byte) bool {
	data = bytes.TrimSpace(data)
	return len(data) == 0 || strings.IndexByte(`{["-0123456789tfn`, data[0]) >= 0
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

	// Where to look in what is known.
	cursor int            // behind the service that was found last
	missed int            // texts that were not nearby, before there was an index
	index  map[digest]int // nil until it is needed
}

func newReading(r *Reader, check func() error) *reading {
	n := len(r.known.services)
	return &reading{
		Reader: r, check: check, catalog: Catalog{Services: make([]*wire.Encoded, 0, n)},
		lines: make([]int, 0, n), places: make(map[string]int, n),
		next: memory{services: make([]remembered, 0, n), warnings: make(map[digest][]problem.Problem)},
	}
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

// nearby is how far find looks before it makes an index, and manyTexts how many texts
// are known for each that it may miss before it does.
const (
	nearby    = 16
	manyTexts = 1000
)

// find returns the service with that text in what is known. After an edit most
// services follow each other as before, and an index of a million takes longer than to
// decode a few that have moved.
func (p *reading) find(key digest) (remembered, bool) {
	known := p.known.services
	for i := p.cursor; i < min(p.cursor+nearby, len(known)); i++ {
		if known[i].key == key {
			p.cursor = i + 1
			return known[i], true
		}
	}
	if p.missed < len(known)/manyTexts {
		p.missed++
		return remembered{}, false
	}
	if p.index == nil {
		p.index = make(map[digest]int, len(known))
		for i := range known {
			p.index[known[i].key] = i
		}
	}
	i, ok := p.index[key]
	if !ok {
		return remembered{}, false
	}
	p.cursor = i + 1
	return known[i], true
}

// recall adds a service that is known and whose text begins on the line. It reports
// whether it could: a service whose name is there already has to be decoded, as the
// problem names a line within it.
func (p *reading) recall(known remembered, line int) bool {
	if _, twice := p.places[known.service.Name()]; twice {
		return false
	}
	warnings := slices.Clone(p.known.warnings[known.key])
	for i := range warnings {
		warnings[i].Line += line
	}
	p.add(known.service, line+int(known.line), problem.List{Kept: warnings})
	p.next.services = append(p.next.services, known)
	if len(warnings) > 0 {
		p.next.warnings[known.key] = p.known.warnings[known.key]
	}
	return true
}

// take adds a service that has no problems, and whose text begins on the line. It
// reports whether it could, as recall does.
func (p *reading) take(service *federation.Service, line int, key digest) bool {
	if _, twice := p.places[service.Name]; twice {
		return false
	}
	encoded := encode(service)
	p.add(encoded, line, problem.List{})
	p.next.services = append(p.next.services, remembered{key: key, service: encoded})
	return true
}

// encode encodes a service that was decoded, and so is valid.
func encode(service *federation.Service) *wire.Encoded {
	encoded, _ := wire.NewEncoded(service)
	return encoded
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
	encoded := encode(service)
	p.add(encoded, e.Line(""), doubts)
	if key == nil || doubts.More > 0 {
		return
	}
	p.next.services = append(p.next.services, remembered{*key, encoded, int32(e.Line("") - line)}) //nolint:gosec // less than maxPiece
	if len(doubts.Kept) > 0 {
		warnings := slices.Clone(doubts.Kept)
		for i := range warnings {
			warnings[i].Line -= line
		}
		p.next.warnings[*key] = warnings
	}
}

// add adds a service that begins on the line.
func (p *reading) add(service *wire.Encoded, line int, doubts problem.List) {
	p.count++
	p.places[service.Name()] = len(p.catalog.Services)
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
	// Of one owner's services with one fqdn, consumers serve the smallest name. The map
	// holds hashes instead of names, which are cut out of the services for this.
	services := p.catalog.Services
	winners, seed := make(map[uint64]int, len(services)), maphash.MakeSeed()
	key := func(fqdn string) uint64 {
		for hash := maphash.String(seed, fqdn); ; hash++ {
			if i, ok := winners[hash]; !ok || services[i].FQDN() == fqdn {
				return hash
			}
		}
	}
	for i, s := range services {
		hash := key(s.FQDN())
		if winner, ok := winners[hash]; !ok || s.Name() < services[winner].Name() {
			winners[hash] = i
		}
	}
	if len(winners) == len(services) {
		return
	}
	for i, s := range services {
		fqdn := s.FQDN()
		if winner := winners[key(fqdn)]; winner != i {
			p.warn(problem.Problem{
				Line: p.lines[i], Service: federation.Quote(s.Name()), Field: "fqdn",
				Rule: fmt.Sprintf("%s. is also that of service %s, which wins: this one will not be served",
					fqdn, federation.Quote(services[winner].Name())),
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
