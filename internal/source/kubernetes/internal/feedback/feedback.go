// Package feedback tells the authors of ServiceExports how their Services are published: a [Writer] writes
// conditions of these objects.
//
// Each replica of an owner knows the conditions, and only the one that holds a lease
// writes them. The others keep the same records, so that whichever is elected next goes on at
// once: it compares all of its records with the conditions of the objects, and writes the
// differences. A lease that is lost, or cannot be had, stops nothing else.
//
// Nobody waits for a Writer. It keeps a record for each Service, of which the latest verdict replaces the one
// before, and writes later, a bounded number of times in a second.
// It writes no condition that the object has already, so that pods that come and go, and an
// owner that starts, cause no writes.
//
// The server applies the conditions without force, so that those of another controller stay
// as they are. A Writer writes each condition once while it leads. Owners, catalogs and zones that read
// one cluster have a lease each, and write the same conditions: whoever had something new to write
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
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/internal/kube"
	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes/export"
)

// serviceRecord is what a Writer knows of a Service.
type serviceRecord struct {
	facts  export.ConditionFacts
	export *mcsv1beta1.ServiceExport
	said   []metav1.Condition // what was written last, or what another controller has prevented
}

// Writer writes conditions while [Writer.Run] runs and this replica leads. It keeps a record for
// each Service that it was told of and that was not forgotten, with maxRefusals refusals at most.
// Its methods change the records at once, and the queue, which has each Service once, is drained by
// Run. It does not wait for the server in any other method, because the catalog must not. It is
// safe for concurrent use.
type Writer struct {
	lease types.NamespacedName
	log   *slog.Logger
	ready chan struct{} // closed when there is a server

	mu      sync.Mutex
	queue   kube.Queue // of Services to compare; nil unless this replica leads
	server  apiServer
	records map[types.NamespacedName]*serviceRecord // by Service
	problem error                                   // that was reported last
}

// New returns a Writer. The replicas of an owner use the same lease.
func New(lease types.NamespacedName, log *slog.Logger) *Writer {
	return &Writer{lease: lease, log: log, ready: make(chan struct{}), records: make(map[types.NamespacedName]*serviceRecord)}
}

// SetVerdict replaces the verdict on the Service of an object.
func (w *Writer) SetVerdict(of types.NamespacedName, verdict export.Verdict, object *mcsv1beta1.ServiceExport) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.records[of]
	if p == nil {
		p = new(serviceRecord)
		w.records[of] = p
	} else if p.export.UID != object.UID {
		p.said = nil
	}
	p.facts.Verdict, p.export = verdict, object
	w.enqueueService(of)
}

// ForgetRefusals removes the refusals of a Service, because it is published in another form from
// now on. SetVerdict follows.
func (w *Writer) ForgetRefusals(of types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.records[of]; p != nil {
		p.facts.Refusals = nil
	}
}

// SetHidden sets whether an earlier source of the catalog hides a Service.
func (w *Writer) SetHidden(of types.NamespacedName, hidden bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.records[of]; p != nil && p.facts.Hidden != hidden {
		p.facts.Hidden = hidden
		w.enqueueService(of)
	}
}

// maxRefusals bounds the consumers whose refusals of one Service are remembered.
const maxRefusals = 16

// SetRefusal sets by which rule a consumer refuses a Service, or with "" that the consumer accepts
// it again.
func (w *Writer) SetRefusal(of types.NamespacedName, consumer, rule string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.records[of]
	switch {
	case p == nil || p.facts.Refusals[consumer] == "" && len(p.facts.Refusals) >= maxRefusals:
		return
	case rule == "":
		delete(p.facts.Refusals, consumer)
	case p.facts.Refusals == nil:
		p.facts.Refusals = map[string]string{consumer: rule}
	default:
		p.facts.Refusals[consumer] = rule
	}
	w.enqueueService(of)
}

// Forget removes the record of a Service that is no longer exported.
func (w *Writer) Forget(of types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.records, of)
}

// enqueueService puts a Service into the queue, if this replica leads. The caller holds mu.
func (w *Writer) enqueueService(of types.NamespacedName) {
	if w.queue != nil {
		w.queue.Add(of)
	}
}

// compareAll makes the writer compare all records with the objects. The caller holds mu.
func (w *Writer) compareAll() {
	for of, p := range w.records {
		p.said = nil
		w.enqueueService(of)
	}
}

// nextWrite returns the conditions that are to be written for a Service now, and to which object.
// Nil conditions say that there is nothing to write.
func (w *Writer) nextWrite(of types.NamespacedName) (to *mcsv1beta1.ServiceExport, conditions []metav1.Condition, through apiServer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.records[of]
	if w.server.version == "" || p == nil {
		return nil, nil, apiServer{}
	}
	to = p.export
	conditions = p.facts.Conditions(to.Status.Conditions, to.Generation, time.Now())
	if hasConditions(to.Status.Conditions, conditions) || hasConditions(p.said, conditions) {
		return nil, nil, apiServer{}
	}
	return to, conditions, w.server
}

// hasConditions reports whether there has these conditions, and no older refusal of consumers.
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

// noteWritten records the conditions that were written to an object, unless the Service has another
// object by now. It reports whether they are the first since this replica leads.
func (w *Writer) noteWritten(of types.NamespacedName, to *mcsv1beta1.ServiceExport, conditions []metav1.Condition) (first bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.records[of]; p != nil && p.export.UID == to.UID {
		first, p.said = p.said == nil, conditions
	}
	return first
}
