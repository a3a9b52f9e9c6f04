package export

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Accepted is the type of the condition that says whether consumers take the
// service. The other types are those of the MCS API: Valid and Ready.
const Accepted = prefix + "Accepted"

// Standing is everything that a ServiceExport is told.
type Standing struct {
	Verdict   Verdict
	Published bool              // the service is in the catalog
	HiddenBy  string            // what an earlier source of the catalog has in its place, or ""
	Refusals  map[string]string // what consumers say who do not take it, by consumer
}

// Conditions returns the conditions of a ServiceExport of the given generation, and
// whether they differ from before, its conditions of today. A condition keeps its
// time where its status stays, else it has now. Conditions of other types are left
// out.
func (s Standing) Conditions(before []metav1.Condition, generation int64, now time.Time) (after []metav1.Condition, changed bool) {
	return nil, false
}
