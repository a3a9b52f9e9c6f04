// Package ownerfiles knows an owner from its files: the configuration, the allow file and
// the catalogs that it would publish. It asks no owner and no cluster.
//
// Only packages of this module import it: it is not a stable API.
package ownerfiles

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls/allowfile"
	"github.com/hamlet-federation/coredns-federation/federation/policy"
	"github.com/hamlet-federation/coredns-federation/federation/source/file/catalogfile"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
)

// Mistake is something that is wrong with a file.
type Mistake struct {
	File string
	problem.Problem
}

// MistakesError has all that is wrong with the files of owners, each once. As an error it
// counts them.
type MistakesError struct{ Found []Mistake }

// Error counts the mistakes.
func (m *MistakesError) Error() string {
	return fmt.Sprintf("problems found: %d; fix them and try again", len(m.Found))
}

// Take adds the mistakes that an error is about, and reports whether it is about
// mistakes, or nil.
func (m *MistakesError) Take(err error) bool {
	more, ok := errors.AsType[*MistakesError](err)
	if ok {
		m.add(more.Found...)
	}
	return ok || err == nil
}

// Err returns nil where there are no mistakes, and otherwise m.
func (m *MistakesError) Err() error {
	if len(m.Found) == 0 {
		return nil
	}
	return m
}

func (m *MistakesError) add(mistakes ...Mistake) {
	for _, one := range mistakes {
		if !slices.Contains(m.Found, one) { // two configurations may name one file
			m.Found = append(m.Found, one)
		}
	}
}

// in notes what is wrong with a file.
func (m *MistakesError) in(file string, problems ...problem.Problem) {
	for _, p := range problems {
		m.add(Mistake{file, p})
	}
}

// Owner is what the configuration file of an owner says.
type Owner struct {
	file     string // as it was named
	config   config.Config
	allowed  []federation.ID // the consumers that may subscribe, in the order of the files, each once
	known    map[federation.ID]bool
	extra    *Extra
	notes    []string
	mistakes MistakesError
}

// Open reads the configuration file of an owner and the allow file that it names. The
// catalogs are read when they are asked for; extra has the services that they cannot
// give, and may be nil. It fails with a [*MistakesError].
func Open(ctx context.Context, opened string, extra *Extra) (*Owner, error) {
	if extra == nil {
		extra = &Extra{}
	}
	o := &Owner{file: opened, extra: extra, known: make(map[federation.ID]bool)}
	data, _, err := file.Read(opened, config.MaxBytes)
	if err != nil {
		o.mistakes.in(opened, problem.Problem{Rule: err.Error()})
		return nil, o.mistakes.Err()
	}
	config, problems := config.Parse(data)
	o.mistakes.in(opened, problems...)
	if len(problems) > 0 {
		return nil, o.mistakes.Err()
	}
	config.In(filepath.Dir(opened))
	o.config = config
	o.allow(o.config.Allow.IDs)
	if path := o.config.Allow.File; path != "" {
		read := allowfile.Config{Path: path, Set: o.allow, Logger: slog.New(slog.DiscardHandler)}
		if _, err := allowfile.Open(ctx, read); err != nil {
			o.mistakes.in(path, problem.Problem{Rule: err.Error()})
		}
	}
	return o, o.mistakes.Err()
}

// allow adds consumers to those that may subscribe.
func (o *Owner) allow(ids []federation.ID) {
	for _, id := range ids {
		if !o.known[id] {
			o.known[id] = true
			o.allowed = append(o.allowed, id)
		}
	}
}

// File returns the configuration file, as it was named.
func (o *Owner) File() string { return o.file }

// Allowed returns the identities of the consumers that may subscribe.
func (o *Owner) Allowed() []federation.ID { return slices.Clone(o.allowed) }

// SPIFFE reports whether the owner gets its identity from a SPIFFE agent. Then host names
// in the certificates of consumers count for nothing.
func (o *Owner) SPIFFE() bool { return o.config.Identity.SPIFFE.Socket != "" }

// Admit returns which of the identities in a certificate count for the owner, and whether
// a consumer with them may subscribe.
func (o *Owner) Admit(ids []federation.ID) (counting []federation.ID, allowed bool) {
	counting = slices.Clone(ids)
	if o.SPIFFE() {
		counting = slices.DeleteFunc(counting, func(id federation.ID) bool { return !id.IsSPIFFE() })
	}
	return counting, slices.ContainsFunc(counting, func(id federation.ID) bool { return o.known[id] })
}

// ServerNames returns the server names of the catalogs, in the order of the file; that
// of the default catalog is empty.
func (o *Owner) ServerNames() []string {
	var names []string
	for _, c := range o.config.Catalogs {
		names = append(names, c.ServerName)
	}
	return names
}

// FQDNs returns those of the services in the catalog with that server name, or none where
// these are not known.
func (o *Owner) FQDNs(serverName string) []string {
	c, err := o.Catalog(serverName)
	if err != nil {
		return nil
	}
	var names []string
	for _, s := range c.Services {
		names = append(names, s.FQDN())
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Has reports whether there is a catalog with that server name.
func (o *Owner) Has(serverName string) bool {
	return slices.Contains(o.ServerNames(), Canonical(serverName))
}

// Notes returns what there is to say of the services that were read so far.
func (o *Owner) Notes() []string { return o.notes }

// Catalog is a catalog of an owner with its services.
type Catalog struct {
	ServerName string
	Policy     *policy.Policy
	Exports    []config.Export // the rules of Policy
	Services   []*Service      // in the order of the sources
}

// Service is one that a source of a catalog has.
type Service struct {
	*wire.Encoded

	Source string // its name
	By     string // the service that stands in its way, and its source; empty when it is published
	Extra  bool   // whether it is one of Extra of which the source is not known
}

// Catalog returns the catalog with that server name, and reads its services. It fails
// with a [*MistakesError], or says what is missing.
func (o *Owner) Catalog(serverName string) (*Catalog, error) {
	serverName = Canonical(serverName)
	names := o.ServerNames()
	i := slices.Index(names, serverName)
	switch {
	case i < 0 && serverName == "":
		return nil, fmt.Errorf("%s has no default catalog; choose one with --server-name: %s", o.file, federation.Printable(strings.Join(names, ", ")))
	case i < 0:
		for i, name := range names {
			names[i] = CatalogName(name)
		}
		return nil, fmt.Errorf("%s has no catalog with the server name %s, only %s", o.file, federation.Printable(serverName), federation.Printable(strings.Join(names, ", ")))
	}
	config := &o.config.Catalogs[i]
	c := &Catalog{ServerName: serverName, Policy: config.Policy, Exports: config.Exports}
	return c, o.read(c, config.Sources)
}

// Canonical returns a server name as a configuration has it.
func Canonical(serverName string) string { return strings.ToLower(strings.TrimSuffix(serverName, ".")) }

// CatalogName returns the server name of a catalog for people.
func CatalogName(serverName string) string {
	if serverName == "" {
		return "the default catalog"
	}
	return serverName
}

// read reads the services of a catalog. As in the owner the first source wins where two
// publish the same.
func (o *Owner) read(c *Catalog, sources []config.Source) error {
	var unread []string
	taken := claims{names: make(map[string]*Service), fqdns: make(map[string]*Service)}
	left := o.extra.services
	for i := range sources {
		s := &sources[i]
		var found []*wire.Encoded
		if s.File != nil {
			data, _, err := file.Read(s.File.Path, s.File.MaxSize)
			if errors.Is(err, fs.ErrNotExist) {
				unread = append(unread, fmt.Sprintf("%s (%v)", s.Name, err))
				continue
			}
			found = o.parse(s.File.Path, data, err, wire.Policy{AllowAddresses: o.config.AllowAddresses})
		} else {
			unread = append(unread, s.Name)
			found, left = o.extra.of(s, left)
			if len(found) == 0 && o.extra.given {
				o.notes = append(o.notes, "--catalog has no service of "+s.Name)
			}
		}
		c.Services = taken.add(c.Services, s.Name, found, false)
	}
	if len(o.mistakes.Found) > 0 {
		return o.mistakes.Err()
	}
	if len(unread) > 0 && !o.extra.given {
		return fmt.Errorf("the services of %s are not known here; give --catalog, a file with them", federation.Printable(strings.Join(unread, ", ")))
	}
	c.Services = taken.add(c.Services, "--catalog", left, true)
	return nil
}

// parse reads the services of a catalog file, and notes what is wrong with it.
func (o *Owner) parse(file string, data []byte, err error, addresses wire.Policy) []*wire.Encoded {
	if err != nil {
		o.mistakes.in(file, problem.Problem{Rule: err.Error()})
		return nil
	}
	services, problems := parse(data, addresses)
	o.mistakes.in(file, problems...)
	return services
}

// parse reads the services of a catalog file, or what is wrong with it.
func parse(data []byte, addresses wire.Policy) ([]*wire.Encoded, []problem.Problem) {
	parsed := catalogfile.Parse(data, addresses)
	problems := parsed.Problems
	if parsed.MoreProblems > 0 {
		problems = append(problems, problem.Problem{Rule: fmt.Sprintf("and at least %d more", parsed.MoreProblems)})
	}
	return parsed.Services, problems
}

// claims are the names and fqdns of services that are published.
type claims struct{ names, fqdns map[string]*Service }

// add appends the services of a source, which stands after those that were added
// before. A service whose name or fqdn one of these has is not published.
func (c claims) add(to []*Service, source string, services []*wire.Encoded, extra bool) []*Service {
	first := len(to)
	for _, encoded := range services {
		s := &Service{Encoded: encoded, Source: source, Extra: extra}
		for _, other := range []*Service{c.names[s.Name()], c.fqdns[s.FQDN()]} {
			if other != nil && s.By == "" {
				s.By = fmt.Sprintf("service %s of %s", federation.Quote(other.Name()), federation.Printable(other.Source))
			}
		}
		to = append(to, s)
	}
	for _, s := range to[first:] {
		if s.By == "" {
			c.names[s.Name()], c.fqdns[s.FQDN()] = s, s
		}
	}
	return to
}
