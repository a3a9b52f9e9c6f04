// Package feedback tells the authors of ServiceExports what has become of their Services, by
// conditions.
//
// Nobody waits for it: what is to be told is noted, and a [Writer] writes it later, a
// bounded number of times in a second, refusals first. Of what is noted for one
// Service only the latest is kept, and what others say of it is added to that. Nothing is written that the object says already,
// so that an owner that starts writes nothing, and replicas that think alike write
// what they both think once, or twice where they are as quick as each other.
//
// # Who writes what
//
// Conditions are applied by the server, without force: Valid and Ready with the field
// manager [Manager]. Every replica has the same to say, and so they share it. So do owners,
// catalogs and zones that read one cluster, and their words differ, such as in the fqdn:
// conditions of one status, reason and generation are left alone, unless they are what this
// Writer would have said before its own words changed. Where even the status or the reason
// differs, each says what it has to say a few times, until its verdict is another. Where
// another controller keeps a condition of that type the two must not take turns, and
// so the other has it.
//
// What consumers refuse is different for each replica, as each serves other consumers.
// It has a condition and a field manager of its own, with these rules: a replica
// whose consumers refuse a service says so unless another replica has. It takes that
// back when its own consumers take the service, if it said it; and any replica takes
// it back when the service has changed since. What was said before a replica started,
// maybe by one that is gone, the replica takes back once all its consumers have had the
// time to come back, if none of them refuses the service. If those of another replica
// still do, that one says it once more, and it is newer than the start then. A replica
// whose consumers are content says nothing. So replicas do not take turns, and the
// condition says what at least one consumer thought of the service as it is now.
package feedback

import (
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/federation/source/kubernetes/export"
)

// Note is what the owner has to tell of one exported Service. What others say of it the
// Writer adds.
type Note struct {
	Standing export.Standing
	Export   *mcsv1beta1.ServiceExport
}

// task is what is to be written for one Service.
type task struct {
	export     *mcsv1beta1.ServiceExport
	conditions []metav1.Condition // Valid and Ready; nil: they are right
	opinion    []metav1.Condition // of consumers; empty: to be taken back
	opinions   bool               // opinion is to be written
	urgent     bool
	due        time.Time // not before
	tries      int       // that have failed because of the object
}

// nothing reports whether all of the task is done.
func (t *task) nothing() bool {
	return t.conditions == nil && !t.opinions
}

// voice is what a Writer has to say in the conditions of one ServiceExport.
type voice struct {
	verdict uint64 // hash of the object, and of type, status, reason and generation
	text    uint64 // the same, with the messages
	owed    bool   // words of our own are to be replaced
	writes  int    // of this verdict
}

// patience is how long after its start an owner waits for its consumers: twice as long as
// they wait at most before they come back.
const patience = 10 * time.Minute

// maxWrites is how often one verdict is written against others that read the same cluster.
// More than once, as what is known of the object may be older than what was written last.
const maxWrites = 3

// voiceOf returns what conditions say of an object.
func voiceOf(of types.UID, conditions []metav1.Condition) voice {
	verdict, text := fnv.New64a(), fnv.New64a()
	for _, c := range conditions {
		fmt.Fprintf(io.MultiWriter(verdict, text), "%s\x00%s\x00%s\x00%s\x00%d\x00", of, c.Type, c.Status, c.Reason, c.ObservedGeneration)
		fmt.Fprintf(text, "%s\x00", c.Message)
	}
	return voice{verdict: verdict.Sum64(), text: text.Sum64()}
}

// hear takes what there is to say now, and what the object says, and reports whether the
// former is to be written.
func (v *voice) hear(now, there voice) bool {
	if now.text != v.text {
		v.owed = there.text == v.text
		if now.verdict != v.verdict {
			v.writes = 0
		}
		v.verdict, v.text = now.verdict, now.text
	}
	v.owed = v.owed && there.text != v.text
	return v.owed || there.verdict != v.verdict && v.writes < maxWrites
}

// plan is what is known of a Service between its notes.
type plan struct {
	note     Note // the latest
	noted    bool // whether there is one of what is published now
	hidden   bool
	refusals map[string]string // by consumer
	changed  time.Time         // when what is published was seen to change; zero: not yet

	opinion  bool   // the condition of consumers is this replica's
	conflict uint64 // text of what another controller did not let through
	voice    voice
}

// Tell notes what is to be told of a Service. It does not block.
func (w *Writer) Tell(of types.NamespacedName, note Note) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.plan(of)
	p.note, p.noted = note, true
	w.queue(of, p)
}

// Changed notes that a Service is published in another form from now on, and will be told
// of: what consumers have said is about another. live says that it was seen to change, and
// not only to be there.
func (w *Writer) Changed(of types.NamespacedName, live bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.plan(of)
	p.refusals, p.noted = nil, false
	if live {
		p.changed = w.now()
	}
}

// Hidden notes whether an earlier source of the catalog has the place of a Service.
func (w *Writer) Hidden(of types.NamespacedName, hidden bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.plans[of]; p != nil && p.hidden != hidden {
		p.hidden = hidden
		w.queue(of, p)
	}
}

// maxRefusals is how many consumers are remembered that refuse one Service.
const maxRefusals = 16

// Refused notes by which rule a consumer refuses a Service, or "" where it takes it again.
func (w *Writer) Refused(of types.NamespacedName, consumer, rule string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.plans[of]
	if p == nil {
		return
	}
	before := p.refusals[consumer]
	switch {
	case before == rule || before == "" && len(p.refusals) >= maxRefusals:
		return
	case rule == "":
		delete(p.refusals, consumer)
	default:
		if p.refusals == nil {
			p.refusals = make(map[string]string, 1)
		}
		p.refusals[consumer] = rule
	}
	w.queue(of, p)
}

// queue has written what there is to say of a Service now. It is called with mu held.
func (w *Writer) queue(of types.NamespacedName, p *plan) {
	if !p.noted {
		return // it is about to be
	}
	delete(w.urgent, of)
	delete(w.usual, of)
	if t := p.task(w.now(), w.began); !t.nothing() {
		w.put(of, t)
		w.rouse()
	}
}

func (w *Writer) put(of types.NamespacedName, t task) {
	if t.urgent {
		w.urgent[of] = t
	} else {
		w.usual[of] = t
	}
}

// rouse has Run look for tasks.
func (w *Writer) rouse() {
	select {
	case w.wake <- struct{}{}:
	default: // it is about to look
	}
}

// Forget drops what is to be told of a Service that is exported no more.
func (w *Writer) Forget(of types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.plans, of)
	delete(w.urgent, of)
	delete(w.usual, of)
}

// task returns what is to be written, by an owner that began then.
func (p *plan) task(now, began time.Time) task {
	note := p.note
	note.Standing.Hidden, note.Standing.Refusals = p.hidden, p.refusals
	t := task{export: note.Export, urgent: note.Standing.Verdict.Refusal != nil || note.Standing.Hidden}
	before := note.Export.Status.Conditions
	after := note.Standing.Conditions(before, note.Export.Generation, now)
	last := len(after) - 1 // what consumers say
	own, opinion := after[:last:last], after[last]
	said := meta.FindStatusCondition(before, export.Accepted)
	refused := opinion.Status == metav1.ConditionFalse
	switch {
	case refused && (said == nil || said.Status != metav1.ConditionFalse || p.opinion && *said != opinion):
		t.opinions, t.opinion, t.urgent = true, after[last:], true
	case !refused && said != nil && (p.opinion || !p.changed.IsZero() && said.LastTransitionTime.Time.Before(p.changed.Truncate(time.Second))):
		t.opinions = true
	case said == nil:
		p.opinion = false
	}
	var there []metav1.Condition // in the order of own
	for _, c := range own {
		if old := meta.FindStatusCondition(before, c.Type); old != nil {
			there = append(there, *old)
		}
	}
	voice := voiceOf(note.Export.UID, own)
	if news := p.voice.hear(voice, voiceOf(note.Export.UID, there)) || len(there) < len(own); news && voice.text != p.conflict {
		t.conditions = own
	}
	if !refused && said != nil && said.LastTransitionTime.Time.Before(began.Truncate(time.Second)) && t.nothing() {
		t.opinions, t.due = true, began.Add(patience)
	}
	return t
}

// Writer writes what it is told, while [Writer.Run] runs. It is safe for concurrent
// use.
type Writer struct {
	wake  chan struct{} // has a token when there is something to write
	log   *slog.Logger
	now   func() time.Time
	began time.Time

	mu     sync.Mutex
	server server
	plans  map[types.NamespacedName]*plan // of those that were told of, and not forgotten
	urgent map[types.NamespacedName]task
	usual  map[types.NamespacedName]task
	due    time.Time // nothing is written before, as the server did not take something
	said   string    // the error that was logged last
}

// New returns a Writer.
func New(log *slog.Logger) *Writer {
	return &Writer{
		wake: make(chan struct{}, 1), log: log, now: time.Now, began: time.Now(),
		plans: make(map[types.NamespacedName]*plan), urgent: make(map[types.NamespacedName]task), usual: make(map[types.NamespacedName]task),
	}
}

// next takes a task. Where there is none it returns how long until one is due at the latest.
func (w *Writer) next() (of types.NamespacedName, t task, server server, ok bool, due time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	due = time.Hour
	if w.server.exports == nil {
		return of, t, server, false, due
	}
	if wait := w.due.Sub(now); wait > 0 {
		return of, t, server, false, wait
	}
	for _, queue := range []map[types.NamespacedName]task{w.urgent, w.usual} {
		for of, t := range queue {
			wait := t.due.Sub(now)
			if wait <= 0 {
				delete(queue, of)
				return of, t, w.server, true, 0
			}
			due = min(due, wait)
		}
	}
	return of, t, w.server, false, due
}

// again puts a task back for after a delay, unless there is a newer one, or its Service is
// forgotten. What fails because of its object says nothing about the others: they go on.
// With all they wait as well.
func (w *Writer) again(of types.NamespacedName, t task, delay time.Duration, all bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t.due = w.now().Add(delay)
	if all {
		w.due = t.due
	}
	_, urgent := w.urgent[of]
	_, usual := w.usual[of]
	if !urgent && !usual && w.plans[of] != nil {
		w.put(of, t)
	}
}
