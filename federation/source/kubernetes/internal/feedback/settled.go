package feedback

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/federation/source/kubernetes/export"
)

// The rules by which replicas share the condition Settled, each of which knows its own
// consumers only:
//
//   - A replica whose consumers are not settled, or unknown, says so unless another one does.
//   - A replica whose consumers are settled does not take back the word of another one, but
//     where it has stood for as long as patience: whoever said it may be gone.
//   - Whoever takes a word back says Confirming first, which is False as well. A replica that
//     is not settled says so then, or else it is True after objection.
const (
	objection = 5 * time.Second // within which another replica says that it is not settled
	reworded  = time.Minute     // between two texts of the same replica that say why it is not
)

const (
	confirming     = "Confirming"
	confirmingText = "all consumers of one owner are settled; others have 5s to say that theirs are not"
)

// settling is what is known of a Service, and of its condition Settled.
type settling struct {
	own   *metav1.Condition // of the consumers of this replica; nil: it is not known yet
	there word              // what the object says
	since time.Time         // when it was seen first
	last  word              // what this replica wrote last
}

// word is what a condition says.
type word struct {
	status          metav1.ConditionStatus
	reason, message string
}

func wordOf(c *metav1.Condition) word {
	if c == nil {
		return word{}
	}
	return word{c.Status, c.Reason, c.Message}
}

// Settled notes whether the consumers of this replica are settled with the newest change of a
// Service. The condition must not change any more. See [export.NewSettled].
func (w *Writer) Settled(of types.NamespacedName, is *metav1.Condition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.plans[of]
	if p == nil || p.settling.own != nil && wordOf(p.settling.own) == wordOf(is) {
		return
	}
	p.settling.own = is
	w.queue(of, p)
}

// plan returns what is to be written, and when. What is for later is so only where there is
// nothing else to write: it is planned again after that.
func (s *settling) plan(e *mcsv1beta1.ServiceExport, now time.Time, alone bool) (c *metav1.Condition, due time.Time) {
	said := meta.FindStatusCondition(e.Status.Conditions, export.Settled)
	if there := wordOf(said); there != s.there || s.since.IsZero() {
		s.there, s.since = there, now
	}
	if s.own == nil {
		return nil, due
	}
	next, mine := *s.own, said != nil && s.there == s.last
	waits := said != nil && said.Reason == confirming
	switch is := said != nil && said.Status == metav1.ConditionTrue; {
	case next.Status != metav1.ConditionTrue:
		if wordOf(&next) == s.there || said != nil && !is && !waits && !mine {
			return nil, due
		}
		if mine && !is && !waits && next.Status == said.Status {
			due = s.since.Add(reworded)
		}
	case is:
		return nil, due
	case said == nil, waits && mine:
		due = s.since.Add(objection)
	default:
		if !mine {
			due = s.since.Add(patience)
		}
		next = *export.NewSettled(metav1.ConditionFalse, confirming, confirmingText)
	}
	if due.After(now) && !alone {
		return nil, time.Time{}
	}
	next.ObservedGeneration = e.Generation
	at := now
	if due.After(at) {
		at = due
	}
	next.LastTransitionTime = metav1.NewTime(at.Truncate(time.Second))
	if said != nil && said.Status == next.Status {
		next.LastTransitionTime = said.LastTransitionTime
	}
	return &next, due
}

// wrote notes what the object says now: another replica may replace it before it is seen.
func (s *settling) wrote(said word, now time.Time) { s.last, s.there, s.since = said, said, now }
