package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// Lines returns the explanation as text, a sentence or a clause a line, in printable
// ASCII of bounded length, for whoever is on call. Lines that begin with two spaces belong
// to the line above them that does not: the answer of one server block or one catalog.
func (w *Why) Lines() []string {
	t := &text{now: w.Now}
	var over []int // answers of server blocks that another one comes before
	for i := range w.Answers[:min(len(w.Answers), maxShown)] {
		if w.before(i) == nil {
			t.answer(w, &w.Answers[i], nil)
		} else {
			over = append(over, i)
		}
	}
	for _, i := range over {
		t.answer(w, &w.Answers[i], w.before(i))
	}
	t.more(0, len(w.Answers), "server blocks")
	for i := range w.Catalogs {
		if i == maxShown {
			t.addf(0, "and %d more catalogs", len(w.Catalogs)-maxShown)
			break
		}
		t.publication(w, &w.Catalogs[i])
	}
	switch {
	case len(w.Answers)+len(w.Catalogs) > 0:
	case w.Role == Owner:
		t.addf(0, "%s: this owner has no catalog", word(w.Name))
	case len(w.Refused) > 0:
		t.elsewhere(w)
	default:
		t.addf(0, "%s %s: not answered here: the name is in none of the zones of the federation blocks", word(w.Name), word(w.Type))
		t.addf(1, "to do: see 'federationctl status' for the zones; if the name should be here, add its zone to a federation block or ask another server")
	}
	return t.lines
}

// elsewhere adds who has been refused a name that is in none of the zones here.
func (t *text) elsewhere(w *Why) {
	owner, r, _ := w.refusal(nil)
	t.addf(0, "%s %s: refused, and not answered here: %s; the name is in none of the zones of the federation blocks", word(w.Name), word(w.Type), broken(owner, &r))
	t.addf(1, "to do: %s", correction(&r))
	t.parts(w.Refused)
}

// before returns the answer of a server block that CoreDNS asks before the one of an answer,
// or nil: the name is in a longer zone of it, at a port of both.
func (w *Why) before(i int) *Answer {
	mine := keysOf(w.Answers[i].Servers, w.Name)
	for j := range w.Answers {
		for port, zone := range keysOf(w.Answers[j].Servers, w.Name) {
			if own, shared := mine[port]; j != i && shared && len(own) < len(zone) {
				return &w.Answers[j]
			}
		}
	}
	return nil
}

// keysOf returns the longest zone that a name is in, by transport and port, of keys such as
// dns://fed.example.:53.
func keysOf(keys []string, name string) map[string]string {
	zones := make(map[string]string)
	for _, key := range keys {
		transport, rest, _ := strings.Cut(key, "://")
		colon := strings.LastIndexByte(rest, ':')
		if colon < 0 {
			continue
		}
		zone, port := rest[:colon], transport+rest[colon:]
		if (zone == "." || strings.HasSuffix("."+name, "."+zone)) && len(zone) > len(zones[port]) {
			zones[port] = zone
		}
	}
	return zones
}

// answer adds what one server block answers, and why. Before is the answer of one that
// CoreDNS asks before it, if there is one.
func (t *text) answer(w *Why, a, before *Answer) {
	owner, refusal, refused := w.refusal(a.Owners)
	verdict := t.verdict(a)
	switch {
	case a.Verdict == Refused:
		verdict += broken(owner, &refusal)
	case a.Verdict == NotKnownYet && refused:
		verdict += "; refused: " + broken(owner, &refusal)
	}
	t.addf(0, "%s %s: %s", word(w.Name), word(w.Type), verdict)
	t.addf(1, "answered by server block %s, zone %s%s", words(a.Servers), word(a.Zone), serial(a.Serial))
	if before != nil {
		t.addf(1, "clients of server block %s get its answer instead: its zone is the longer one", words(before.Servers))
	}
	if len(a.Records) > maxInline {
		for _, record := range a.Records[maxInline:min(len(a.Records), maxShown)] {
			t.addf(1, "also %s", rdata(record))
		}
		t.more(1, len(a.Records), "records")
	}
	for _, e := range a.Errors[:min(len(a.Errors), maxShown)] {
		t.addf(1, "extended error %s", plain(e))
	}
	t.more(1, len(a.Errors), "extended errors")
	if a.Passed && a.Verdict != PassedOn {
		t.addf(1, "the query goes to the next plugin (fallthrough), which has not been asked")
	}
	if a.Holder != nil {
		t.holder(w.Name, a)
	}
	for _, h := range a.Hosts[:min(len(a.Hosts), maxShown)] {
		t.host(&h)
	}
	t.more(1, len(a.Hosts), "hosts")
	for _, r := range a.Rivals[:min(len(a.Rivals), maxShown)] {
		t.addf(1, "shadowed: service %s of owner %s, at %s, wants the name and does not have it: %s",
			federation.Quote(r.Service), word(r.Owner), word(r.FQDN), plain(r.Rule))
	}
	t.more(1, len(a.Rivals), "services that want the name")
	var done []string
	if a.Verdict == Refused { // before what is to do about an owner that happens to be lost as well
		done = append(done, correction(&refusal))
		t.addf(1, "to do: %s", done[0])
	}
	t.parts(slices.Concat(a.Owners, w.Refused))
	for _, s := range remedies(a) {
		if !slices.Contains(done, s) {
			t.addf(1, "to do: %s", s)
		}
	}
}

// maxInline is how many records stand in the first line.
const maxInline = 8

// verdict returns the first line of an answer, behind the name and the type.
func (t *text) verdict(a *Answer) string {
	code := word(cmp.Or(a.Rcode, "no rcode"))
	switch a.Verdict {
	case Live, Stale:
		return records(a.Records) + ", " + string(a.Verdict) + t.service(", from", a)
	case OwnData:
		return fmt.Sprintf("%s, which the zone %s has of itself: %s", records(a.Records), word(a.Zone), kind(a))
	case NoData:
		return fmt.Sprintf("no records of this type (%s, NODATA), but the name exists: %s%s", code, kind(a), t.service(" of", a))
	case NoName:
		return code + ": no owner publishes the name, and the catalogs of all owners of the zone are known"
	case NoNameLost:
		return code + ": nobody publishes the name now, but an owner that may is lost, so this is not certain"
	case NotKnownYet:
		return code + ": not known yet: an owner that may publish the name has had no complete catalog"
	case Refused:
		if a.Rcode == "" {
			return "refused: "
		}
		return code + ": refused: "
	case Unresolved:
		return code + ": a host that is an endpoint cannot be looked up" + t.service(", of", a)
	case Denied:
		return fmt.Sprintf("no records (%s): every address of the hosts that are endpoints is one that the owner may not publish%s", code, t.service(", of", a))
	case PassedOn:
		return "the next plugin answers (fallthrough), and has not been asked: no owner publishes the name"
	}
	return fmt.Sprintf("%s, %s%s", code, plain(string(a.Verdict)), t.service(", of", a))
}

// records returns the data of records and their TTL.
func records(list []string) string {
	if len(list) == 0 {
		return "no records"
	}
	var shown []string
	for _, record := range list[:min(len(list), maxInline)] {
		shown = append(shown, rdata(record))
	}
	s := strings.Join(shown, ", ")
	if rest := len(list) - len(shown); rest > 0 {
		s += fmt.Sprintf(" and %d more", rest)
	}
	if fields := strings.Fields(list[0]); len(fields) > 4 {
		s += ", TTL " + word(fields[1])
	}
	return s
}

// rdata returns what stands behind the type of a record in presentation form.
func rdata(record string) string {
	rest := record
	for range 4 { // name, TTL, class, type
		rest = strings.TrimLeft(rest, " \t")
		i := strings.IndexAny(rest, " \t")
		if i < 0 {
			return plain(record)
		}
		rest = rest[i:]
	}
	const most = 200
	if rest = plain(strings.TrimLeft(rest, " \t")); len(rest) > most {
		return fmt.Sprintf("%s... (%d bytes)", rest[:most], len(record))
	}
	return rest
}

// service returns which service has the name, behind a preposition, and since when.
func (t *text) service(preposition string, a *Answer) string {
	h := a.Holder
	if h == nil {
		return ""
	}
	s := preposition
	if h.Instance != "" {
		s += " instance " + federation.Quote(h.Instance) + " of"
	}
	s += fmt.Sprintf(" service %s of owner %s", federation.Quote(h.Service), word(h.Owner))
	if h.Updated.IsZero() {
		return s + ", restored from its file (persist)"
	}
	return s + " " + t.since(h.Updated)
}

// kind says what the name is.
func kind(a *Answer) string {
	switch a.Is {
	case "service":
		return "it is the fqdn"
	case "instance":
		return "it is the name"
	case "protocol":
		return "it has the labels of a protocol before a name"
	case "address":
		return "it is the name of an address"
	case "zone":
		return "it is the apex of the zone"
	case "name server":
		return "it is the name server of the zone"
	case "empty":
		return "there are only names below it (an empty non-terminal)"
	case "missing":
		return "there is no such name"
	}
	return "it is " + plain(a.Is)
}

// serial returns the serial of a zone, if it has one.
func serial(n uint32) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", serial %d", n)
}

// holder adds what there is to say of the service that has the name.
func (t *text) holder(name string, a *Answer) {
	h := a.Holder
	switch {
	case h.Original != "":
		t.addf(1, "the service is published at %s, which the owner calls %s (rename)", word(h.FQDN), word(h.Original))
	case h.FQDN != name:
		t.addf(1, "the service is published at %s", word(h.FQDN))
	}
	if h.Stale {
		s := "stale: its owner is lost"
		i := slices.IndexFunc(a.Owners, func(p Part) bool { return p.ID == h.Owner })
		switch {
		case i < 0:
		case a.Owners[i].State == "synced":
			s = "stale: its owner is back, but its complete catalog has left out most services, this one too (guard); the owner had been lost"
		case a.Owners[i].State == "syncing":
			s = "stale: its owner is back, and has not sent it again yet; the owner had been lost"
		}
		if !h.StaleFrom.IsZero() {
			s += " " + t.since(h.StaleFrom)
		}
		if h.Expires.IsZero() {
			t.addf(1, "%s; the records stay until the owner is back (retention forever)", s)
		} else {
			t.addf(1, "%s; the retention ends, and the records go, %s", s, t.at(h.Expires))
		}
	}
	if len(h.Faults) > 0 {
		t.addf(1, "left out: records and names of this service that are not published, as in coredns_federation_conflicts: %s", counts(h.Faults))
	}
}

// host adds what an endpoint that is a host leads to.
func (t *text) host(h *Host) {
	switch {
	case h.Failure != "":
		t.addf(1, "endpoint %s cannot be looked up: %s", word(h.Name), plain(h.Failure))
	case len(h.Addresses) == 0:
		t.addf(1, "endpoint %s has no address", word(h.Name))
	case h.Stale:
		t.addf(1, "endpoint %s: %s, the last that were known", word(h.Name), words(h.Addresses))
	default:
		t.addf(1, "endpoint %s: %s", word(h.Name), words(h.Addresses))
	}
}

// parts adds what the owners of the zone have to do with the name: those that are synced
// and have nothing to say of it in one line, behind the others.
func (t *text) parts(parts []Part) {
	var silent []string
	audience := 0
	for i := range parts {
		p := &parts[i]
		if p.State == "synced" && p.Failure == "" && p.NotImported == "" && p.NotAdmitted == "" && len(p.Refusals)+len(p.Gone) == 0 {
			silent = append(silent, p.ID)
			continue
		}
		if audience++; audience > maxShown {
			continue
		}
		t.part(p)
	}
	t.more(1, audience, "owners")
	if len(silent) > 0 {
		t.addf(1, "synced, with nothing refused or withdrawn of this name: %s", words(silent))
	}
}

func (t *text) part(p *Part) {
	s := fmt.Sprintf("owner %s: %s", word(p.ID), word(p.State))
	if !p.Since.IsZero() {
		s += " " + t.since(p.Since)
	}
	if !p.Expires.IsZero() {
		s += ", its records go " + t.at(p.Expires)
	}
	t.addf(1, "%s", s)
	if p.Failure != "" {
		t.addf(2, "no stream: %s%s", plain(p.Failure), t.next(p.NextAttempt))
	}
	if p.Remedy != "" {
		t.addf(2, "to do: %s", plain(p.Remedy))
	}
	if p.NotImported != "" {
		t.addf(2, "left out: %s", plain(p.NotImported))
	}
	if p.NotAdmitted != "" {
		t.addf(2, "left out: a service of this name would be refused: %s", plain(p.NotAdmitted))
	}
	t.refused(2, " here", p.Refusals)
	t.gone(2, p.Gone)
}

// remedies returns what can be done about an answer, each once.
func remedies(a *Answer) (list []string) {
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
		if !slices.ContainsFunc(a.Owners, func(p Part) bool {
			return p.NotImported != "" || p.NotAdmitted != "" || len(p.Refusals)+len(p.Gone) > 0
		}) {
			add("if the name should exist, ask the owner that should publish it: 'federationctl why' there, or 'federationctl watch' with this server's certificate")
		}
	}
	for i := range a.Owners {
		p := &a.Owners[i]
		switch state := p.State; {
		case !matters(a, i):
		case state == "parked" && !p.NextAttempt.IsZero():
			add("an owner refuses this consumer: correct tls, owner_id or api, or its allow list; it is tried again in some minutes, or now by 'federationctl retry' (log: \"owner is parked: tried again in some minutes, or when the certificate, key or CA files or the configuration change\")")
		case state == "parked":
			add("an owner refuses this consumer and is not tried again by itself: correct tls, owner_id or api, or its allow list, then reload or 'federationctl retry' (log: \"owner is parked: not tried again before the certificate, key or CA files or the configuration change\")")
		case state == "connecting" && p.Remedy != "": // which stands with the reason
		case state == "connecting":
			add("find out why there is no stream: the network, the address in owner, or the certificates in tls (log: \"not connected to owner, still trying\")")
		case state == "syncing":
			add("wait for the catalog; if it stays, the owner says nothing that is accepted (settle; log: \"message of owner refused\")")
		case state == "stale":
			add("repair the owner or the network before its records go; to win time raise retention and reload (log: \"owner is lost, trying to connect again\")")
		case state == "expired":
			add("repair the owner or the network; its records come back with it (retention; log: \"owner is expired: the retention is over and its records are gone\")")
		}
		if p.NotImported != "" {
			add("if the service should be here, widen import_names or import_labels (metric coredns_federation_services_not_imported)")
		}
		if p.NotAdmitted != "" && a.Verdict != Refused { // or the refusal says what to do
			add("if the service should be here, change the zones of the federation block or its rename, or have the owner choose another name")
		}
		if len(p.Refusals) > 0 {
			add(correction(&p.Refusals[0]))
		}
		if slices.ContainsFunc(p.Gone, func(g Gone) bool { return g.Cause == "withdrawn" || g.Cause == "absent" }) {
			add("ask the owner why the service is gone: 'federationctl why' there")
		}
	}
	return list
}

// broken says which rule a service of an owner breaks.
func broken(owner string, r *Refusal) string {
	s := "a service"
	if r.Service != "" {
		s = "service " + federation.Quote(r.Service)
	}
	if r.FQDN != "" {
		s += fmt.Sprintf(" (%s)", word(r.FQDN))
	}
	return fmt.Sprintf("%s of owner %s breaks the rule %s: %s", s, word(owner), word(cmp.Or(r.Reason, "without a name")), plain(cmp.Or(r.Rule, "no more is given")))
}

// correction says what can be done about a refusal.
func correction(r *Refusal) string {
	s := "have the owner correct the service"
	switch federation.Reason(r.Reason) { //nolint:exhaustive // the others depend on the owner alone
	case federation.ReasonOutOfZone:
		s = "if the service should be here, add its zone to the federation block of the owner, or have the owner publish it in a zone of the block"
	case federation.ReasonReservedName:
		s = "have the owner choose another name: the zone needs this one for itself"
	case federation.ReasonName:
		s = "have the owner correct the name, or the rename here that makes it invalid"
	case federation.ReasonAddress:
		s = "have the owner correct the address, or permit it with allow_addresses"
	case federation.ReasonLimit:
		s = "have the owner stay below the limit, or raise it if it is a property here"
	}
	return s + " (log: \"message of owner refused\", metric coredns_federation_nacks_total)"
}

// matters reports whether the state of an owner has to do with the answer: of an owner that
// could have the name, or comes before the one that has it.
func matters(a *Answer, i int) bool {
	switch {
	case a.Verdict == OwnData:
		return false
	case a.Verdict == NotKnownYet:
		return !a.Owners[i].Known
	case a.Holder != nil:
		return i <= slices.IndexFunc(a.Owners, func(p Part) bool { return p.ID == a.Holder.Owner })
	}
	return true
}

// publication adds what one catalog of an owner has under the name.
func (t *text) publication(w *Why, p *Publication) {
	published := 0
	for i := range p.Services {
		if p.Services[i].Hidden == "" {
			published++
		}
	}
	name := catalogName(p.Catalog)
	switch {
	case len(p.Services) == 0:
		t.addf(0, "%s: not in catalog %s: no source has the name", word(w.Name), name)
	case p.Unavailable != "":
		t.addf(0, "%s: in catalog %s, which consumers cannot have", word(w.Name), name)
	case published == 0:
		t.addf(0, "%s: in catalog %s, but hidden", word(w.Name), name)
	default:
		t.addf(0, "%s: published in catalog %s by %s", word(w.Name), name, count(published, "service"))
	}
	if p.Unavailable != "" {
		t.addf(1, "the catalog is not served to anybody: %s", plain(p.Unavailable))
	}
	for i := range p.Services[:min(len(p.Services), maxShown)] {
		t.offered(&p.Services[i])
	}
	t.more(1, len(p.Services), "services")
	for i := range p.Sources[:min(len(p.Sources), maxShown)] {
		t.source(1, &p.Sources[i])
	}
	t.more(1, len(p.Sources), "sources")
	t.refused(1, "", p.Refusals)
	t.gone(1, p.Gone)
	switch {
	case p.Unavailable != "":
		t.addf(1, "to do: repair the source that is waited for; consumers keep what they have meanwhile (metric federation_owner_catalog_unavailable)")
	case len(p.Services) == 0 && len(p.Gone) == 0:
		t.addf(1, "to do: add the service to a source, or correct its name there; the log names entries that a source refuses")
	case slices.ContainsFunc(p.Sources, func(s Source) bool { return s.Away != "" }):
		t.addf(1, "to do: repair the source that is away: until then it stays as it was, and changes are not published (log: the first error)")
	case len(p.Refusals) > 0:
		t.addf(1, "to do: correct what consumers refuse, or have them change their configuration (metric federation_owner_refused_total)")
	case slices.ContainsFunc(p.Services, func(o Offered) bool {
		return slices.ContainsFunc(o.Audience, func(t Audience) bool { return t.Hidden && t.Rule == 0 })
	}):
		t.addf(1, "to do: if consumers that are not told should be, add a rule to exports that is for them and matches the service")
	}
}

// offered adds a service of a source, and who is told of it.
func (t *text) offered(o *Offered) {
	s := fmt.Sprintf("service %s at %s, from source %s, %s, %s", federation.Quote(o.Name), word(o.FQDN), word(o.Source),
		count(o.Endpoints, "endpoint"), count(o.Instances, "instance"))
	if o.Updated.IsZero() {
		s += ", as it was at the start"
	} else {
		s += ", as it is " + t.since(o.Updated)
	}
	t.addf(1, "%s", s)
	if o.Hidden != "" {
		t.addf(2, "hidden, so nobody is told: %s", plain(o.Hidden))
	}
	if o.Held {
		t.addf(2, "held, as its origin has it no more, with too many others; 'federationctl confirm' withdraws it")
	}
	for _, reason := range o.Withheld[:min(len(o.Withheld), maxShown)] {
		t.addf(2, "withheld: %s", plain(reason))
	}
	t.more(2, len(o.Withheld), "reasons")
	for i := range o.Audience[:min(len(o.Audience), maxShown)] {
		t.audience(&o.Audience[i])
	}
	t.more(2, len(o.Audience), "classes of consumers")
}

// told adds what a class of consumers is told.
func (t *text) audience(o *Audience) {
	who := "class " + word(o.Class)
	if o.Class == "everybody" {
		who = o.Class
	}
	who += fmt.Sprintf(" (%s now)", count(o.Consumers, "consumer"))
	switch {
	case o.Hidden && o.Rule > 0:
		t.addf(2, "not told to %s, by rule %d of exports", who, o.Rule)
	case o.Hidden && o.Class == "none":
		t.addf(2, "not told to %s: no rule of exports is for them", who)
	case o.Hidden && strings.Contains(o.Class, "+"):
		t.addf(2, "not told to %s: rules %s of exports are for them, and none of them matches the service", who, word(o.Class))
	case o.Hidden && o.Class != "other":
		t.addf(2, "not told to %s: rule %s of exports is for them, and does not match the service", who, word(o.Class))
	case o.Hidden:
		t.addf(2, "not told to %s: no rule of exports that is for them matches the service", who)
	case o.As != "":
		t.addf(2, "told to %s as %s, by rule %d of exports", who, word(o.As), o.Rule)
	case o.Rule > 0:
		t.addf(2, "told to %s, by rule %d of exports", who, o.Rule)
	default:
		t.addf(2, "told to %s", who)
	}
}
