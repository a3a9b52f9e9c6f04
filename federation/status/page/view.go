package page

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/status"
)

// shown is the verdict on something, in a word as well, at the time when a page is made.
type shown struct {
	status.Judgement

	Word string
	now  time.Time
}

// Class returns the class of the colours of a verdict, in style.css.
func (s shown) Class() string { return s.either("ok", "note", "warn", "bad") }

// Sign returns what says a verdict without a colour.
func (s shown) Sign() string { return s.either("✓", "!", "▲", "✕") }

func (s shown) either(well, look, act, failing string) string {
	if s.Failing {
		return failing
	}
	return [...]string{well, look, act}[s.Level]
}

// worst sorts by verdict, the worst first, and keeps the order of those that are alike.
func worst[T any](list []T, of func(T) *status.Judgement) {
	slices.SortStableFunc(list, func(a, b T) int { return of(b).Compare(of(a)) })
}

// moment is a time, as the page shows it.
type moment struct{ Age, UTC, Machine string }

// At returns a moment, which is empty for no time.
func (s shown) At(when time.Time) (m moment) {
	if !when.IsZero() {
		m = moment{status.Age(s.now, when), when.UTC().Format("2006-01-02 15:04:05 UTC"), when.UTC().Format(time.RFC3339)}
	}
	return m
}

// Ended reports whether there is a time, and it is over.
func (s shown) Ended(when time.Time) bool { return !when.IsZero() && !s.now.Before(when) }

// ownerView is an owner that is followed.
type ownerView struct {
	*status.FollowedOwner
	shown

	Link      bool   // to its services
	Of, Token string // to try it now; the token is empty where there is nothing to try
}

func newOwnerView(now time.Time, u *status.FollowedOwner, link bool, of, token string) *ownerView {
	v := &ownerView{FollowedOwner: u, shown: shown{u.Judge(now, !link), u.State, now}, Link: link}
	if u.Failure != "" {
		v.Of, v.Token = of, token
	}
	return v
}

// Next says when the next attempt is.
func (v *ownerView) Next() string {
	if v.NextAttempt.IsZero() {
		return ""
	}
	return status.Next(v.now, v.NextAttempt)
}

// RetentionLeft says how much of the retention is left; it is empty while it does not count,
// and when none is left.
func (v *ownerView) RetentionLeft() string {
	if left, _ := v.Left(v.now); left > 0 {
		return status.Span(left)
	}
	if v.Link && v.State != "synced" && v.Stale > 0 && !v.Lost.IsZero() && v.Expires.IsZero() {
		return "no limit"
	}
	return ""
}

// Percent returns which part of the retention is left.
func (v *ownerView) Percent() int {
	_, percent := v.Left(v.now)
	return percent
}

// sourceView is what fills a catalog of an owner.
type sourceView struct {
	*status.Source
	shown

	Of, Token string     // to confirm what is held; the token is empty where nothing is
	Upstream  *ownerView // of a relay
}

// catalogView is what an owner publishes under one server name.
type catalogView struct {
	*status.Catalog
	shown

	Anchor, Name string
	Streams      int // open, of consumers
	Sources      []*sourceView
}

func newCatalogView(now time.Time, i int, c *status.Catalog, token string) *catalogView {
	judged, word := c.Judge(now)
	v := &catalogView{
		Catalog: c, shown: shown{judged, word, now},
		Anchor: fmt.Sprintf("catalog-%d", i+1), Name: cmp.Or(c.Name, "(default)"),
	}
	for _, n := range c.Consumers {
		v.Streams += n
	}
	for i := range c.Sources {
		s := &c.Sources[i]
		of := &sourceView{Source: s, shown: shown{s.Judge(now), s.State, now}}
		if s.Relay != nil {
			of.Upstream = newOwnerView(now, s.Relay, false, c.Name, token)
		}
		if s.Held > 0 {
			of.Of, of.Token = c.Name, token
		}
		v.Sources = append(v.Sources, of)
	}
	worst(v.Sources, func(s *sourceView) *status.Judgement { return &s.Judgement })
	return v
}

// worst returns the verdict on the catalog, or on its worst source.
func (v *catalogView) worst() *status.Judgement {
	all := v.Judgement
	if len(v.Sources) > 0 {
		all.Worsen(&v.Sources[0].Judgement)
	}
	return &all
}

// publisherView is an owner as a whole.
type publisherView struct {
	*status.Publisher
	shown
}

// overview is the page of a process.
type overview struct {
	*status.Status
	shown // overall

	Title, Heading, Self string
	Up                   string
	Consumer             bool
	Why                  question
	Owners               []*ownerView
	Catalogs             []*catalogView
	Publisher            *publisherView
}

func newOverview(s *status.Status, token string) *overview {
	v := &overview{Status: s, shown: shown{Judgement: s.Judge(), now: s.Now}, Heading: "Federation owner", Up: status.Span(s.Now.Sub(s.Began)), Consumer: s.Role == status.Consumer}
	v.Findings = nil // the page has what is waited for below
	for i := range s.Owners {
		v.Owners = append(v.Owners, newOwnerView(s.Now, &s.Owners[i], true, s.Owners[i].ID, token))
	}
	worst(v.Owners, func(u *ownerView) *status.Judgement { return &u.Judgement })
	for i := range s.Catalogs {
		v.Catalogs = append(v.Catalogs, newCatalogView(s.Now, i, &s.Catalogs[i], token))
	}
	worst(v.Catalogs, (*catalogView).worst)
	if s.Publisher != nil {
		v.Publisher = &publisherView{s.Publisher, shown{Judgement: s.Publisher.Judge(s.Now), now: s.Now}}
	}
	if v.Consumer {
		v.Heading = "CoreDNS federation"
		v.followed()
	} else {
		v.ownSide()
	}
	v.Word = "Not ready"
	if s.Ready {
		v.Word = [...]string{"Ready", "Ready, with something to look at", "Ready, with trouble"}[v.Level]
	}
	v.Title = fmt.Sprintf("%s %s: %s", v.Sign(), v.Heading, v.Word)
	return v
}

// sayf adds a sentence to the sum.
func (v *overview) sayf(of *status.Judgement, format string, args ...any) {
	v.Add(status.Finding{Condition: status.Condition{Level: of.Level, Failing: of.Failing}, Says: fmt.Sprintf(format, args...)})
}

// followed sums up the owners of a consumer.
func (v *overview) followed() {
	if len(v.Owners) == 0 {
		return
	}
	troubled, states := 0, make(map[string]int)
	var words []string // the worst first, as the owners are
	for _, u := range v.Owners {
		if u.Level == status.Act {
			troubled++
		}
		if states[u.Word]++; states[u.Word] == 1 {
			words = append(words, u.Word)
		}
	}
	for i, word := range words {
		words[i] = status.Number(states[word]) + " " + word
	}
	tally, are := strings.Join(words, ", "), map[bool]string{true: "is", false: "are"}[troubled == 1]
	switch first := &v.Owners[0].Judgement; first.Level {
	case status.Well:
		v.sayf(first, "Every owner is synced.")
	case status.Look:
		v.sayf(first, "Every owner is followed: %s.", tally)
	case status.Act:
		v.sayf(first, "%d of %s %s in trouble: %s.", troubled, status.Count(len(v.Owners), "owner"), are, tally)
	}
}

// ownSide sums up what an owner publishes, the worst first.
func (v *overview) ownSide() {
	type part struct {
		what string
		*status.Judgement
	}
	var parts []part
	if v.Publisher != nil {
		parts = append(parts, part{"This owner", &v.Publisher.Judgement})
	}
	for _, c := range v.Catalogs {
		parts = append(parts, part{"Catalog " + c.Name, &c.Judgement})
		for _, s := range c.Sources {
			parts = append(parts, part{"Source " + s.Name, &s.Judgement})
		}
	}
	parts = slices.DeleteFunc(parts, func(p part) bool { return p.Level == status.Well })
	worst(parts, func(p part) *status.Judgement { return p.Judgement })
	const most = 3 // the rest is below, each at its place
	for _, p := range parts[:min(len(parts), most)] {
		v.sayf(p.Judgement, "%s: %s", p.what, p.Findings[0].Says)
	}
	if more := len(parts) - most; more > 0 {
		v.sayf(&status.Judgement{}, "%s more below.", status.Number(more))
	}
	if v.Level == status.Well {
		v.sayf(&status.Judgement{}, "Everything is published as it should be.")
	}
}
