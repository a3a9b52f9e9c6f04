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

	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/source/file/internal/catalogentry"
	"github.com/hamlet-federation/coredns-federation/internal/source/internal/claim"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

// knownService is a service of the last version without problems.
type knownService struct {
	service  *wire.EncodedService
	doubtful bool // whether there are warnings of it, which depend on its lines
}

// knownServices are services by the hash of their JSON. The hash is cryptographic, so that nobody
// can write two services with one hash.
type knownServices map[[sha256.Size]byte]knownService

// Reader reads the versions of one catalog file, one after the other. It remembers the services of
// the last version without problems: where one service of a million was edited, it decodes that
// one, and takes the others as they were. It remembers one version only, and belongs to one
// goroutine.
type Reader struct {
	policy wire.AddressPolicy
	known  knownServices
}

// NewReader returns a Reader that checks each service as a consumer with that policy
// would.
func NewReader(policy wire.AddressPolicy) *Reader { return &Reader{policy: policy} }

// Read returns the catalog of a version of the file, which has about size bytes. It calls check
// before each service. It fails only with the error of check or of source.
func (r *Reader) Read(source io.Reader, size int64, check func() error) (Catalog, error) {
	p := newVersionReader(r, check)
	text := bufio.NewReaderSize(source, bufferBytes)
	start, err := text.Peek(startBytes)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
	case isLines(start):
		err = p.readJSONLines(text)
	default:
		err = p.readWhole(text, size, bytes.HasPrefix(bytes.TrimSpace(start), []byte("{")))
	}
	catalog, err := p.finishCatalog(err)
	if err == nil && len(catalog.Problems) == 0 {
		r.known = p.next
	}
	return catalog, err
}

const (
	bufferBytes = 64 << 10
	startBytes  = 4 << 10 // enough to tell the form of a file
)

// readWhole reads a catalog that is one value, in JSON or in YAML, after it is all in memory. Only
// JSON may have more than MaxYAML bytes.
func (p *versionReader) readWhole(source io.Reader, size int64, mayBeJSON bool) error {
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
		return p.readJSON(text.Bytes())
	}
	return p.readYAML(text.Bytes())
}

// versionReader reads one version of a file. It collects the services, the problems and the
// warnings of the version, and the known services for the next version. It does not change the
// Reader: Read does that when the version has no problems.
type versionReader struct {
	*Reader

	check   func() error
	catalog Catalog
	lines   []int          // on which the services of catalog begin
	places  map[string]int // of the services in catalog, by name
	count   int            // services seen so far, wrong ones included
	next    knownServices  // for the next version
}

func newVersionReader(r *Reader, check func() error) *versionReader {
	n := len(r.known)
	return &versionReader{
		Reader: r, check: check, catalog: Catalog{Services: make([]*wire.EncodedService, 0, n)},
		lines: make([]int, 0, n), places: make(map[string]int, n),
		next: make(knownServices, n),
	}
}

// unreadableError is the problem of a file of which nothing can be used.
type unreadableError problem.Problem

func (u unreadableError) Error() string { return problem.Problem(u).String() }

// finishCatalog returns the catalog of the file, with the problem in err if reading ended with an
// unreadableError. It returns any other err.
func (p *versionReader) finishCatalog(err error) (Catalog, error) {
	if u, ok := errors.AsType[unreadableError](err); ok {
		u.Rule = safetext.Printable(u.Rule)
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

// mustStop reports whether reading ends before the next service, and returns the error of check, if
// any.
func (p *versionReader) mustStop() (bool, error) {
	err := p.check()
	return err != nil || p.catalog.MoreProblems > maxCounted, err
}

// addService adds the service of an entry, or its problems.
func (p *versionReader) addService(e *catalogentry.Entry) {
	found, doubts := problem.List{Room: problem.Room - len(p.catalog.Problems)}, problem.List{Room: problem.Room}
	key := sha256.Sum256(e.JSON())
	known, ok := p.known[key]
	if !ok {
		if service := e.DecodeService(placeName(p.count), p.policy, &found); service != nil {
			e.AddWarnings(service, &doubts)
			encoded, _ := wire.NewEncoded(service) // it was decoded, and so is valid
			known = knownService{encoded, len(doubts.Kept) > 0}
		}
	} else if known.doubtful {
		e.AddWarnings(known.service.Service(), &doubts)
	}
	if known.service != nil {
		if first, twice := p.places[known.service.Name()]; twice {
			found.Add(problem.Problem{
				Line: e.LineOf("name"), Service: safetext.Quote(known.service.Name()), Field: "name",
				Rule: fmt.Sprintf("the service on line %d has the same name; a name stands for one service", p.lines[first]),
			})
		}
	}
	p.count++
	for i := range found.Kept {
		found.Kept[i].Rule = safetext.Printable(found.Kept[i].Rule)
	}
	p.addProblems(found)
	if len(found.Kept)+found.More > 0 {
		return
	}
	p.next[key] = known
	p.places[known.service.Name()] = len(p.catalog.Services)
	p.lines = append(p.lines, e.LineOf(""))
	p.catalog.Services = append(p.catalog.Services, known.service)
	for _, w := range doubts.Kept {
		p.addWarning(w)
	}
	p.catalog.MoreWarnings += doubts.More
}

// addProblems adds the problems in found.
func (p *versionReader) addProblems(found problem.List) {
	p.catalog.Problems = append(p.catalog.Problems, found.Kept...)
	p.catalog.MoreProblems += found.More
}

// addWarning adds a warning, or counts it when there is no room.
func (p *versionReader) addWarning(warning problem.Problem) {
	if len(p.catalog.Warnings) < problem.Room {
		p.catalog.Warnings = append(p.catalog.Warnings, warning)
	} else {
		p.catalog.MoreWarnings++
	}
}

// warnSharedNames adds a warning for each service whose fqdn another service has, and a problem for
// each fqdn of more services than consumers accept.
func (p *versionReader) warnSharedNames() {
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
			p.addWarning(problem.Problem{
				Line: p.lines[i], Service: safetext.Quote(s.Name()), Field: "fqdn",
				Rule: fmt.Sprintf("%s. is also the fqdn of service %s, which wins: consumers will not answer this one",
					s.FQDN(), safetext.Quote(winner)),
			})
			if counts[s.FQDN()]++; counts[s.FQDN()] == packed.MaxServicesPerFQDN {
				found.Add(problem.Problem{
					Line: p.lines[i], Service: safetext.Quote(s.Name()), Field: "fqdn",
					Rule: fmt.Sprintf("%s. has more than %d services, which consumers refuse; give them other fqdns", s.FQDN(), packed.MaxServicesPerFQDN),
				})
			}
		}
	}
	p.addProblems(found)
}

// expectServices is the rule that a file breaks when it is no catalog.
const expectServices = "the file must hold a mapping with the one key services; an empty catalog is 'services: []'"

// placeName returns what problems call a service that has no name.
func placeName(i int) string { return fmt.Sprintf("services[%d]", i) }

// tooLarge returns the entry for a service of so many bytes.
func tooLarge(line, size int) *catalogentry.Entry {
	return catalogentry.NewBroken(line, fmt.Sprintf("has %d bytes, the limit is %d; is the line break before the next one missing?", size, maxPiece))
}
