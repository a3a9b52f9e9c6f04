package inspect

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/federation/status"
)

// Filter says which services are meant: those that all of its parts match. The zero value
// means all.
type Filter struct {
	pattern *regexp.Regexp // of a name or an fqdn
	labels  []pattern.Label
	address string
}

// NewFilter returns a filter. Part is a part of the name or the fqdn or, if it has a
// *, all of it, in any case; labels are KEY=VALUE, or KEY=* for any value; the address is an
// IP address or a host name. What is empty matches everything.
func NewFilter(part string, labels []string, address string) (*Filter, error) {
	f := new(Filter)
	if part != "" {
		parts := strings.Split(strings.TrimSuffix(part, "."), "*")
		for i, text := range parts {
			parts[i] = regexp.QuoteMeta(text)
		}
		text := strings.Join(parts, ".*")
		if len(parts) > 1 {
			text = "^" + text + "$"
		}
		var err error
		if f.pattern, err = regexp.Compile("(?is)" + text); err != nil {
			return nil, fmt.Errorf("%s is no pattern: %w", federation.Quote(part), err)
		}
	}
	for _, label := range labels {
		l, err := pattern.ParseLabel(label)
		if err != nil {
			return nil, fmt.Errorf("--label: %s is not KEY=VALUE; KEY=* is any value", federation.Quote(label))
		}
		f.labels = append(f.labels, l)
	}
	if address != "" {
		parsed, err := federation.ParseAddress(address)
		if err != nil {
			return nil, fmt.Errorf("--address: %w", err)
		}
		f.address = parsed.String()
	}
	return f, nil
}

// Matches reports whether a service is meant.
func (f *Filter) Matches(s *federation.Service) bool {
	if f.pattern != nil && !f.pattern.MatchString(s.Name) && !f.pattern.MatchString(strings.TrimSuffix(s.FQDN.String(), ".")) {
		return false
	}
	if slices.ContainsFunc(f.labels, func(l pattern.Label) bool { return !l.Matches(s.Labels) }) {
		return false
	}
	return f.address == "" || slices.ContainsFunc(s.Endpoints, f.leads)
}

// leads reports whether an endpoint has the address.
func (f *Filter) leads(e federation.Endpoint) bool { return e.Address.String() == f.address }

// Found is a service of a catalog.
type Found struct {
	Of string `json:"of"` // the owner that is followed, or the server name of the catalog

	status.Service

	Decoded *federation.Service `json:"-"`
}

// Names returns the names of the catalogs to look in: of, or all if it is empty.
func (e *Endpoint) Names(ctx context.Context, of string) ([]string, error) {
	if of != "" {
		return []string{of}, nil
	}
	names, err := e.catalogs(ctx)
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("%s has no catalog", e)
	}
	return names, err
}

// Find calls each with the services of a catalog that a filter means, in the order of their
// names. It returns how many the catalog has.
func (e *Endpoint) Find(ctx context.Context, of string, filter *Filter, each func(*Found) error) (total int, err error) {
	err = e.services(ctx, of, math.MaxInt64-1, func(s *status.Service) error {
		total++
		catalog, err := parse(s.Service)
		if err == nil && len(catalog.services) != 1 {
			err = errors.New("a line has several")
		}
		if err != nil {
			return fmt.Errorf("%s has services that this version does not know: %w", e, err)
		}
		if found := (Found{of, *s, catalog.services[0].Service()}); filter.Matches(found.Decoded) {
			return each(&found)
		}
		return nil
	})
	return total, err
}

// catalogName returns the name of a catalog as a reader knows it.
func catalogName(of string) string {
	if of == "" {
		return "(default)"
	}
	return plain(of)
}

// FQDN returns the fqdn as other commands take it.
func (f *Found) FQDN() string { return strings.TrimSuffix(f.Decoded.FQDN.String(), ".") }

// Cells returns the service as cells of a table: name, fqdn, state and endpoints, and before
// them the catalog if it is wanted.
func (f *Found) Cells(withOf bool) []string {
	name, fqdn, _, _ := printable.Cells(f.Decoded)
	state := "live"
	if f.Stale {
		state = "stale"
	}
	const most = 8
	cells := []string{name, fqdn, state, printable.Few(f.Decoded.Endpoints, most, ", ", printable.Place)}
	if withOf {
		cells = append([]string{catalogName(f.Of)}, cells...)
	}
	return cells
}

// Lead is a name that leads to an address.
type Lead struct {
	Name    string   `json:"name"`
	Of      string   `json:"of"`      // the owner that is followed, or the server name of the catalog
	Service string   `json:"service"` // its name
	Ports   []uint16 `json:"ports"`
	Answer  string   `json:"answer,omitempty"` // of a consumer: live or stale, or why the name is answered otherwise
}

// mostAsked is how many names a consumer is asked about one after the other.
const mostAsked = 200

// Leads returns the names that lead to an IP address: of services, and of their instances. A
// consumer says of each, up to a bound, whether it is answered with the address.
func (e *Endpoint) Leads(ctx context.Context, ip netip.Addr) ([]Lead, error) {
	filter, err := NewFilter("", nil, ip.String())
	if err != nil {
		return nil, err
	}
	reported, _, err := e.Status(ctx)
	if err != nil {
		return nil, err
	}
	names, err := e.Names(ctx, "")
	if err != nil {
		return nil, err
	}
	var leads []Lead
	for _, of := range names {
		if _, err := e.Find(ctx, of, filter, func(found *Found) error {
			leads = append(leads, filter.lead(found)...)
			return nil
		}); err != nil {
			return nil, err
		}
	}
	if reported.Role != status.Consumer {
		return leads, nil
	}
	for i := range leads {
		if leads[i].Answer = "not asked"; i >= mostAsked {
			continue
		}
		if leads[i].Answer, err = e.answer(ctx, leads[i].Name, ip); err != nil {
			return nil, err
		}
	}
	return leads, nil
}

// lead returns the names of a service that lead to the address of the filter.
func (f *Filter) lead(s *Found) (leads []Lead) {
	add := func(name string, reached func(federation.Endpoint) bool) {
		lead := Lead{Name: name, Of: s.Of, Service: s.Name}
		for _, e := range s.Decoded.Endpoints {
			if f.leads(e) && reached(e) && !slices.Contains(lead.Ports, e.Port) {
				lead.Ports = append(lead.Ports, e.Port)
			}
		}
		if len(lead.Ports) > 0 {
			leads = append(leads, lead)
		}
	}
	add(s.FQDN(), func(federation.Endpoint) bool { return true })
	for _, in := range s.Decoded.Instances {
		label, err := federation.ParseLabel(in.ID)
		if in.Unnamed || err != nil {
			continue // it has no name of its own
		}
		chosen := slices.ContainsFunc(s.Decoded.Endpoints, func(e federation.Endpoint) bool { return in.Selects(e.Labels) })
		add(label.String()+"."+s.FQDN(), func(e federation.Endpoint) bool { return !chosen || in.Selects(e.Labels) })
	}
	return leads
}

// answer says whether a consumer answers a name with an address.
func (e *Endpoint) answer(ctx context.Context, name string, ip netip.Addr) (string, error) {
	qtype := "A"
	if ip.Is6() {
		qtype = "AAAA"
	}
	why, _, err := e.Why(ctx, name+".", qtype)
	if err != nil {
		return "", err
	}
	said := "no zone has it"
	for i := range why.Answers {
		a := &why.Answers[i]
		if slices.ContainsFunc(a.Records, func(record string) bool {
			fields := strings.Fields(record)
			return len(fields) > 0 && fields[len(fields)-1] == ip.String()
		}) {
			return plain(string(a.Verdict)), nil
		}
		said = "other addresses"
		if a.Rcode != "NOERROR" || len(a.Records) == 0 {
			said = plain(a.Rcode) + ", " + plain(string(a.Verdict))
		}
	}
	return said, nil
}

// Cells returns the lead as cells of a table: name, catalog, service, ports and the answer.
func (l *Lead) Cells() []string {
	const most = 8
	ports := printable.Few(l.Ports, most, ",", func(p uint16) string { return strconv.Itoa(int(p)) })
	return []string{plain(l.Name), catalogName(l.Of), printable.Text(l.Service), ports, l.Answer}
}
