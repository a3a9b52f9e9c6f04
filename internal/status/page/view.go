package page

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/status"
)

// pagePart is a part of a process at the time when a page is made.
type pagePart struct {
	status.TableRow

	now time.Time
	As  status.ProcessRole // that of the process

	Of, Token string    // for the form that acts on the part; the token is empty where there is nothing to do
	Upstream  *pagePart // the owner that a source relays
}

// Class returns the class of the colours of a level, in style.css.
func (p *pagePart) Class() string { return p.Level.String() }

// Sign returns what says a level without a colour.
func (p *pagePart) Sign() string { return signOf(p.Level) }

func signOf(l status.Level) string { return [...]string{"✓", "▲", "✕"}[l] }

// badge is a word with what says how bad that is, in a colour and without one.
type badge struct{ Class, Sign, Word string }

// Badges returns the state and, if something else is worse than that, what is worst: so no badge
// has the colour of another word than its own. A state in which nothing is wrong, and something can
// be done, has no colour.
func (p *pagePart) Badges() []badge {
	state, worst, idle := status.Well, status.Finding{}, false
	for _, f := range p.Findings {
		if f.State == p.State {
			state, idle = max(state, f.Level), true
		}
		if f.Level > worst.Level {
			worst = f
		}
	}
	if state == status.Well && p.State != "synced" && p.State != "current" {
		state = p.Level // the state has another name where it is judged
	}
	if idle && state == status.Well {
		return []badge{{"idle", "○", p.State}}
	}
	badges := []badge{{state.String(), signOf(state), p.State}}
	if worst.Level > state {
		word := worst.State
		if worst.Of == "certificate" {
			word = worst.Of + " " + word
		}
		badges = append(badges, badge{worst.Level.String(), signOf(worst.Level), word})
	}
	return badges
}

// shownTime is a time, as the page shows it.
type shownTime struct{ Age, Span, UTC, Machine string }

// At returns a moment, which is empty for no time.
func (p *pagePart) At(when time.Time) (m shownTime) {
	if !when.IsZero() {
		m = shownTime{status.FormatAge(p.now, when), status.FormatSpan(p.now.Sub(when)), when.UTC().Format("2006-01-02 15:04:05 UTC"), when.UTC().Format(time.RFC3339)}
	}
	return m
}

// Ended reports whether there is a time, and it is over.
func (p *pagePart) Ended(when time.Time) bool { return !when.IsZero() && !p.now.Before(when) }

// Says says where a consumer is.
func (p *pagePart) Says(of status.Subscriber) string { return of.DescribeState(p.now) }

// Next says when the next attempt to reach the owner is.
func (p *pagePart) Next() string { return status.FormatNext(p.now, p.Owner.NextAttempt) }

// RetentionUsed says how much of the retention of an owner is over, and how soon what it had goes; it is
// empty while the retention does not count.
func (p *pagePart) RetentionUsed() string {
	u, results := p.Owner, p.As.Results()
	if left, _ := u.RemainingRetention(p.now); left > 0 {
		return fmt.Sprintf("%s of %s used, %s go in %s", status.FormatSpan(p.now.Sub(u.Lost)), status.FormatSeconds(u.Retention), results, status.FormatSpan(left))
	}
	if p.As != status.Owner && u.State != "synced" && u.Stale > 0 && !u.Lost.IsZero() && u.Expires.IsZero() {
		return "no limit, " + results + " stay until the owner is back"
	}
	return ""
}

// PercentUsed returns which part of the retention is over; 0 while it does not count.
func (p *pagePart) PercentUsed() int {
	if _, left := p.Owner.RemainingRetention(p.now); left > 0 {
		return max(1, 100-left)
	}
	return 0
}

// catalogView is what an owner publishes under one server name.
type catalogView struct {
	*pagePart

	Anchor  string
	Sources []*pagePart
}

// processOverview is the page of a process.
type processOverview struct {
	*status.Status
	pagePart // all of the process

	Title, Heading, Self string
	Up                   string
	Refreshed            bool
	Why                  nameQuestion
	Owners               []*pagePart
	Catalogs             []*catalogView
	Publisher, Imports   *pagePart
}

func newOverview(s *status.Status, token string) *processOverview {
	v := &processOverview{Status: s, Heading: "Federation owner", Up: status.FormatSpan(s.Now.Sub(s.Began)), Refreshed: true}
	v.pagePart = pagePart{TableRow: status.TableRow{Judgement: s.Judge(), State: "Not ready"}, now: s.Now, As: s.Role}
	if s.Ready {
		v.State = [...]string{"Ready", "Ready, with something to look at", "Ready, with something to act on"}[v.Level]
	} else {
		v.Findings = v.Findings[1:] // the page has what is waited for below
	}
	v.addParts(token)
	switch s.Role {
	case status.Consumer:
		v.Heading = "CoreDNS federation"
	case status.Importer:
		v.Heading = "Federation importer"
	}
	v.Title = fmt.Sprintf("%s %s: %s", v.Sign(), strings.TrimSpace(v.Heading+" "+safetext.Printable(s.Host)), v.State)
	return v
}

// addParts adds the parts of the process, the worst first.
func (v *processOverview) addParts(token string) {
	newPart := func(row status.TableRow, of string, acts bool) *pagePart {
		p := &pagePart{TableRow: row, now: v.now, As: v.As, Of: of}
		if acts {
			p.Token = token
		}
		return p
	}
	if v.Status.Publisher != nil {
		v.Publisher = newPart(status.TableRow{Publisher: v.Status.Publisher}, "", false)
	}
	catalogs := make(map[*status.Catalog]*catalogView)
	for i := range v.Status.Catalogs {
		catalogs[&v.Status.Catalogs[i]] = &catalogView{Anchor: fmt.Sprintf("catalog-%d", i+1)}
	}
	for _, row := range v.Rows() {
		c := catalogs[row.Catalog]
		if c != nil && !slices.Contains(v.Catalogs, c) { // with the worst of its parts
			v.Catalogs = append(v.Catalogs, c)
		}
		switch from := row.Source; {
		case row.Owner != nil:
			v.Owners = append(v.Owners, newPart(row, row.Owner.ID, row.Owner.Failure != ""))
		case row.Imports != nil:
			v.Imports = newPart(row, "", false)
		case row.Publisher != nil:
			v.Publisher = newPart(row, "", false)
		case from == nil:
			c.pagePart = newPart(row, "", false)
		default:
			p := newPart(row, row.Catalog.Name, from.Paused > 0)
			if u := from.Relay; u != nil {
				for i := range p.Findings {
					p.Findings[i].Remedy = "" // it stands below, with the owner
				}
				p.Upstream = newPart(status.TableRow{Judgement: u.Judge(v.now, status.Owner), State: u.State, Since: u.Since, Owner: u}, row.Catalog.Name, u.Failure != "")
			}
			c.Sources = append(c.Sources, p)
		}
	}
}
