// Package feedback tells the authors of ServiceExports what has become of their Services, by
// conditions.
//
// Each replica of an owner knows what there is to say, and one of them says it: the one that
// holds the [Lease]. The others note the same, so that whichever is elected next goes on at
// once: it compares all that it knows with what the objects say, and writes what is
// different. A lease that is lost, or cannot be had, stops nothing else.
//
// Nobody waits for a [Writer]: what is to be told is noted, and written later, a bounded
// number of times in a second. Of what is noted for one Service only the latest is kept.
// Nothing is written that the object says already, so that pods that come and go, and an
// owner that starts, write nothing.
//
// The server applies the conditions, without force: what another controller keeps is left
// to it. A Writer says each thing once while it leads. Owners, catalogs and zones that read
// one cluster have a lease each, and the same conditions: so who had something new to say
// last has them, and nobody takes turns.
//
// Consumers follow one replica each. The condition Accepted is about those of the leader.
package feedback

import (
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes/export"
)

// Note is what the owner has to tell of one exported Service. What others say of it the
// Writer adds.
type Note struct {
	Standing export.ConditionFacts
	Export   *mcsv1beta1.ServiceExport
}

// serviceRecord is what is known of a Service.
type serviceRecord struct {
	note     Note // the latest; without an export until there is one
	hidden   bool
	refusals map[string]string  // by consumer
	said     []metav1.Condition // what was written last, or another controller did not let through
}

// Writer writes what it is told, while [Writer.Run] runs and this replica leads. It is safe
// for concurrent use.
type Writer struct {
	lease types.NamespacedName
	log   *slog.Logger
	ready chan struct{} // closed when there is a server

	mu      sync.Mutex
	leads   bool
	queue   workqueue.TypedRateLimitingInterface[types.NamespacedName] // of those to look at, while it leads
	server  apiServer
	records map[types.NamespacedName]*serviceRecord // of those that were told of, and not forgotten
	problem metav1.StatusReason                     // kind of the error that was logged last
}

// New returns a Writer. The replicas of an owner name the same lease.
func New(lease types.NamespacedName, log *slog.Logger) *Writer {
	return &Writer{lease: lease, log: log, ready: make(chan struct{}), records: make(map[types.NamespacedName]*serviceRecord)}
}

// SetNote notes what is to be told of a Service.
func (w *Writer) SetNote(of types.NamespacedName, note Note) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.recordOf(of)
	if p.note.Export == nil || p.note.Export.UID != note.Export.UID {
		p.said = nil
	}
	p.note = note
	w.enqueueService(of)
}

// ForgetRefusals notes that a Service is published in another form from now on, and will be told
// of: what consumers have said is about another.
func (w *Writer) ForgetRefusals(of types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recordOf(of).refusals = nil
}

// recordOf returns what is known of a Service. It is called with mu held.
func (w *Writer) recordOf(of types.NamespacedName) *serviceRecord {
	p := w.records[of]
	if p == nil {
		p = new(serviceRecord)
		w.records[of] = p
	}
	return p
}

// SetHidden notes whether an earlier source of the catalog has the place of a Service.
func (w *Writer) SetHidden(of types.NamespacedName, hidden bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.records[of]; p != nil && p.hidden != hidden {
		p.hidden = hidden
		w.enqueueService(of)
	}
}

// maxRefusals is how many consumers are remembered that refuse one Service.
const maxRefusals = 16

// SetRefusal notes by which rule a consumer refuses a Service, or "" where it takes it again.
func (w *Writer) SetRefusal(of types.NamespacedName, consumer, rule string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.records[of]
	switch {
	case p == nil || p.refusals[consumer] == "" && len(p.refusals) >= maxRefusals:
		return
	case rule == "":
		delete(p.refusals, consumer)
	case p.refusals == nil:
		p.refusals = map[string]string{consumer: rule}
	default:
		p.refusals[consumer] = rule
	}
	w.enqueueService(of)
}

// Forget drops what is to be told of a Service that is exported no more.
func (w *Writer) Forget(of types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.records, of)
}

// enqueueService has a leader look at a Service. It is called with mu held.
func (w *Writer) enqueueService(of types.NamespacedName) {
	if w.leads {
		w.queue.Add(of)
	}
}

// compareAll has everything compared with what the objects say. It is called with mu held.
func (w *Writer) compareAll() {
	for of, p := range w.records {
		p.said = nil
		w.enqueueService(of)
	}
}

// nextWrite returns what is to be written for a Service now, to which object. Without conditions
// it is nothing.
func (w *Writer) nextWrite(of types.NamespacedName) (to *mcsv1beta1.ServiceExport, conditions []metav1.Condition, through apiServer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.records[of]
	if !w.leads || w.server.exports == nil || p == nil || p.note.Export == nil {
		return nil, nil, apiServer{}
	}
	to = p.note.Export
	standing := p.note.Standing
	standing.Hidden, standing.Refusals = p.hidden, p.refusals
	conditions = standing.Conditions(to.Status.Conditions, to.Generation, time.Now())
	if hasConditions(to.Status.Conditions, conditions) || hasConditions(p.said, conditions) {
		return nil, nil, apiServer{}
	}
	return to, conditions, w.server
}

// hasConditions reports whether there are these conditions, and no older refusal of consumers.
func hasConditions(there, conditions []metav1.Condition) bool {
	for _, c := range conditions {
		old := meta.FindStatusCondition(there, c.Type)
		if old == nil {
			return false
		}
		if c.LastTransitionTime = old.LastTransitionTime; c != *old {
			return false
		}
	}
	return meta.FindStatusCondition(conditions, export.Accepted) != nil || meta.FindStatusCondition(there, export.Accepted) == nil
}

// noteWritten notes what an object was told, unless it is another by now, and reports whether that
// is the first since this replica leads.
func (w *Writer) noteWritten(of types.NamespacedName, to *mcsv1beta1.ServiceExport, conditions []metav1.Condition) (first bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.records[of]; p != nil && p.note.Export.UID == to.UID {
		first, p.said = p.said == nil, conditions
	}
	return first
}
