package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// explainedAnswer is the data of the template for one answer, or for a name without an answer.
type explainedAnswer struct {
	*NameExplanation
	*BlockAnswer

	Shown       []explainedAnswer // the answers, the one of the longest zone first
	HolderState string            // of the owner of the service that has the name
	Broken      string            // the rule that a refused service breaks
	Correction  string            // what to do about it
	Parts       []OwnerPart       // of owners that have something to do with the name
	Silent      []string          // the others
	Remedies    []string
}

// Lines returns the explanation as text, a sentence or a clause a line, in printable
// ASCII of bounded length, for whoever is on call. Lines that begin with two spaces belong
// to the line above them that does not: the answer of one server block or one catalog.
func (w *NameExplanation) Lines() []string {
	e := explainedAnswer{NameExplanation: w}
	for i := range w.Answers[:min(len(w.Answers), maxShown)] {
		e.Shown = append(e.Shown, w.explainAnswer(&w.Answers[i]))
	}
	// CoreDNS asks the server block with the longest zone.
	slices.SortStableFunc(e.Shown, func(a, b explainedAnswer) int { return cmp.Compare(len(b.Zone), len(a.Zone)) })
	if owner, r, refused := w.firstRefusal(nil); refused {
		e.Broken, e.Correction = describeRefusal(owner, &r), r.Remedy()
	}
	parts := w.Refused
	if w.Role == Importer {
		found := &BlockAnswer{Verdict: NoName}
		if len(w.Imports) > 0 {
			found.Verdict = Live
			parts = slices.DeleteFunc(slices.Clone(parts), func(p OwnerPart) bool {
				return !slices.ContainsFunc(w.Imports, func(i ImportedService) bool { return i.Owner == p.ID })
			})
		}
		found.Owners = parts
		e.Remedies = remediesFor(found, Importer)
	}
	e.splitParts(parts)
	return textRenderer{w.Now}.renderLines(e)
}

// explainAnswer returns the data of the template for an answer.
func (w *NameExplanation) explainAnswer(a *BlockAnswer) explainedAnswer {
	e := explainedAnswer{NameExplanation: w, BlockAnswer: a, Remedies: remediesFor(a, Consumer)}
	if at := holderOf(a); at >= 0 {
		e.HolderState = a.Owners[at].State
	}
	owner, refusal, refused := w.firstRefusal(a.Owners)
	if a.Verdict == Refused || a.Verdict == NotKnownYet && refused {
		e.Broken = describeRefusal(owner, &refusal)
	}
	if a.Verdict == Refused { // before what is to do about an owner that happens to be lost as well
		e.Correction = refusal.Remedy()
	}
	e.splitParts(slices.Concat(a.Owners, w.Refused))
	return e
}

// splitParts sets Parts and Silent: an owner that is synced and has nothing to do with the name is
// in Silent, which becomes one line.
func (e *explainedAnswer) splitParts(parts []OwnerPart) {
	for _, p := range parts {
		if p.State == "synced" && p.Failure == "" && p.NotImported == "" && p.NotAdmitted == "" && len(p.Refusals)+len(p.Gone) == 0 {
			e.Silent = append(e.Silent, p.ID)
		} else {
			e.Parts = append(e.Parts, p)
		}
	}
}

// holderOf returns the index of the owner whose service has the name, or -1.
func holderOf(a *BlockAnswer) int {
	return slices.IndexFunc(a.Owners, func(p OwnerPart) bool { return a.Holder != nil && p.ID == a.Holder.Owner })
}

// Who returns which service of which owner has the name or, where owners share the name, whose
// endpoints are answered.
func (h *NameHolder) Who() string {
	if n := len(h.Owners); n > 0 {
		return fmt.Sprintf("%s %s, which %s the name", nounFor(n, "owner"), joinWords(h.Owners), wordFor(n, "shares", "share"))
	}
	return fmt.Sprintf("service %s of owner %s", safetext.Quote(h.Service), PrintableWord(h.Owner))
}

// maxInline is how many records stand in the first line.
const maxInline = 8

// furtherRecords returns the records that stand below the first line.
func furtherRecords(list []string) []string {
	return list[min(len(list), maxInline):min(len(list), maxShown)]
}

// formatRecords returns the data of records, with their TTL.
func formatRecords(list []string) string {
	if len(list) == 0 {
		return "no records"
	}
	var shown []string
	for _, record := range list[:min(len(list), maxInline)] {
		shown = append(shown, recordData(record))
	}
	s := strings.Join(shown, ", ")
	if rest := len(list) - len(shown); rest > 0 {
		s += fmt.Sprintf(" and %d more", rest)
	}
	if fields := strings.Fields(list[0]); len(fields) > 4 {
		s += ", TTL " + PrintableWord(fields[1])
	}
	return s
}

// recordData returns the part of a record in presentation form behind its type.
func recordData(record string) string {
	fields := strings.SplitN(record, " ", 5) // name, TTL, class, type and data
	return safetext.Printable(fields[len(fields)-1])
}

// describeKind returns what the name is, in words.
func describeKind(is string) string {
	said, known := map[string]string{
		"service":     "it is the fqdn",
		"instance":    "it is the name",
		"protocol":    "it has the labels of a protocol before a name",
		"address":     "it is the name of an address",
		"zone":        "it is the apex of the zone",
		"name server": "it is the name server of the zone",
		"empty":       "there are only names below it (an empty non-terminal)",
		"missing":     "there is no such name",
	}[is]
	if !known {
		return "it is " + safetext.Printable(is)
	}
	return said
}

// remediesFor returns the remedies for an answer of a process of that role, each once.
func remediesFor(a *BlockAnswer, as ProcessRole) (list []string) {
	add := func(s string) {
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	switch a.Verdict {
	case Unresolved:
		add("make the host resolve for this server, or have the owner name addresses; the reason stands at 'endpoint'")
	case Denied:
		add("correct what the host resolves to, or permit its addresses with allow_addresses")
	case PassedOn, NoName:
		if !slices.ContainsFunc(a.Owners, func(p OwnerPart) bool {
			return p.NotImported != "" || p.NotAdmitted != "" || len(p.Refusals)+len(p.Gone) > 0
		}) {
			add("if the name should exist, ask the owner that should publish it: 'federationctl why' there, or 'federationctl watch' with this server's certificate")
		}
	}
	if h := a.Holder; h != nil && slices.ContainsFunc(a.Rivals, func(r RivalService) bool { return r.FQDN == h.FQDN && r.Owner != h.Owner }) {
		add(shareOrRename)
	}
	if a.Circle != "" {
		add("have the owner correct the endpoint; 'federationctl check' finds those that lead back within one catalog")
	}
	for i := range a.Owners {
		p := &a.Owners[i]
		// A reason why there is no stream has a remedy of its own, which stands with it.
		which := conditionIn(as, p.State, p.Known, p.NextAttempt)
		if ownerMatters(a, i) && which != ownerSynced && which != ownerUnknown && p.Remedy == "" {
			add(which.Remedy)
		}
		if p.NotImported != "" {
			add("if the service should be here, widen import_names")
		}
		if p.NotAdmitted != "" && a.Verdict != Refused { // or the refusal says what to do
			add("if the service should be here, change the zones that the owner has here or a rename, or have the owner choose another name")
		}
		if len(p.Refusals) > 0 {
			add(p.Refusals[0].Remedy())
		}
		if slices.ContainsFunc(p.Gone, func(g GoneService) bool { return g.Cause == "withdrawn" || g.Cause == "absent" }) {
			add("ask the owner whether it has the service: 'federationctl why' there")
		}
	}
	return list
}

// describeRefusal returns which rule a service of an owner breaks.
func describeRefusal(owner string, r *RefusedService) string {
	s := "a service"
	if r.Service != "" {
		s = "service " + safetext.Quote(r.Service)
	}
	if r.FQDN != "" {
		s += fmt.Sprintf(" (%s)", PrintableWord(r.FQDN))
	}
	return fmt.Sprintf("%s of owner %s breaks the rule %s: %s", s, PrintableWord(owner), PrintableWord(cmp.Or(r.Reason, "without a name")), safetext.Printable(cmp.Or(r.Rule, "no more is given")))
}

// refusalRemedies are what can be done about refusals; the other reasons depend on the owner alone.
var refusalRemedies = map[federation.Reason]string{
	federation.ReasonOutOfZone:    "if the service should be here, add its zone to those given to the owner here, or have the owner use one of these",
	federation.ReasonReservedName: "have the owner choose another name: the zone needs this one for itself",
	federation.ReasonName:         "have the owner correct the name, or correct what makes it invalid here: a rename, or kubernetes.name of an importer",
	federation.ReasonAddress:      "have the owner correct the address, or permit it with allow_addresses",
	federation.ReasonLimit:        "have the owner stay below the limit, or raise it if it is a property here",
}

// Remedy returns what can be done about a refusal.
func (r *RefusedService) Remedy() string {
	return cmp.Or(refusalRemedies[federation.Reason(r.Reason)], correctService)
}

// ownerMatters reports whether the state of owner i matters for the answer: the owner could have
// the name, or comes before the one that has it.
func ownerMatters(a *BlockAnswer, i int) bool {
	switch {
	case a.Verdict == OwnData:
		return false
	case a.Verdict == NotKnownYet:
		return !a.Owners[i].Known
	case a.Holder != nil:
		return i <= holderOf(a) || slices.Contains(a.Holder.Owners, a.Owners[i].ID)
	}
	return true
}

// Published returns how many of the services are published.
func (p *CatalogPublication) Published() (n int) {
	for i := range p.Services {
		if p.Services[i].Hidden == "" {
			n++
		}
	}
	return n
}

// Remedy returns what can be done about what is published, or "".
func (p *CatalogPublication) Remedy() string {
	switch {
	case len(p.Services) == 0:
		return "add the service to a source, or correct its name there; the log names entries that a source refuses"
	case slices.ContainsFunc(p.Services, func(o OfferedService) bool {
		return slices.ContainsFunc(o.Audience, func(a ToldClass) bool { return a.Hidden && a.Rule == 0 })
	}):
		return "if consumers that are not told should be, add a rule to exports that is for them and matches the service"
	}
	return ""
}
