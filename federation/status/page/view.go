package page

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/status"
)

// level is how bad something is, and the class of its colours in style.css.
type level string

const (
	ok   level = "ok"
	note level = "note" // something to look at, by day
	warn level = "warn" // answers are right still, and will not stay so
	bad  level = "bad"  // names are missing, or about to go
)

// rank returns the place of a level, ok first.
func (l level) rank() int { return slices.Index([]level{ok, note, warn, bad}, l) }

// Sign is what says the level without a colour.
func (l level) Sign() string {
	return map[level]string{ok: "✓", note: "!", warn: "▲", bad: "✕"}[l]
}

// verdict is how something is, in a word, with sentences that say more.
type verdict struct {
	Level level
	Word  string
	Says  []string
}

// addf makes a verdict as bad as level, and says why.
func (v *verdict) addf(l level, format string, args ...any) {
	if l.rank() > v.Level.rank() {
		v.Level = l
	}
	v.Says = append(v.Says, fmt.Sprintf(format, args...))
}

// moment is a time, as the page shows it.
type moment struct{ Age, UTC, Machine string }

// at returns a moment, which is empty for no time.
func at(now, when time.Time) moment {
	if when.IsZero() {
		return moment{}
	}
	m := moment{UTC: when.UTC().Format("2006-01-02 15:04:05 UTC"), Machine: when.UTC().Format(time.RFC3339)}
	if d := now.Sub(when); d >= 0 {
		m.Age = status.Span(d) + " ago"
	} else {
		m.Age = "in " + status.Span(-d)
	}
	return m
}

// lasting returns a duration of the configuration as status.Span does, and a word as it is.
func lasting(text string) string {
	if d, err := time.ParseDuration(text); err == nil && d >= time.Second {
		return status.Span(d)
	}
	return text
}

// rate is a status.Rate with its moment.
type rate struct {
	Rate status.Rate
	Last moment
}

// refusal is a status.Refusal with its moment.
type refusal struct {
	status.Refusal

	When moment
}

// refusals are what was refused, newest first.
type refusals struct {
	By   string
	List []refusal
}

func newRefusals(now time.Time, by string, list []status.Refusal) refusals {
	r := refusals{By: by}
	for _, one := range list {
		r.List = append(r.List, refusal{one, at(now, one.At)})
	}
	return r
}

// certificate is when the certificate of a side expires, and the next of the authorities
// that it trusts.
type certificate struct {
	Own, Authority           moment
	OwnEnded, AuthorityEnded bool
}

// Alert reports whether one of the two has expired.
func (c *certificate) Alert() bool { return c.OwnEnded || c.AuthorityEnded }

// soon is how long before its end a certificate is to be looked at: one of an agent that
// renews it every hour is always near its end.
const soon = 7 * 24 * time.Hour

// certificate judges when two certificates expire. It returns nil where there are none.
func (v *verdict) certificate(now, own, authority time.Time) *certificate {
	judge := func(what string, when time.Time) {
		switch {
		case when.IsZero():
		case ended(now, when):
			v.addf(bad, "%s has expired.", what)
		case when.Sub(now) < soon:
			v.addf(note, "%s expires in %s.", what, status.Span(when.Sub(now)))
		}
	}
	judge("The certificate of this side", own)
	judge("An authority of the CA", authority)
	if own.IsZero() && authority.IsZero() {
		return nil
	}
	return &certificate{at(now, own), at(now, authority), ended(now, own), ended(now, authority)}
}

func ended(now, when time.Time) bool { return !when.IsZero() && !now.Before(when) }

// ownerView is an owner that is followed.
type ownerView struct {
	status.FollowedOwner
	verdict

	Link                               bool   // to its services
	Of, Token                          string // to try it now; the token is empty where there is nothing to try
	Next                               string // when the next attempt is
	Since, Gone, LastComplete, Attempt moment
	Keeps                              string // the retention
	Left                               string // of the retention; empty while it does not count, and when none is left
	Percent                            int    // of the retention that is left
	Rate                               rate
	Certificate                        *certificate
	RefusalList                        refusals
}

func newOwnerView(now time.Time, u *status.FollowedOwner, link bool) *ownerView {
	v := &ownerView{
		FollowedOwner: *u, verdict: verdict{Level: ok, Word: u.State}, Link: link,
		Since: at(now, u.Since), Gone: at(now, u.Expires), LastComplete: at(now, u.LastSync),
		Keeps: lasting(u.Retention), Rate: rate{u.Updates, at(now, u.Updates.Last)}, RefusalList: newRefusals(now, "here", u.Refusals),
	}
	if u.State != "synced" {
		v.Attempt = at(now, u.LastAttempt)
	}
	v.retention(now)
	v.state()
	if u.Stale > 0 && u.State == "synced" {
		v.addf(warn, "%s did not come again, and are answered until the retention ends.", count(u.Stale, "service"))
	}
	if u.NotAdmitted > 0 {
		v.addf(note, "This side refuses the newest version of %s.", count(u.NotAdmitted, "service"))
	}
	conflicts := 0
	for _, n := range u.Conflicts {
		conflicts += n
	}
	if conflicts > 0 {
		v.addf(note, "Not published, because of conflicts or rules: %s.", number(conflicts))
	}
	v.Certificate = v.certificate(now, u.Certificate, u.Authority)
	if !u.NextAttempt.IsZero() {
		v.Next = status.Next(now, u.NextAttempt)
	}
	return v
}

// mayTry lets readers have an attempt made now where there is no stream.
func (v *ownerView) mayTry(of, token string) {
	if v.Failure != "" {
		v.Of, v.Token = of, token
	}
}

// retention says how much of the retention is left, where it counts.
func (v *ownerView) retention(now time.Time) {
	switch left, whole := v.Expires.Sub(now), v.Expires.Sub(v.Lost); {
	case v.Lost.IsZero() || v.State == "synced":
	case !v.Link && v.Expires.IsZero(): // a relay leaves the retention to its consumers
	case v.Expires.IsZero() && v.Stale > 0:
		v.Left = "no limit"
	case left <= 0: // or there is no stale record
	default:
		v.Left = status.Span(left)
		if whole > 0 {
			v.Percent = max(1, min(100, int(100*left/whole)))
		}
	}
}

// state says what the state of an owner means for its names.
func (v *ownerView) state() {
	if !v.Link {
		v.relayed()
		return
	}
	if v.Damage != "" {
		v.addf(bad, "It was restored in part only, and names that are not known get SERVFAIL until its catalog is complete: %s", v.Damage)
	}
	serves := v.Services > 0
	switch v.State {
	case "synced":
	case "syncing":
		if v.Known {
			v.addf(note, "A stream is open, and its catalog is being compared. What was known before is still answered.")
		} else {
			v.addf(warn, "A stream is open, and its first catalog is not complete yet. Names that are not known yet get SERVFAIL.")
		}
	case "connecting":
		l := warn
		if v.Failure != "" {
			l = bad
		}
		v.addf(l, "There is no stream, and nothing is known of its catalog. Names that only this owner could know get SERVFAIL.")
	case "stale":
		l := warn
		if v.Percent > 0 && v.Percent < 50 {
			l = bad
		}
		v.addf(l, "It is lost. Its last records are still answered, with a short TTL.")
	case "expired":
		v.addf(bad, "It was lost for longer than its retention. Its records are gone.")
	case "parked":
		says := v.turnedAway()
		if serves {
			says += " Its last records are still answered, with a short TTL."
		} else {
			says += " It has no records here."
		}
		v.addf(bad, "%s", says)
	default:
		v.addf(note, "This page does not know the state.")
	}
}

// turnedAway says what it means that an owner is parked.
func (v *ownerView) turnedAway() string {
	if v.NextAttempt.IsZero() {
		return "It has turned this side away, and is not tried again until the certificates change or the configuration is reloaded."
	}
	return "It has turned this side away, and is tried again every few minutes."
}

// relayed says what the state of an owner means for the one that relays it.
func (v *ownerView) relayed() {
	switch v.State {
	case "synced":
	case "syncing":
		v.addf(warn, "A stream is open, and its catalog is not complete yet.")
	case "connecting":
		v.addf(bad, "There is no stream, and nothing is known of its catalog.")
	case "parked":
		v.addf(bad, "%s", v.turnedAway())
	default:
		v.addf(warn, "It is lost, and consumers count their own retention.")
	}
}

// worst sorts by level, the worst first, and keeps the order of those that are alike.
func worst[T any](list []T, of func(T) level) {
	slices.SortStableFunc(list, func(a, b T) int { return cmp.Compare(of(b).rank(), of(a).rank()) })
}

// source is what fills a catalog of an owner.
type source struct {
	status.Source
	verdict

	Since    moment
	Of       string     // its catalog
	Token    string     // to confirm what is held; empty where nothing is
	Keeps    string     // the lifetime of what it said last, if it has one
	Upstream *ownerView // of a relay
}

func newSource(now time.Time, s *status.Source) *source {
	v := &source{Source: *s, verdict: verdict{Level: ok, Word: s.State}, Since: at(now, s.Since)}
	if s.Lifetime != "0s" { // a relay keeps nothing
		v.Keeps = lasting(s.Lifetime)
	}
	switch {
	case s.State == "away":
		v.addf(warn, "It is away: %s", cmp.Or(s.Away, "the reason is not known"))
		if v.Keeps != "" {
			v.addf(warn, "What it said last stays published for its lifetime, %s.", v.Keeps)
		}
	case !s.Published:
		v.addf(warn, "Nothing of it is published yet: its first state is not complete.")
	}
	if r := s.Registration; r != nil {
		if r.StoreAway {
			v.addf(warn, "Its store is away: what is registered now is not stored.")
		}
		if r.Convergence > 0 {
			v.addf(note, "It converges for another %s: programs register again.", status.Span(time.Duration(r.Convergence*float64(time.Second))))
		}
	}
	if s.Held > 0 {
		v.addf(warn, "%s of it are held: its origin has them no more, and they are too many at once.", count(s.Held, "service"))
		if !s.Release.IsZero() {
			v.addf(warn, "The first of them go %s, if they do not come back.", at(now, s.Release).Age)
		}
	}
	if len(s.Refused) > 0 {
		v.addf(note, "Some of its entries are no services.")
	}
	if s.Relay != nil {
		v.Upstream = newOwnerView(now, s.Relay, false)
		if l := v.Upstream.Level; l.rank() > v.Level.rank() {
			v.addf(l, "The owner that it relays is to be looked at.")
		}
	}
	return v
}

// catalog is what an owner publishes under one server name.
type catalog struct {
	status.Catalog
	verdict

	Anchor, Of, Name string
	Streams          int // open, of consumers
	Rate             rate
	OldestChange     moment
	RefusalList      refusals
	Sources          []*source
}

// late is how long a consumer may take to acknowledge a change.
const late = time.Minute

func newCatalog(now time.Time, i int, c *status.Catalog) *catalog {
	v := &catalog{
		Catalog: *c, verdict: verdict{Level: ok, Word: "in order"},
		Anchor: fmt.Sprintf("catalog-%d", i+1), Of: c.Name, Name: cmp.Or(c.Name, "(default)"),
		Rate: rate{c.Updates, at(now, c.Updates.Last)}, OldestChange: at(now, c.Oldest),
		RefusalList: newRefusals(now, "by consumers", c.Refusals),
	}
	for _, n := range c.Consumers {
		v.Streams += n
	}
	if c.Unavailable != "" {
		v.addf(bad, "Consumers cannot have it: %s.", c.Unavailable)
	}
	if !c.Oldest.IsZero() && now.Sub(c.Oldest) > late {
		v.addf(warn, "A consumer is behind: it has not acknowledged a change for %s.", status.Span(now.Sub(c.Oldest)))
	}
	if len(c.Refusals) > 0 {
		v.addf(note, "Consumers have refused services.")
	}
	switch v.Level {
	case note:
		v.Word = "refused in part"
	case warn:
		v.Word = "behind"
	case bad:
		v.Word = "unavailable"
	}
	for i := range c.Sources {
		v.Sources = append(v.Sources, newSource(now, &c.Sources[i]))
	}
	worst(v.Sources, func(s *source) level { return s.Level })
	return v
}

// worst returns the level of the catalog and its sources.
func (v *catalog) worst() level {
	if len(v.Sources) > 0 && v.Sources[0].Level.rank() > v.Level.rank() {
		return v.Sources[0].Level
	}
	return v.Level
}

// publisher is an owner as a whole.
type publisher struct {
	status.Publisher
	verdict

	InEffect    moment
	Certificate *certificate
	Visitors    []visitor // who were turned away
}

// visitor is a status.TurnedAway with its moment.
type visitor struct {
	status.TurnedAway

	When moment
}

// lately is for how long somebody who was turned away is worth a look.
const lately = time.Hour

func newPublisher(now time.Time, p *status.Publisher) *publisher {
	v := &publisher{Publisher: *p, verdict: verdict{Level: ok, Word: "configuration"}, InEffect: at(now, p.Applied)}
	if len(p.Broken) > 0 {
		v.addf(warn, "%s not used as %s now: what was read before stays in force.",
			count(len(p.Broken), "file")+" "+either(len(p.Broken), "is", "are"), either(len(p.Broken), "it is", "they are"))
	}
	for _, key := range p.Restart {
		v.addf(note, "The new value of %s waits for a restart.", key)
	}
	v.Certificate = v.certificate(now, p.Certificate, p.Authority)
	turnedAway := 0
	for _, one := range p.TurnedAway {
		v.Visitors = append(v.Visitors, visitor{one, at(now, one.At)})
		if now.Sub(one.At) < lately {
			turnedAway++
		}
	}
	if turnedAway > 0 {
		v.addf(note, "%s %s turned away within the last hour.", count(turnedAway, "peer"), either(turnedAway, "was", "were"))
	}
	return v
}

// status is the page of a process.
type overview struct {
	Title, Heading string
	Version        string
	Up, AsOf, Self string
	Consumer       bool
	Overall        verdict
	Waiting        []string
	Why            question
	Owners         []*ownerView
	Zones          []status.Zone
	Catalogs       []*catalog
	Publisher      *publisher
}

func newStatus(s *status.Status, token string) *overview {
	v := &overview{
		Heading: "CoreDNS federation", Version: s.Version, Up: status.Span(s.Now.Sub(s.Began)), AsOf: at(s.Now, s.Now).UTC,
		Consumer: s.Role == status.Consumer, Overall: verdict{Level: ok, Word: "Ready"}, Waiting: s.Waiting, Zones: s.Zones,
	}
	if !s.Ready {
		v.Overall = verdict{Level: bad, Word: "Not ready"}
	}
	for i := range s.Owners {
		v.Owners = append(v.Owners, newOwnerView(s.Now, &s.Owners[i], true))
		v.Owners[i].mayTry(s.Owners[i].ID, token)
	}
	worst(v.Owners, func(u *ownerView) level { return u.Level })
	for i := range s.Catalogs {
		v.Catalogs = append(v.Catalogs, newCatalog(s.Now, i, &s.Catalogs[i]))
		for _, of := range v.Catalogs[i].Sources {
			if of.Upstream != nil {
				of.Upstream.mayTry(s.Catalogs[i].Name, token)
			}
			if of.Held > 0 {
				of.Of, of.Token = s.Catalogs[i].Name, token
			}
		}
	}
	worst(v.Catalogs, (*catalog).worst)
	if s.Publisher != nil {
		v.Publisher = newPublisher(s.Now, s.Publisher)
	}
	if !v.Consumer {
		v.Heading = "Federation owner"
		v.ownSide()
	} else {
		v.followed()
	}
	if s.Ready {
		v.Overall.Word = map[level]string{ok: "Ready", note: "Ready, with something to look at", warn: "Ready, with trouble", bad: "Ready, with trouble"}[v.Overall.Level]
	}
	v.Title = fmt.Sprintf("%s %s: %s", v.Overall.Level.Sign(), v.Heading, v.Overall.Word)
	return v
}

// followed sums up the owners of a consumer.
func (v *overview) followed() {
	if len(v.Owners) == 0 {
		return
	}
	troubled := 0
	states := make(map[string]int)
	var words, tally []string // the worst first, as the owners are
	for _, u := range v.Owners {
		if u.Level.rank() >= warn.rank() {
			troubled++
		}
		if states[u.Word]++; states[u.Word] == 1 {
			words = append(words, u.Word)
		}
	}
	for _, word := range words {
		tally = append(tally, number(states[word])+" "+word)
	}
	all := count(len(v.Owners), "owner")
	switch first := v.Owners[0]; {
	case first.Level == ok:
		v.Overall.addf(ok, "Every owner is synced.")
	case troubled == 0:
		v.Overall.addf(note, "Every owner is followed: %s.", strings.Join(tally, ", "))
	default: // warn or bad
		v.Overall.addf(first.Level, "%d of %s %s in trouble: %s.", troubled, all, either(troubled, "is", "are"), strings.Join(tally, ", "))
	}
}

// ownSide sums up what an owner publishes, the worst first.
func (v *overview) ownSide() {
	type part struct {
		what string
		*verdict
	}
	var parts []part
	if v.Publisher != nil {
		parts = append(parts, part{"This owner", &v.Publisher.verdict})
	}
	for _, c := range v.Catalogs {
		parts = append(parts, part{"Catalog " + c.Name, &c.verdict})
		for _, s := range c.Sources {
			parts = append(parts, part{"Source " + s.Name, &s.verdict})
		}
	}
	worst(parts, func(p part) level { return p.Level })
	const most = 3 // the rest is below, each at its place
	more := 0
	for i, p := range parts {
		switch {
		case p.Level == ok:
		case i < most:
			v.Overall.addf(p.Level, "%s: %s", p.what, p.Says[0])
		default:
			more++
		}
	}
	if more > 0 {
		v.Overall.addf(ok, "%s more below.", number(more))
	}
	if v.Overall.Level == ok {
		v.Overall.addf(ok, "Everything is published as it should be.")
	}
}
