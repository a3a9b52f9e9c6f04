package policy

import (
	"fmt"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// Decision is what a consumer gets of a service, in words for people.
type Decision struct {
	Rule    int                 // that decides, from 1; 0: none
	Service *federation.Service // as it is told; nil: it is hidden
	Reason  string              // why it is hidden, or what of it is told; one line
}

// Explain returns what a consumer of the class gets of a valid service, and why. The result agrees
// with [Policy.Judge] and [Verdict.ServiceFor]. Its service is s itself where the rule changes
// nothing, and shares memory with s otherwise.
func (p *Policy) Explain(c ConsumerClass, s *federation.Service) Decision {
	if p == nil {
		return Decision{Service: s, Reason: "told as it is: there is no policy"}
	}
	var unmet []string
	more := 0
	for i := range c.rules.inOrder() {
		r := &p.rules[i]
		if condition := r.unmetCondition(s); condition != "" {
			if len(unmet) < mostUnmet {
				unmet = append(unmet, fmt.Sprintf("%s of rule %d", condition, i+1))
			} else {
				more++
			}
			continue
		}
		shape := &p.shapes[r.shape]
		told, err := shape.applyTo(s)
		if err != nil {
			return Decision{Rule: i + 1, Reason: err.Error()}
		}
		return Decision{Rule: i + 1, Service: told, Reason: shape.describeChanges(s, told)}
	}
	if len(unmet) == 0 {
		return Decision{Reason: "no rule is for this consumer"}
	}
	if more > 0 {
		unmet = append(unmet, fmt.Sprintf("or of %d more", more))
	}
	return Decision{Reason: "it does not meet " + strings.Join(unmet, ", ")}
}

// mostUnmet is how many rules a reason names.
const mostUnmet = 10

// describeChanges returns what the shape has changed of a service.
func (sh *serviceShape) describeChanges(s, told *federation.Service) string {
	if told == s {
		return "told as it is"
	}
	var parts, stripped []string
	if told.FQDN != s.FQDN {
		parts = append(parts, fmt.Sprintf("as %s in place of %s", strings.TrimSuffix(told.FQDN.String(), "."), strings.TrimSuffix(s.FQDN.String(), ".")))
	}
	if len(told.Endpoints) != len(s.Endpoints) {
		parts = append(parts, fmt.Sprintf("with %d of %d endpoints and %d of %d instances",
			len(told.Endpoints), len(s.Endpoints), len(told.Instances), len(s.Instances)))
	}
	whole := *s
	_ = sh.pickEndpoints(&whole) // which has not failed before
	for _, one := range []struct {
		name string
		serviceShape
	}{
		{"descriptions", serviceShape{description: sh.description}},
		{"tags", serviceShape{tags: sh.tags}},
		{"sans", serviceShape{sans: sh.sans}},
		{"labels", serviceShape{labels: sh.labels}},
		{"metadata", serviceShape{metadata: sh.metadata}},
	} {
		left := whole
		if one.stripFields(&left); !left.Equal(&whole) {
			stripped = append(stripped, one.name)
		}
	}
	if stripped != nil {
		parts = append(parts, "stripped of "+strings.Join(stripped, ", "))
	}
	return "told " + strings.Join(parts, ", ")
}
