package export

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestConditions(t *testing.T) {
	published := wants("web.west.fed.example", 1)
	warned := published
	warned.Warnings = []Finding{{UnsupportedPort, "port dns is left out", ""}}
	tests := []struct {
		name     string
		standing ConditionFacts
		want     []string // type, status, reason and message
	}{
		{"published", ConditionFacts{Verdict: published}, []string{
			"Valid True Valid: the Service can be exported",
			"Ready True Exported: published as web.west.fed.example. with endpoints of the kind load-balancer",
		}},
		{"a part is left out", ConditionFacts{Verdict: warned}, []string{
			"Valid True Valid: the Service can be exported; UnsupportedPort: port dns is left out",
			"Ready True Exported: published as web.west.fed.example. with endpoints of the kind load-balancer",
		}},
		{"an earlier source has the name", ConditionFacts{Verdict: published, Hidden: true}, []string{
			"Valid True Valid: the Service can be exported",
			"Ready False Hidden: not published: a source that comes first in the catalog has its name or its fqdn",
		}},
		{"consumers refuse it", ConditionFacts{Verdict: published, Refusals: map[string]string{"spiffe://b.example/dns": "port: 0", "spiffe://a.example/dns": "out of zone"}}, []string{
			"Valid True Valid: the Service can be exported",
			"Ready True Exported: published as web.west.fed.example. with endpoints of the kind load-balancer",
			Accepted + " False RefusedByConsumer: spiffe://a.example/dns: out of zone; spiffe://b.example/dns: port: 0",
		}},
		{"no address", ConditionFacts{Verdict: Verdict{Refusal: &Finding{NoAddress, "no address yet", ""}}}, []string{
			"Valid True Valid: the Service can be exported",
			"Ready False NoAddress: no address yet",
		}},
		{"a conflict", ConditionFacts{Verdict: Verdict{Refusal: &Finding{Conflict, "shop/a has the name", ""}}}, []string{
			"Valid False Conflict: shop/a has the name",
			"Ready False Conflict: shop/a has the name",
		}},
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			after := test.standing.Conditions(nil, 7, now)
			if len(after) != len(test.want) {
				t.Fatalf("%v", after)
			}
			for i, c := range after {
				if got := fmt.Sprintf("%s %s %s: %s", c.Type, c.Status, c.Reason, c.Message); got != test.want[i] {
					t.Errorf("got  %s\nwant %s", got, test.want[i])
				}
				if c.ObservedGeneration != 7 || !c.LastTransitionTime.Time.Equal(now.Truncate(time.Second)) {
					t.Errorf("generation %d and time %v", c.ObservedGeneration, c.LastTransitionTime)
				}
			}
		})
	}
}

func TestConditionsChange(t *testing.T) {
	var (
		start     = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		later     = start.Add(time.Hour)
		published = ConditionFacts{Verdict: wants("web.west.fed.example", 1)}
		refused   = ConditionFacts{Verdict: Verdict{Refusal: &Finding{NoAddress, "no address", ""}}}
	)
	before := published.Conditions([]metav1.Condition{{Type: "Other"}}, 1, start)
	if diff := cmp.Diff(before, published.Conditions(before, 1, later)); diff != "" {
		t.Errorf("nothing has changed:\n%s", diff)
	}
	other := published
	other.Verdict.Kind = Gateway
	if after := other.Conditions(before, 1, later); after[1].Message == before[1].Message || !after[1].LastTransitionTime.Time.Equal(start) {
		t.Errorf("another message: %q, at %v", after[1].Message, after[1].LastTransitionTime)
	}
	after := refused.Conditions(before, 1, later)
	for i, want := range []time.Time{start, later} {
		if got := after[i].LastTransitionTime.Time; !got.Equal(want) {
			t.Errorf("%s moved at %v, want %v", after[i].Type, got, want)
		}
	}
}

func TestConditionsAreBounded(t *testing.T) {
	s := ConditionFacts{Verdict: wants("web.west.fed.example", 1), Refusals: make(map[string]string)}
	for i := range 1000 {
		s.Refusals[fmt.Sprintf("spiffe://%d.example/é", i)] = strings.Repeat("é", i)
		s.Verdict.Warnings = append(s.Verdict.Warnings, Finding{InvalidAddress, "left out", ""})
	}
	after := s.Conditions(nil, 1, time.Unix(0, 0))
	for _, c := range after {
		if len(c.Message) > maxMessage || strings.ToValidUTF8(c.Message, "") != c.Message {
			t.Errorf("%s has a message of %d bytes", c.Type, len(c.Message))
		}
	}
}
