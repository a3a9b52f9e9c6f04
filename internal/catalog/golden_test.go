package catalog_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

var update = flag.Bool("update", false, "rewrite the transcripts in testdata; read the difference before you keep it")

// TestTranscripts plays every file of testdata. A line is a comment (#), or empty, or
// a command with the time at which it is given. Indented lines are the output of the
// command above: its error, the changes, and the status and the deadline where they
// differ from before. Times count from the first command.
//
//	0s config retention=60s settle=5s max=0 octets=0 zones=example. import=example.  (a new catalog, then SetRules)
//	0s open | marked | alive | end | lost | advance | snapshot | renew
//	0s up NAME... [fqdn=NAME] [port=N] [instances=N] [text=N] [id=ID]   (s1..s9 is nine names)
//	0s delete NAME... | delete-id ID... | refused NAME... [id=ID]
//	0s restore NAME... up=-10s
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want := must.Get(os.ReadFile(file))(t)
			got := play(t, string(want))
			if *update {
				must.Do(t, os.WriteFile(file, []byte(got), 0o644))
				return
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", file, diff)
			}
		})
	}
}

const indent = "    "

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// play returns the transcript with the present output of its commands.
func play(t *testing.T, transcript string) string {
	t.Helper()
	var p player
	var out strings.Builder
	for line := range strings.Lines(transcript) {
		if strings.HasPrefix(line, indent) {
			continue
		}
		out.WriteString(line)
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		for _, l := range p.play(t, line) {
			out.WriteString(indent + l + "\n")
		}
	}
	return out.String()
}

type player struct {
	catalog  *catalog.Catalog
	config   catalog.Rules
	imports  []federation.FQDN
	zones    string
	status   string // as last shown
	deadline string
}

func (p *player) play(t *testing.T, line string) (output []string) {
	t.Helper()
	fields := strings.Fields(line)
	now := epoch.Add(duration(t, fields[0]))
	names, options := arguments(t, fields[2:])
	command := fields[1]
	if p.catalog == nil && command != "config" {
		t.Fatalf("%q: the first command is config", line)
	}
	c := p.catalog
	show := func(name string, err error) {
		if err != nil {
			output = append(output, "! "+name+": "+err.Error())
		}
	}
	switch command {
	case "config":
		p.configure(t, options)
		if c == nil {
			p.catalog = catalog.New(p.config)
		} else {
			c.SetRules(p.config, now)
		}
		c = p.catalog
	case "open":
		c.OpenStream(now)
	case "marked":
		c.ExpectEndMarker()
	case "lost":
		since := now
		if already, ok := options["already"]; ok {
			since = now.Add(-must.Get(time.ParseDuration(already))(t))
		}
		c.EndStream(since, now)
	case "advance":
		c.AdvanceTo(now)
	case "alive":
		show("alive", c.ApplyEvent(wire.Event{Operation: wire.Alive}, now))
	case "end":
		show("end", c.ApplyEvent(wire.Event{Operation: wire.End}, now))
	case "up":
		for _, name := range names {
			s := service(t, name, options)
			show(name, c.ApplyEvent(wire.Event{Operation: wire.Upsert, Name: name, ID: options["id"], Service: s}, now))
		}
	case "delete", "delete-id":
		for _, name := range names {
			ev := wire.Event{Operation: wire.Delete, Name: name}
			if command == "delete-id" {
				ev.ID = name
			}
			show(name, c.ApplyEvent(ev, now))
		}
	case "refused":
		for _, name := range names {
			c.NoteRefusal(name, options["id"], now)
		}
	case "restore":
		services := make([]packed.Service, len(names))
		for i, name := range names {
			services[i] = packed.PackService(service(t, name, nil))
		}
		output = append(output, fmt.Sprintf("restored: %v", restore(c, services, epoch.Add(duration(t, options["up"])), now)))
	case "snapshot":
		services, lastUp, ok := c.Snapshot(now)
		if !ok {
			output = append(output, "nothing to keep")
			break
		}
		kept := make([]string, len(services))
		for i, s := range services {
			kept[i] = s.Name()
		}
		slices.Sort(kept)
		output = append(output, fmt.Sprintf("keep %s, last up %s", strings.Join(kept, " "), offset(lastUp)))
	default:
		t.Fatalf("%q: unknown command", line)
	}
	output = append(output, changes(c.TakeChanges())...)
	if s := status(c.Summary(), c.HasFreedRoom()); s != p.status {
		p.status = s
		output = append(output, s)
	}
	deadline := "no deadline"
	if at, ok := c.NextDeadline(); ok {
		deadline = "deadline " + offset(at)
	}
	if deadline != p.deadline {
		p.deadline = deadline
		output = append(output, deadline)
	}
	return output
}

// restore fills a new catalog with the services of a snapshot, and reports whether it did.
func restore(c *catalog.Catalog, services []packed.Service, lastUp, now time.Time) bool {
	if !c.BeginRestore(lastUp, now) {
		return false
	}
	c.RestoreMore(services)
	c.EndRestore(true)
	return true
}

// configure changes the given options and keeps the others.
func (p *player) configure(t *testing.T, options map[string]string) {
	t.Helper()
	for key, value := range options {
		switch key {
		case "retention":
			p.config.Retention = duration(t, value)
		case "settle":
			p.config.Settle = duration(t, value)
		case "zones":
			p.zones = value
		case "import":
			p.imports = names(t, value)
		case "octets":
			p.config.MaxCatalog = int64(number(t, value))
		default:
			t.Fatalf("unknown option %s", key)
		}
	}
	imports, zones, within := p.imports, names(t, p.zones), p.zones
	p.config.Admit = func(s *federation.Service) *federation.InvalidError {
		switch {
		case len(imports) > 0 && !slices.ContainsFunc(imports, s.FQDN.Within):
			return catalog.ErrNotImported
		case len(zones) > 0 && !slices.ContainsFunc(zones, s.FQDN.Within):
			return &federation.InvalidError{Reason: federation.ReasonOutOfZone, Rule: s.FQDN.String() + " is outside of " + within}
		}
		return nil
	}
}

// names returns the names of a list with commas.
func names(t *testing.T, list string) (all []federation.FQDN) {
	t.Helper()
	if list == "" {
		return nil
	}
	for name := range strings.SplitSeq(list, ",") {
		all = append(all, services.FQDN(name))
	}
	return all
}

// changes shows what changed. A sweep has no order, so the changes are sorted by name.
// Those of one name keep their order.
func changes(list []catalog.Change) (lines []string) {
	slices.SortStableFunc(list, func(a, b catalog.Change) int { return strings.Compare(a.Name, b.Name) })
	for _, c := range list {
		if c.Kind() == catalog.Gone {
			lines = append(lines, "- "+c.Name)
			continue
		}
		s := c.Packed.Unpack()
		e := s.Endpoints[0]
		lines = append(lines, fmt.Sprintf("+ %s %s :%d generation %d", c.Name, s.FQDN, e.Port, c.Generation))
	}
	return lines
}

// status shows the fields that are not zero.
func status(s catalog.Summary, wanting bool) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s live=%d", s.State, s.Live)
	for _, f := range []struct {
		name  string
		value int
	}{{"services", s.Services}, {"instances", s.Instances}, {"stale", s.Stale}, {"paused", s.Paused}, {"refused", s.Refused}, {"not-imported", s.NotImported}} {
		if f.value != 0 && (f.name != "instances" || f.value != s.Services) {
			fmt.Fprintf(&out, " %s=%d", f.name, f.value)
		}
	}
	for _, f := range []struct {
		name  string
		value time.Time
	}{{"lost", s.Lost}, {"soonest", soonest(s)}, {"expires", s.Expires}, {"sync", s.LastSync}} {
		if !f.value.IsZero() {
			fmt.Fprintf(&out, " %s=%s", f.name, offset(f.value))
		}
	}
	if !s.Known {
		out.WriteString(" unknown")
	}
	if wanting {
		out.WriteString(" wanting")
	}
	return out.String()
}

// soonest returns Summary.Soonest, or zero where it is no other time than Expires.
func soonest(s catalog.Summary) time.Time {
	if s.Soonest.Equal(s.Expires) {
		return time.Time{}
	}
	return s.Soonest
}

// service returns a service with the fqdn <name>.example., unless the options
// say otherwise.
func service(t *testing.T, name string, options map[string]string) *federation.Service {
	t.Helper()
	s := &federation.Service{Name: name, FQDN: services.FQDN(name + ".example")}
	endpoint := federation.Endpoint{Address: address(t, "192.0.2.1"), Port: 80}
	instances := 1
	for key, value := range options {
		switch key {
		case "fqdn":
			s.FQDN = services.FQDN(value)
		case "id":
		case "text":
			s.Description = strings.Repeat("x", number(t, value))
		case "port":
			endpoint.Port = uint16(number(t, value))
		case "instances":
			instances = number(t, value)
		default:
			t.Fatalf("unknown option %s", key)
		}
	}
	s.Endpoints = []federation.Endpoint{endpoint}
	for i := range instances {
		s.Instances = append(s.Instances, federation.Instance{ID: strconv.Itoa(i), Protocol: federation.HTTP})
	}
	return s
}

// arguments returns the names, with a..b as each name from a to b, and the options.
func arguments(t *testing.T, fields []string) (names []string, options map[string]string) {
	t.Helper()
	options = make(map[string]string)
	for _, f := range fields {
		if key, value, ok := strings.Cut(f, "="); ok {
			options[key] = value
			continue
		}
		first, last, ok := strings.Cut(f, "..")
		if !ok {
			names = append(names, f)
			continue
		}
		prefix := strings.TrimRight(first, "0123456789")
		from, to := number(t, strings.TrimPrefix(first, prefix)), number(t, strings.TrimPrefix(last, prefix))
		for i := from; i <= to; i++ {
			names = append(names, fmt.Sprintf("%s%0*d", prefix, len(first)-len(prefix), i))
		}
	}
	return names, options
}

func offset(t time.Time) string { return t.Sub(epoch).String() }

func duration(t *testing.T, s string) time.Duration {
	t.Helper()
	if s == "forever" {
		return catalog.Forever
	}
	return must.Get(time.ParseDuration(s))(t)
}

func number(t *testing.T, s string) int {
	t.Helper()
	return must.Get(strconv.Atoi(s))(t)
}

func address(tb testing.TB, s string) federation.Address {
	tb.Helper()
	return must.Get(federation.ParseAddress(s))(tb)
}
