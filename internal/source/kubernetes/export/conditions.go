package export

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// Accepted is the type of the condition that says that consumers do not take the
// service. The other types are those of the MCS API: Valid and Ready.
const Accepted = prefix + "Accepted"

// HiddenText is what authors are told of a service that another source hides. What that has
// is the owner's to know.
const HiddenText = "not published: a source that comes first in the catalog has its name or its fqdn"

// ConditionFacts is everything that a ServiceExport is told.
type ConditionFacts struct {
	Verdict  Verdict           // as Judge returns it; a Service in it is in the catalog
	Hidden   bool              // an earlier source of the catalog has its name or its fqdn
	Refusals map[string]string // what consumers say who do not take it, by consumer
}

// Conditions returns the conditions of a ServiceExport of the given generation: Valid and
// Ready, and Accepted where consumers refuse the service. A condition keeps the time that it has before, among the conditions
// of today, where its status stays, else it has now, in whole seconds. Nothing in them
// changes with the number of endpoints, so that pods that come and go cause no writes.
func (s ConditionFacts) Conditions(before []metav1.Condition, generation int64, now time.Time) []metav1.Condition {
	after := []metav1.Condition{s.validCondition(), s.readyCondition()}
	if s.Verdict.Service != nil && !s.Hidden && len(s.Refusals) > 0 {
		after = append(after, s.acceptedCondition())
	}
	for i := range after {
		c := &after[i]
		c.Message = boundMessage(c.Message)
		c.ObservedGeneration = generation
		c.LastTransitionTime = metav1.NewTime(now.Truncate(time.Second)) // JSON has no more
		if old := meta.FindStatusCondition(before, c.Type); old != nil && old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
	return after
}

func (s ConditionFacts) validCondition() metav1.Condition {
	const kind = string(mcsv1beta1.ServiceExportConditionValid)
	if refusal := s.Verdict.Refusal; refusal != nil && refusal.Rule != NoAddress {
		return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: string(refusal.Rule), Message: refusal.Message}
	}
	message := []string{"the Service can be exported"}
	for _, w := range s.Verdict.Warnings {
		message = append(message, string(w.Rule)+": "+w.Message)
	}
	return metav1.Condition{
		Type: kind, Status: metav1.ConditionTrue, Reason: string(mcsv1beta1.ServiceExportReasonValid), Message: strings.Join(message, "; "),
	}
}

func (s ConditionFacts) readyCondition() metav1.Condition {
	c := metav1.Condition{Type: string(mcsv1beta1.ServiceExportConditionReady), Status: metav1.ConditionFalse}
	switch v := s.Verdict; {
	case v.Refusal != nil:
		c.Reason, c.Message = string(v.Refusal.Rule), v.Refusal.Message
	case s.Hidden:
		c.Reason, c.Message = string(Hidden), HiddenText
	default:
		c.Status, c.Reason = metav1.ConditionTrue, string(mcsv1beta1.ServiceExportReasonExported)
		c.Message = fmt.Sprintf("published as %s with endpoints of the kind %s", v.Service.FQDN, v.Kind)
	}
	return c
}

func (s ConditionFacts) acceptedCondition() metav1.Condition {
	var said []string
	for _, consumer := range slices.Sorted(maps.Keys(s.Refusals)) {
		said = append(said, consumer+": "+s.Refusals[consumer])
	}
	return metav1.Condition{Type: Accepted, Status: metav1.ConditionFalse, Reason: "RefusedByConsumer", Message: strings.Join(said, "; ")}
}
