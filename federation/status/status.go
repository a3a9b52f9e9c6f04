package status

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// WriteStatus writes a status as text, for whoever is on call: lines of printable ASCII
// of bounded length. It returns the first error of w.
func WriteStatus(w io.Writer, s *Status) error {
	t := &text{now: s.Now}
	program := "CoreDNS with federation"
	if s.Role == Owner {
		program = "federationctl serve"
	}
	t.addf(0, "%s %s, running %s", program, plain(s.Version), t.since(s.Began))
	if s.Ready {
		t.addf(0, "ready")
	} else {
		t.addf(0, "not ready")
	}
	for _, reason := range s.Waiting[:min(len(s.Waiting), maxShown)] {
		t.addf(1, "waiting for: %s", plain(reason))
	}
	t.more(1, len(s.Waiting), "reasons")
	for i := range s.Zones {
		z := &s.Zones[i]
		t.addf(0, "zone %s%s, in %s, owners: %s", word(z.Name), serial(z.Serial), words(z.Servers), words(z.Owners))
	}
	for i := range s.Owners {
		t.addf(0, "")
		t.followed(0, "owner "+word(s.Owners[i].ID), &s.Owners[i])
	}
	if s.Publisher != nil {
		t.publisher(s.Publisher)
	}
	for i := range s.Catalogs {
		t.addf(0, "")
		t.catalog(&s.Catalogs[i])
	}
	_, err := io.WriteString(w, strings.Join(t.lines, "\n")+"\n")
	return err //nolint:wrapcheck // of the caller's own writer
}

// followed adds an owner that is followed.
func (t *text) followed(depth int, name string, u *FollowedOwner) {
	s := fmt.Sprintf("%s: %s", name, word(u.State))
	if !u.Since.IsZero() {
		s += " " + t.since(u.Since)
	}
	t.addf(depth, "%s", s)
	depth++
	if u.Failure != "" {
		t.addf(depth, "no stream: %s%s", plain(u.Failure), t.next(u.NextAttempt))
	}
	if u.Remedy != "" {
		t.addf(depth, "to do: %s", plain(u.Remedy))
	}
	if !u.Lost.IsZero() {
		s := "lost " + t.since(u.Lost) + ", retention " + word(u.Retention)
		if u.Expires.IsZero() {
			t.addf(depth, "%s", s)
		} else {
			t.addf(depth, "%s: its records go %s", s, t.at(u.Expires))
		}
	}
	if u.State != "synced" && !u.LastAttempt.IsZero() {
		t.addf(depth, "last attempt %s", t.at(u.LastAttempt))
	}
	if !u.LastSync.IsZero() {
		t.addf(depth, "catalog last complete %s", t.at(u.LastSync))
	} else if !u.Known {
		t.addf(depth, "its catalog was never complete")
	}
	if u.Damage != "" {
		t.addf(depth, "restored in part only, as a name that is missing may exist: %s", plain(u.Damage))
	}
	t.addf(depth, "%s", holds(u))
	t.addf(depth, "updates: %s", t.rate(u.Updates))
	if u.Stale > 0 {
		t.addf(depth, "stale: %s, %d of them held as a complete catalog has left out too much", count(u.Stale, "service"), u.Held)
	}
	if u.NotAdmitted > 0 {
		t.addf(depth, "refused: the newest version of %s", count(u.NotAdmitted, "service"))
	}
	if u.NotImported > 0 {
		t.addf(depth, "not imported (import_names, import_labels): %s", count(u.NotImported, "service"))
	}
	if len(u.Conflicts) > 0 {
		t.addf(depth, "conflicts, which are not published: %s", counts(u.Conflicts))
	}
	t.certificate(depth, u.Certificate, u.Authority)
	t.refused(depth, " here", u.Refusals)
}

// holds says what the catalog of an owner that is followed has.
func holds(u *FollowedOwner) string {
	s := fmt.Sprintf("%s, %s, %s", count(u.Services, "service"), count(u.Instances, "instance"), Octets(u.Octets))
	if u.Hops > 0 {
		s += ", through " + count(u.Hops, "owner")
	}
	if u.Path != "" {
		s += fmt.Sprintf(" (%s)", plain(u.Path))
	}
	if u.Resumes > 0 {
		s += fmt.Sprintf(", resumed %d times", u.Resumes)
	}
	return s
}

// certificate adds when a certificate and what it is verified with expire, where they
// are known.
func (t *text) certificate(depth int, certificate, authority time.Time) {
	if !certificate.IsZero() {
		t.addf(depth, "certificate: expires %s", t.at(certificate))
	}
	if !authority.IsZero() {
		t.addf(depth, "CA: the next one expires %s", t.at(authority))
	}
}

// publisher adds what there is to say of an owner as a whole.
func (t *text) publisher(p *Publisher) {
	t.addf(0, "listening on %s, connections: %d", word(p.Listen), p.Connections)
	t.certificate(0, p.Certificate, p.Authority)
	if p.Config != "" {
		s := "configuration: " + plain(p.Config)
		if !p.Applied.IsZero() {
			s += ", in effect " + t.since(p.Applied)
		}
		t.addf(0, "%s", s)
	}
	if len(p.Restart) > 0 {
		t.addf(0, "new values wait for a restart: %s", words(p.Restart))
	}
	for i, file := range slices.Sorted(maps.Keys(p.Broken)) {
		if i == maxShown {
			t.more(0, len(p.Broken), "broken files")
			break
		}
		t.addf(0, "broken: %s: %s", plain(file), plain(p.Broken[file]))
	}
	for i := range p.TurnedAway[:min(len(p.TurnedAway), maxTurnedAway)] {
		t.turnedAway(&p.TurnedAway[i])
	}
}

// maxTurnedAway bounds the peers that are shown: more than an owner remembers.
const maxTurnedAway = 100

// turnedAway adds a peer that was not let in.
func (t *text) turnedAway(p *TurnedAway) {
	who := word(p.Role) + " at " + word(p.Address)
	if p.Identities != "" {
		who += ", whose certificate names " + plain(p.Identities)
	}
	times := ""
	if p.Times > 1 {
		times = fmt.Sprintf(", %d times", p.Times)
	}
	t.addf(0, "turned away %s%s: %s: %s", t.at(p.At), times, who, plain(p.Rule))
}

// catalog adds a catalog that an owner publishes.
func (t *text) catalog(c *Catalog) {
	consumers := "none"
	if len(c.Consumers) > 0 {
		consumers = counts(c.Consumers)
	}
	t.addf(0, "catalog %s: %s, consumers: %s", catalogName(c.Name), count(c.Services, "service"), consumers)
	if c.Unavailable != "" {
		t.addf(1, "unavailable: %s", plain(c.Unavailable))
	}
	if len(c.Withheld) > 0 {
		t.addf(1, "services withheld: %s", counts(c.Withheld))
	}
	for _, class := range c.Classes[:min(len(c.Classes), maxShown)] {
		t.addf(1, "class %s: %s, %s", word(class.Name), count(class.Consumers, "consumer"), count(class.Services, "service"))
	}
	t.more(1, len(c.Classes), "classes")
	if c.Unsent > 0 || c.InFlight > 0 {
		s := fmt.Sprintf("behind: %s to be sent, %s not acknowledged", count(c.Unsent, "service"), count(c.InFlight, "response"))
		if !c.Oldest.IsZero() {
			s += ", the oldest change " + t.at(c.Oldest)
		}
		t.addf(1, "%s", s)
	}
	t.addf(1, "changes: %s", t.rate(c.Updates))
	t.refused(1, "", c.Refusals)
	for i := range c.Sources {
		t.source(1, &c.Sources[i])
	}
}

// source adds what fills a catalog.
func (t *text) source(depth int, s *Source) {
	state := word(s.State)
	switch {
	case s.State == "away" && !s.Since.IsZero():
		state += " " + t.since(s.Since)
	case s.State == "waiting":
		state = "waiting for its first state"
	}
	switch {
	case !s.Published:
		state += ", not published yet"
	case s.Leaving:
		state += ", published until the next configuration is complete"
	}
	line := fmt.Sprintf("source %s: %s, %s", plain(s.Name), state, count(s.Services, "service"))
	if s.Hidden > 0 {
		line += fmt.Sprintf(", %d hidden by sources before it", s.Hidden)
	}
	if len(s.Refused) > 0 {
		line += ", refused: " + counts(s.Refused)
	}
	t.addf(depth, "%s", line)
	if s.Held > 0 {
		line := fmt.Sprintf("held: %s that its origin has no more, which are too many at once; 'federationctl confirm' withdraws them", count(s.Held, "service"))
		if !s.Release.IsZero() {
			line += ", and else the first of them go " + t.at(s.Release)
		}
		t.addf(depth+1, "%s", line)
	}
	if s.Away != "" {
		line := plain(s.Away)
		switch {
		case s.State == "lapsed":
			line += "; its services are withdrawn, as it has been away for its lifetime, " + word(s.Lifetime)
		case s.Lifetime != "":
			line += "; its services go when it has been away for its lifetime, " + word(s.Lifetime)
		}
		t.addf(depth+1, "%s", line)
	}
	if s.Registration != nil {
		t.registration(depth+1, s.Registration)
	}
	if s.Relay != nil {
		t.followed(depth+1, "follows "+word(s.Relay.ID), s.Relay)
	}
}

// registration adds what there is to say of a source in which programs register.
func (t *text) registration(depth int, r *Registration) {
	line := fmt.Sprintf("registered on %s: %s, %s", word(r.Address), count(r.Nodes, "node"), count(r.Providers, "provider"))
	if r.Old > 0 {
		line += fmt.Sprintf(", %s whose providers are not back yet", count(r.Old, "node"))
	}
	if r.Pending > 0 {
		line += fmt.Sprintf(", %s not stored yet", count(r.Pending, "change"))
	}
	if r.Convergence > 0 {
		line += fmt.Sprintf(", converging for another %.0f s", r.Convergence)
	}
	if r.StoreAway {
		line += ", the store is away"
	}
	t.addf(depth, "%s", line)
}
