package matrix

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/peers/faultowner"
)

// answer is the zone's answer for a name.
type answer struct {
	kind    zone.ResultKind
	address string
	ttl     uint32
	stale   bool
}

func (a answer) String() string {
	switch a.kind {
	case zone.Unsynced:
		return "SERVFAIL"
	case zone.Unheard:
		return "SERVFAIL or the next plugin's"
	case zone.NameError:
		return "NXDOMAIN"
	case zone.NoData:
		return "NODATA"
	case zone.Success:
	default:
		return fmt.Sprintf("kind %d", a.kind)
	}
	if a.stale {
		return fmt.Sprintf("%s stale for %d s", a.address, a.ttl)
	}
	return fmt.Sprintf("%s for %d s", a.address, a.ttl)
}

// option is an answer that is allowed.
type option struct {
	kind        zone.ResultKind
	address     string
	live, stale bool
	from, to    uint32 // least and greatest TTL
}

// allows reports whether a is the answer of the option.
func (o option) allows(a answer) bool {
	return o.kind == a.kind && (o.kind != zone.Success ||
		o.address == a.address && o.from <= a.ttl && a.ttl <= o.to && (a.stale && o.stale || !a.stale && o.live))
}

func (o option) String() string {
	if o.kind != zone.Success {
		return answer{kind: o.kind}.String()
	}
	flag := map[[2]bool]string{{true, false}: "live", {false, true}: "stale", {true, true}: "live or stale"}[[2]bool{o.live, o.stale}]
	return fmt.Sprintf("%s %s for %d to %d s", o.address, flag, o.from, o.to)
}

// slack is how late, or early, an event may have its effect. Within a second of it
// an answer may be as before or as after it.
const slack = time.Second

// grace is for how long what a complete catalog had is live after its stream was lost.
const grace = 5 * time.Second

// rules is the part of the configuration that decides what is allowed.
type rules struct {
	zone      string // of the owner
	shared    bool   // with the neighbour, whose catalog is always known
	retention time.Duration
	settle    time.Duration
	ttl       uint32
	largest   int // message, in octets
}

// oracle knows which answers are allowed for one owner. It learns what the owner
// really said from the owner itself. It learns only one thing from the agent: the
// moment at which a catalog was taken for complete, where the rules allow more than
// one; and it checks that moment.
//
// It is written from the documents and shares no code with what it judges: it keeps
// records in a list, recomputes everything from the time, and has no generations.
type oracle struct {
	rules

	sharing sharing
	records []*record
	open    *speech // the stream that is open, or nil

	started        time.Time // of the process
	knows, mayKnow bool      // a catalog has been complete, or was restored: certainly, or perhaps
	clock          moments   // when the retention began to run; none while it does not
	lostAt         time.Time // when the stream of a complete catalog was lost last
	grace          time.Time // until when that is no loss; zero from when another catalog is complete
	ended          bool      // the retention has ended once in this process: names may be denied since then
	guarded        bool      // the last complete catalog lacked services that the guard kept

	refusedBy map[string]bool // replicas that refused the consumer and must not be tried again
	lastSaid  time.Time       // when a stream was last open on which something had been said

	now      func() time.Time
	wrong    func(format string, args ...any) // reports that a rule was broken
	trace    []string                         // what happened, for reports
	messages int                              // answered
}

// record is one service, in the last version that was acknowledged.
type record struct {
	id, name, fqdn, address string
	stream                  *speech   // on which it was announced last
	lost                    moments   // when its retention began; none while that stream is open
	graced                  bool      // it was announced on the last stream whose catalog was complete, or since
	held                    bool      // a complete catalog lacked it, and it was kept
	vague                   bool      // a bad version was refused since then: it is kept, live or stale
	refused                 *speech   // the stream on which that was
	perhaps                 bool      // it may be gone
	tentative               bool      // new: sent and not answered
	next                    []*record // versions that were sent and not answered; a nil element is a deletion
}

func isVague(r *record) bool { return r.vague }

// moments are when a retention began. There is more than one if a stream was lost that was not
// complete when another retention was about to end: it began another one only if that one was
// over.
type moments []time.Time

// mayBeOver reports whether the retention that began at one of the moments may be over.
func (o *oracle) mayBeOver(began moments, now time.Time) bool {
	return slices.ContainsFunc(began, func(at time.Time) bool { return o.retention > 0 && !now.Before(at.Add(o.retention-slack)) })
}

// mustBeOver reports whether the retention began, and is over whenever that was.
func (o *oracle) mustBeOver(began moments, now time.Time) bool {
	return o.retention > 0 && len(began) > 0 && now.After(slices.MaxFunc(began, time.Time.Compare).Add(o.retention+slack))
}

// speech is one stream.
type speech struct {
	replica    string
	connection int // with the replica
	number     int
	marked     bool      // its header announced the end of the catalog
	content    bool      // a good service, or a deletion, was said
	said       bool      // anything was said
	synced     bool      // its catalog is complete
	left       bool      // the consumer ends it, and hears no more
	changed    time.Time // when a service was last said that is new to the stream, or refused
	heard      time.Time // when anything was last said
}

// notef adds a line to the trace.
func (o *oracle) notef(format string, args ...any) {
	o.trace = append(o.trace, o.now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
	if len(o.trace) > 400 {
		o.trace = slices.Delete(o.trace, 0, 200)
	}
}

// tell takes in a fact about a replica. A stream that opens does so on the given
// connection.
func (o *oracle) tell(replica string, connection int, f faultowner.Fact) {
	now := o.now()
	o.advance(now)
	switch f.What {
	case faultowner.Opened:
		o.notef("%s stream %d opens", replica, f.Stream)
		if o.open != nil { // it ends at the same instant; tick finds more than one connection
			o.lose(now)
		}
		o.open = &speech{replica: replica, connection: connection, number: f.Stream, heard: now, changed: now}
	case faultowner.Sending:
		o.sending(f)
	case faultowner.Answered:
		o.answered(replica, f, now)
	case faultowner.Ended:
		o.notef("%s stream %d ends: %v", replica, f.Stream, f.Code)
		switch f.Code {
		case codes.Unauthenticated, codes.InvalidArgument:
			o.refusedBy[replica] = true
		}
		if o.open != nil && o.open.replica == replica && o.open.number == f.Stream {
			o.lose(now)
		}
	}
}

// closed takes in that a connection with a replica is closed, by either side. It may
// be an old one that is closed after a stream has opened on the next.
func (o *oracle) closed(replica string, connection int) {
	now := o.now()
	o.advance(now)
	if o.open != nil && o.open.replica == replica && o.open.connection == connection {
		o.notef("connection with %s is closed", replica)
		o.lose(now)
	}
}

// rearm takes in that there is a reason to try all replicas again.
func (o *oracle) rearm() { clear(o.refusedBy) }

// said is a response, as far as the oracle understands it.
type said struct {
	id, name, fqdn, address string
	operation               rdpb.StreamResponse_Operation
	empty                   bool
	good                    bool // it must be acknowledged
}

// understand judges a response without the library.
func (o *oracle) understand(r *rdpb.StreamResponse) said {
	s := said{id: r.GetResourceId(), operation: r.GetOperation()}
	ours := r.GetContext() != "of another session"
	switch r.GetOperation() {
	case rdpb.StreamResponse_DELETE:
		s.good = ours
		return s
	case rdpb.StreamResponse_UNKNOWN:
		s.empty = r.GetResource() == nil
		s.good = ours && s.empty
		return s
	case rdpb.StreamResponse_UPSERT:
	default:
		return s
	}
	service := new(typespb.FederatedService)
	if proto.Unmarshal(r.GetResource().GetValue(), service) != nil || len(service.GetEndpoints()) != 1 {
		return s
	}
	s.name, s.fqdn, s.address = service.GetName(), service.GetFqdn(), service.GetEndpoints()[0].GetAddress()
	s.good = ours && strings.HasSuffix(r.GetResource().GetTypeUrl(), ".FederatedService") &&
		len(service.GetInstances()) > 0 && proto.Size(r) <= o.largest &&
		strings.HasSuffix(s.fqdn, "."+o.zone) && !strings.HasSuffix(s.fqdn, ".dns."+o.zone) &&
		!strings.HasPrefix(s.address, "127.") && !strings.HasPrefix(s.address, "169.254.")
	return s
}

// sending takes in a response that is about to be sent, and may be applied from now
// on.
func (o *oracle) sending(f faultowner.Fact) {
	if o.open == nil {
		return
	}
	o.open.marked = f.Marked
	s := o.understand(f.Response)
	if !s.good || s.empty {
		return
	}
	for _, r := range o.about(s) {
		var next *record
		if s.operation == rdpb.StreamResponse_UPSERT {
			next = o.version(s)
		}
		r.next = append(r.next, next)
	}
	if s.operation == rdpb.StreamResponse_UPSERT && o.named(s.name) == nil {
		r := o.version(s)
		r.perhaps, r.tentative = true, true
		o.insert(r)
	}
}

// version returns the record of a service as the open stream announces it.
func (o *oracle) version(s said) *record {
	return &record{id: s.id, name: s.name, fqdn: s.fqdn, address: s.address, stream: o.open}
}

// named returns the record with the name, or nil.
func (o *oracle) named(name string) *record {
	for _, r := range o.records {
		if r.name == name {
			return r
		}
	}
	return nil
}

// insert adds a record. The records are in the order of their names.
func (o *oracle) insert(r *record) {
	i, _ := slices.BinarySearchFunc(o.records, r, func(a, b *record) int { return strings.Compare(a.name, b.name) })
	o.records = slices.Insert(o.records, i, r)
}

// about returns the records that a response is about.
func (o *oracle) about(s said) (about []*record) {
	for _, r := range o.records {
		if r.name == s.name && s.name != "" || s.operation == rdpb.StreamResponse_DELETE && (r.id == s.id || r.name == s.id) {
			about = append(about, r)
		}
	}
	return about
}

// answered takes in the answer to a response. It must be an ACK or a NACK as the
// response is good or bad.
func (o *oracle) answered(replica string, f faultowner.Fact, now time.Time) {
	o.messages++
	s := o.understand(f.Response)
	switch {
	case f.Refusal == "" && !s.good:
		o.wrong("%s: bad %v of %q was acknowledged", replica, s.operation, s.id)
	case f.Refusal != "" && s.good && s.operation != rdpb.StreamResponse_DELETE:
		o.wrong("%s: good %v of %q was refused: %s", replica, s.operation, s.id, f.Refusal)
	}
	if o.open == nil || o.open.replica != replica || o.open.number != f.Stream {
		return
	}
	stream := o.open
	stream.heard, stream.said, o.lastSaid = now, true, now
	switch {
	case f.Refusal != "":
		o.notef("%s refuses %v %s %s %s", replica, s.operation, s.id, s.fqdn, s.address)
		stream.changed = now
		for _, r := range o.about(s) {
			r.next = nil
			// The owner still offers a service that it announces badly.
			if s.operation != rdpb.StreamResponse_DELETE {
				o.keep(r, now)
			}
		}
		if s.operation == rdpb.StreamResponse_DELETE {
			return
		}
		// Of some bad messages only the resource_id can be read.
		for _, r := range o.records {
			if r.name == s.id || r.id == s.id {
				o.keep(r, now)
			}
		}
		return
	case s.empty:
		o.notef("%s says nothing, marked %v", replica, f.Marked)
		if stream.marked {
			o.complete(true)
		}
		return
	}
	stream.content = true
	if s.operation == rdpb.StreamResponse_DELETE {
		o.notef("%s deletes %s", replica, s.id)
		o.records = slices.DeleteFunc(o.records, func(r *record) bool { return r.id == s.id })
		for _, r := range o.about(s) {
			r.next = nil
		}
		return
	}
	o.notef("%s upserts %s %s %s", replica, s.id, s.fqdn, s.address)
	old := o.named(s.name)
	if old == nil || old.stream != stream || old.perhaps {
		stream.changed = now
	}
	if i := slices.Index(o.records, old); i >= 0 {
		// The versions that were sent after this one are not answered yet.
		next := o.version(s)
		if len(old.next) > 0 {
			next.next = old.next[1:]
		}
		o.records[i] = next
		return
	}
	o.insert(o.version(s))
}

// keep takes in that a bad version of a record was refused on the open stream: what there
// is of it stays, unless its retention is over, and with it the record.
func (o *oracle) keep(r *record, now time.Time) {
	r.vague, r.refused = true, o.open
	r.perhaps = r.perhaps || o.mayBeOver(r.lost, now)
}

// complete takes in that the catalog of the open stream is complete: because the
// owner has marked its end (rule 1), or after silence (rule 2). After silence a guard
// keeps the services that are missing if they are the larger part of a catalog.
func (o *oracle) complete(marked bool) {
	stream := o.open
	o.notef("catalog is complete, marked %v", marked)
	stream.synced = true
	// What was announced badly on this stream is not missing.
	offered := func(r *record) bool { return r.vague && r.refused == stream }
	// Whether the guard holds depends on what there is: what may be gone counts or does not.
	var without, all, perhaps int
	for _, r := range o.records {
		switch missing := r.stream != stream && !offered(r); {
		case r.stream != stream && r.perhaps:
			if missing {
				perhaps++
			}
			continue
		case missing:
			without++
		}
		all++
	}
	holds := func(more int) bool { return !marked && without+more >= 10 && 2*(without+more) > all+more }
	hold, mayHold := holds(0), holds(perhaps)
	o.guarded = mayHold
	o.records = slices.DeleteFunc(o.records, func(r *record) bool {
		if r.stream == stream {
			return false
		}
		r.held = true
		r.perhaps = r.perhaps || !hold && !offered(r)
		return !mayHold && !offered(r)
	})
	o.knows, o.mayKnow = true, true
	o.clock, o.grace = nil, time.Time{}
	for _, r := range o.records {
		r.graced = false
	}
}

// window returns from when the catalog of the open stream may be complete after
// silence, and when it must be. It is not ok where silence does not complete it.
func (o *oracle) window() (from, to time.Time, ok bool) {
	s := o.open
	if s == nil || s.synced || s.marked || s.left || !s.content {
		return from, to, false
	}
	return s.changed.Add(o.settle), s.heard.Add(o.settle), true
}

// advance takes in that it is now.
func (o *oracle) advance(now time.Time) {
	if _, to, ok := o.window(); ok && now.After(to) {
		o.complete(false)
	}
	if o.open != nil && o.open.said {
		o.lastSaid = now
	}
	o.ended = o.ended || o.mayBeOver(o.clock, now)
	o.records = slices.DeleteFunc(o.records, func(r *record) bool {
		return r.stream != o.open && o.mustBeOver(r.lost, now.Add(-slack)) && !(r.vague && o.open != nil)
	})
}

// lose takes in that the open stream is lost.
func (o *oracle) lose(now time.Time) {
	stream := o.open
	o.open = nil
	// A response without an answer has not arrived completely: the owners of the matrix
	// wait for the answers before they end a stream.
	o.records = slices.DeleteFunc(o.records, func(r *record) bool { return r.tentative })
	for _, r := range o.records {
		r.next = nil
	}
	some := slices.ContainsFunc(o.records, func(r *record) bool { return r.stream == stream })
	switch may, must := o.mayBeOver(o.clock, now), o.mustBeOver(o.clock, now); {
	case stream.synced, some && (len(o.clock) == 0 || must):
		o.clock = moments{now}
	case may && !must:
		// If the retention is not over, what this stream announced goes with the rest.
		o.doubt()
		if some {
			o.clock = append(slices.Clip(o.clock), now)
		}
	}
	if stream.synced {
		o.lostAt, o.grace = now, now.Add(grace)
		if o.retention > 0 && o.retention < grace {
			o.grace = now.Add(o.retention)
		}
	}
	for _, r := range o.records {
		r.graced = r.graced || r.stream == stream && now.Before(o.grace)
		switch {
		case r.vague:
			r.lost = append(slices.Clip(r.lost), now) // at the latest, or when it was lost before
		case r.stream == stream && len(r.lost) == 0:
			r.lost = o.clock
		}
	}
}

// doubt takes in that the retention of all that is known may be over.
func (o *oracle) doubt() {
	o.knows = false
	for _, r := range o.records {
		r.perhaps = true
	}
}

// leave takes in that the process begins to shut down: nobody listens any more, so silence
// proves nothing. The stream is lost when it has ended.
func (o *oracle) leave() {
	if o.open != nil {
		o.open.left = true
	}
}

// restart takes in that the process has shut down. A new one will start; kept says
// that it finds the catalog in a file.
func (o *oracle) restart(now time.Time, kept bool) {
	o.advance(now)
	if o.open != nil {
		o.lose(now)
	}
	o.notef("the process ends")
	switch {
	case !o.mayKnow || !kept:
		o.records, o.knows, o.mayKnow = nil, false, false
	case !o.knows || slices.ContainsFunc(o.records, isVague):
		o.doubt()
	}
	for _, r := range o.records {
		r.perhaps = r.perhaps || r.held || r.vague
	}
	o.rearm()
}

// start takes in that a process has started.
func (o *oracle) start(now time.Time) {
	o.notef("a process starts")
	o.grace = time.Time{}
	for _, r := range o.records {
		r.graced = false
	}
	o.started, o.lastSaid, o.ended = now, now, false
	// The retention of the file may have ended meanwhile.
	if o.mayBeOver(o.clock, now) {
		o.doubt()
		if o.mustBeOver(o.clock, now) && !slices.ContainsFunc(o.records, isVague) {
			o.mayKnow = false
		}
	}
	if !o.mayKnow {
		o.records, o.clock = nil, nil
	}
}

// patience is how long names are not denied because of an owner that nothing is known
// of, in a zone that it shares with another owner.
const patience = 30 * time.Second

// allowed returns the answers that are allowed now for a question: a name, for addresses, or a
// name with " SRV" behind it.
func (o *oracle) allowed(question string, now time.Time) []option {
	o.advance(now)
	name, srv := strings.CutSuffix(question, " SRV")
	fqdn := strings.TrimSuffix(strings.TrimPrefix(name, "v1."), ".")
	all, sure := o.offers(fqdn, now)
	if o.sharing.shares(fqdn) {
		all, sure = o.joined(fqdn, srv, now)
	}
	if sure {
		return all
	}
	// An empty non-terminal exists as long as something below it does.
	isBelow := func(name string) bool {
		return len(name) > len(fqdn) && name[len(name)-len(fqdn)-1] == '.' && strings.HasSuffix(name, fqdn)
	}
	below := false
	for _, r := range o.records {
		if !r.concerns(isBelow) {
			continue
		}
		versions, sure := o.versions(r, now)
		for _, v := range versions {
			sure = sure && isBelow(v.fqdn)
		}
		if o.mayKnowAt(now) {
			all = append(all, option{kind: zone.NoData})
		}
		below = below || sure
	}
	for _, n := range o.negative(now) {
		if !below || n.kind == zone.Unsynced || n.kind == zone.Unheard {
			all = append(all, n)
		}
	}
	return all
}

// offers returns the allowed answers with what the owner has at the fqdn, and whether it
// certainly has something.
func (o *oracle) offers(fqdn string, now time.Time) (all []option, sure bool) {
	for _, r := range o.records { // of services with one fqdn, the one with the first name wins
		if !r.concerns(func(name string) bool { return name == fqdn }) {
			continue
		}
		versions, sure := o.versions(r, now)
		for _, v := range versions {
			if v.fqdn == fqdn {
				all = append(all, o.options(r, v, now)...)
			} else {
				sure = false
			}
		}
		if sure {
			return all, true
		}
	}
	return all, false
}

// liveTTL returns the TTL of live answers.
func (o *oracle) liveTTL() uint32 {
	if o.retention > 0 {
		return min(o.ttl, uint32(o.retention/time.Second))
	}
	return o.ttl
}

// concerns reports whether a version of the record has such an fqdn.
func (r *record) concerns(such func(fqdn string) bool) bool {
	return such(r.fqdn) || slices.ContainsFunc(r.next, func(n *record) bool { return n != nil && such(n.fqdn) })
}

// versions returns the versions of a record that may be answered now, and whether
// one of them certainly is.
func (o *oracle) versions(r *record, now time.Time) (versions []*record, sure bool) {
	sure = !r.perhaps
	versions = []*record{r}
	for _, n := range r.next {
		if n == nil {
			sure = false
		} else {
			versions = append(versions, n)
		}
	}
	if from, _, ok := o.window(); ok && r.stream != o.open && !now.Before(from.Add(-slack)) {
		sure = false // it may be swept
	}
	return versions, sure && !o.mayBeOver(r.lost, now)
}

// options returns the allowed answers with the version v of the record r.
func (o *oracle) options(r, v *record, now time.Time) (all []option) {
	live := option{kind: zone.Success, address: v.address, live: true, from: o.liveTTL(), to: o.liveTTL()}
	if r.stream == o.open && o.open != nil || v.stream == o.open && o.open != nil || r.vague && o.open != nil {
		all = append(all, live)
	}
	if r.stream == o.open && !r.vague && o.open != nil {
		return all
	}
	if (r.graced || r.vague) && now.Before(o.grace.Add(slack)) && len(all) == 0 {
		all = append(all, live)
	}
	if r.graced && !r.vague && now.Before(o.grace.Add(-slack)) {
		return all
	}
	began := r.lost
	if len(began) == 0 {
		began = o.clock
	}
	if len(began) == 0 {
		began = moments{now}
	}
	for _, at := range began {
		stale := option{kind: zone.Success, address: v.address, stale: true, from: min(30, o.ttl), to: min(30, o.ttl)}
		if o.retention > 0 {
			left := max(int(at.Add(o.retention).Sub(now)/time.Second), 0)
			stale.to = min(stale.to, uint32(left)+1)
			stale.from = min(stale.from, uint32(max(left-1, 1)))
			if o.guarded {
				stale.from = 1 // the service that expires first bounds the TTL of all
			}
		}
		if r.vague {
			stale.from, stale.to = 1, min(30, o.ttl)
		}
		all = append(all, stale)
	}
	return all
}

// mayKnowAt reports whether names may be denied now.
func (o *oracle) mayKnowAt(now time.Time) bool {
	from, _, ok := o.window()
	return o.mayKnow || o.ended || ok && !now.Before(from.Add(-slack)) || o.shared && now.After(o.started.Add(patience-slack))
}

// negative returns the allowed answers for a name that does not exist.
func (o *oracle) negative(now time.Time) (all []option) {
	if o.mayKnowAt(now) {
		all = append(all, option{kind: zone.NameError})
	}
	if !o.knows {
		all = append(all, option{kind: zone.Unsynced})
		if !o.shared && now.After(o.started.Add(patience-slack)) {
			all = append(all, option{kind: zone.Unheard})
		}
	}
	return all
}
