package page

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/status"
)

// shownVerdict is the verdict on something, in a word as well, at the time when a page is made.
type shownVerdict struct {
	status.Judgement

	Word string
	now  time.Time
}

// Class returns the class of the colours of a verdict, in style.css.
func (s shownVerdict) Class() string { return s.Level.String() }

// Sign returns what says a verdict without a colour.
func (s shownVerdict) Sign() string { return signOf(s.Level) }

func signOf(l status.Level) string { return [...]string{"✓", "▲", "✕"}[l] }

// badge is a word with what says how bad that is, in a colour and without one.
type badge struct{ Class, Sign, Word string }

// Badges returns the state and, if something else is worse than that, what is worst: so no badge
// has the colour of another word than its own. A state in which nothing is wrong, and something can
// be done, has no colour.
func (s shownVerdict) Badges() []badge {
	state, worst, idle := status.Well, status.Finding{}, false
	for _, f := range s.Findings {
		if f.State == s.Word {
			state, idle = max(state, f.Level), true
		}
		if f.Level > worst.Level {
			worst = f
		}
	}
	if state == status.Well && s.Word != "synced" && s.Word != "current" {
		state = s.Level // the state has another name where it is judged
	}
	if idle && state == status.Well {
		return []badge{{"idle", "○", s.Word}}
	}
	badges := []badge{{state.String(), signOf(state), s.Word}}
	if worst.Level > state {
		word := worst.State
		if worst.Of == "certificate" {
			word = worst.Of + " " + word
		}
		badges = append(badges, badge{worst.Level.String(), signOf(worst.Level), word})
	}
	return badges
}

// sortWorst sorts by verdict, the worst first, and keeps the order of those that are alike.
func sortWorst[T any](list []T, of func(T) status.Level) {
	slices.SortStableFunc(list, func(a, b T) int { return cmp.Compare(of(b), of(a)) })
}

// shownTime is a time, as the page shows it.
type shownTime struct{ Age, Span, UTC, Machine string }

// At returns a moment, which is empty for no time.
func (s shownVerdict) At(when time.Time) (m shownTime) {
	if !when.IsZero() {
		m = shownTime{status.FormatAge(s.now, when), status.FormatSpan(s.now.Sub(when)), when.UTC().Format("2006-01-02 15:04:05 UTC"), when.UTC().Format(time.RFC3339)}
	}
	return m
}

// Ended reports whether there is a time, and it is over.
func (s shownVerdict) Ended(when time.Time) bool { return !when.IsZero() && !s.now.Before(when) }

// Says says where a consumer is.
func (s shownVerdict) Says(of status.Subscriber) string { return of.DescribeState(s.now) }

// ownerView is an owner that is followed.
type ownerView struct {
	*status.FollowedOwner
	shownVerdict

	Link      bool   // to its services
	Results   string // of its services: records or objects
	Of, Token string // to try it now; the token is empty where there is nothing to try
}

// newOwnerView returns an owner that a process of that role follows.
func newOwnerView(now time.Time, u *status.FollowedOwner, as status.ProcessRole, of, token string) *ownerView {
	v := &ownerView{FollowedOwner: u, shownVerdict: shownVerdict{u.Judge(now, as), u.State, now}, Link: as != status.Owner, Results: as.Results()}
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
	return status.FormatNext(v.now, v.NextAttempt)
}

// RetentionUsed says how much of the retention is over, and how soon the records go; it is empty
// while the retention does not count.
func (v *ownerView) RetentionUsed() string {
	if left, _ := v.RemainingRetention(v.now); left > 0 {
		return fmt.Sprintf("%s of %s used, %s go in %s", status.FormatSpan(v.now.Sub(v.Lost)), status.FormatSeconds(v.Retention), v.Results, status.FormatSpan(left))
	}
	if v.Link && v.State != "synced" && v.Stale > 0 && !v.Lost.IsZero() && v.Expires.IsZero() {
		return "no limit, " + v.Results + " stay until the owner is back"
	}
	return ""
}

// PercentUsed returns which part of the retention is over; 0 while it does not count.
func (v *ownerView) PercentUsed() int {
	if _, left := v.RemainingRetention(v.now); left > 0 {
		return max(1, 100-left)
	}
	return 0
}

// sourceView is what fills a catalog of an owner.
type sourceView struct {
	*status.CatalogSource
	shownVerdict

	Of, Token string     // to confirm what is paused; the token is empty where nothing is
	Upstream  *ownerView // of a relay
}

// catalogView is what an owner publishes under one server name.
type catalogView struct {
	*status.Catalog
	shownVerdict

	Anchor, Name string
	Sources      []*sourceView
}

func newCatalogView(now time.Time, i int, c *status.Catalog, token string) *catalogView {
	judged, word := c.Judge(now)
	v := &catalogView{
		Catalog: c, shownVerdict: shownVerdict{judged, word, now},
		Anchor: fmt.Sprintf("catalog-%d", i+1), Name: cmp.Or(c.Name, "(default)"),
	}
	for i := range c.Sources {
		s := &c.Sources[i]
		of := &sourceView{CatalogSource: s, shownVerdict: shownVerdict{s.Judge(now), s.State, now}}
		if s.Relay != nil {
			for i := range of.Findings {
				of.Findings[i].Remedy = "" // it stands below, with the owner
			}
			of.Upstream = newOwnerView(now, s.Relay, status.Owner, c.Name, token)
		}
		if s.Paused > 0 {
			of.Of, of.Token = c.Name, token
		}
		v.Sources = append(v.Sources, of)
	}
	sortWorst(v.Sources, func(s *sourceView) status.Level { return s.Level })
	return v
}

// worstLevel returns the level of the catalog, or of its worst source.
func (v *catalogView) worstLevel() status.Level {
	if len(v.Sources) > 0 {
		return max(v.Level, v.Sources[0].Level)
	}
	return v.Level
}

// publisherView is an owner as a whole.
type publisherView struct {
	*status.PublishingOwner
	shownVerdict
}

// importsView is what an importer writes.
type importsView struct {
	*status.Imports
	shownVerdict
}

// processOverview is the page of a process.
type processOverview struct {
	*status.Status
	shownVerdict // overall

	Title, Heading, Self string
	Up                   string
	Consumer, Refreshed  bool
	Follows              bool // owners
	Why                  nameQuestion
	Owners               []*ownerView
	Catalogs             []*catalogView
	Publisher            *publisherView
	Imports              *importsView
}

func newOverview(s *status.Status, token string) *processOverview {
	v := &processOverview{Status: s, shownVerdict: shownVerdict{Judgement: s.Judge(), now: s.Now}, Heading: "Federation owner", Up: status.FormatSpan(s.Now.Sub(s.Began)), Consumer: s.Role == status.Consumer, Follows: s.Role != status.Owner, Refreshed: true}
	if !s.Ready {
		v.Findings = v.Findings[1:] // the page has what is waited for below
	}
	for i := range s.Owners {
		v.Owners = append(v.Owners, newOwnerView(s.Now, &s.Owners[i], s.Role, s.Owners[i].ID, token))
	}
	sortWorst(v.Owners, func(u *ownerView) status.Level { return u.Level })
	for i := range s.Catalogs {
		v.Catalogs = append(v.Catalogs, newCatalogView(s.Now, i, &s.Catalogs[i], token))
	}
	sortWorst(v.Catalogs, (*catalogView).worstLevel)
	if s.Publisher != nil {
		v.Publisher = &publisherView{s.Publisher, shownVerdict{Judgement: s.Publisher.Judge(s.Now), now: s.Now}}
	}
	if s.Imports != nil {
		judged, word := s.Imports.Judge(s.Now)
		v.Imports = &importsView{s.Imports, shownVerdict{judged, word, s.Now}}
	}
	switch s.Role {
	case status.Consumer:
		v.Heading = "CoreDNS federation"
	case status.Importer:
		v.Heading = "Federation importer"
	}
	v.Word = "Not ready"
	if s.Ready {
		v.Word = [...]string{"Ready", "Ready, with something to look at", "Ready, with something to act on"}[v.Level]
	}
	v.Title = fmt.Sprintf("%s %s: %s", v.Sign(), strings.TrimSpace(v.Heading+" "+safetext.Printable(s.Host)), v.Word)
	return v
}
