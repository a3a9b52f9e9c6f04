package recent_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/status/recent"
)

var epoch = time.Unix(1_800_000_000, 0).UTC()

func refusal(consumer, service string) status.Refusal {
	return status.Refusal{At: epoch, Consumer: consumer, Service: service, FQDN: service + ".example.", Rule: "no"}
}

func TestRefusals(t *testing.T) {
	var m recent.Memory
	services := func() (names []string) {
		for _, r := range m.AllRefusals() {
			names = append(names, r.Consumer+"/"+r.Service)
		}
		return names
	}
	for _, step := range []struct {
		do   func()
		want []string
	}{
		{func() { m.Accepted("", "a") }, nil},
		{func() { m.Refused(refusal("", "a")); m.Refused(refusal("", "b")) }, []string{"/b", "/a"}},
		{func() { m.Refused(refusal("", "a")) }, []string{"/a", "/b"}},
		{func() { m.Refused(refusal("c", "a")) }, []string{"c/a", "/a", "/b"}},
		{func() { m.Accepted("", "a") }, []string{"c/a", "/b"}},
		{func() { m.Accepted("", "a"); m.Accepted("d", "a") }, []string{"c/a", "/b"}},
		{func() { m.Accepted("c", "a"); m.Accepted("", "b") }, nil},
	} {
		step.do()
		if d := cmp.Diff(step.want, services()); d != "" {
			t.Fatalf("-want +got:\n%s", d)
		}
	}
}

// TestBounds sends more than is remembered, in each way.
func TestBounds(t *testing.T) {
	var m recent.Memory
	for i := range recent.Limit + 5 {
		m.Refused(refusal("", fmt.Sprint(i)))
		m.Gone(status.Gone{Service: fmt.Sprint(i)})
	}
	refusals, gone := m.AllRefusals(), m.AllGone()
	if n := len(refusals); n != recent.Limit || refusals[0].Service != fmt.Sprint(recent.Limit+4) || refusals[n-1].Service != "5" {
		t.Errorf("%d refusals, from %s to %s", n, refusals[0].Service, refusals[n-1].Service)
	}
	if n := len(gone); n != recent.Limit || gone[0].Service != fmt.Sprint(recent.Limit+4) || gone[n-1].Service != "5" {
		t.Errorf("%d are gone, from %s to %s", n, gone[0].Service, gone[n-1].Service)
	}
	long := strings.Repeat("\u00e9", 1<<20)
	m.Refused(status.Refusal{Service: long, FQDN: long, Consumer: long, Field: long, Rule: long})
	m.Gone(status.Gone{Service: long, FQDN: long})
	r, g := m.AllRefusals()[0], m.AllGone()[0]
	for what, text := range map[string]string{
		"service": r.Service, "fqdn": r.FQDN, "consumer": r.Consumer, "field": r.Field, "rule": r.Rule, "gone service": g.Service, "gone fqdn": g.FQDN,
	} {
		if len(text) > 1024 || !strings.HasPrefix(long, text) || len(text)%2 != 0 {
			t.Errorf("%s: %d octets", what, len(text))
		}
	}
	m.Accepted(long, long)
	if r := m.AllRefusals()[0]; r.Service == g.Service {
		t.Error("a service with a long name is still refused")
	}
}

func TestRate(t *testing.T) {
	var r recent.Rate
	if got := r.Report(epoch); got != (status.Rate{}) {
		t.Errorf("without events: %+v", got)
	}
	for _, tt := range []struct {
		at           time.Duration
		count        int
		minute, hour int
	}{
		{0, 1, 1, 1},
		{0, 2, 3, 3},
		{30 * time.Second, 1, 4, 4},
		{59 * time.Second, 0, 4, 4},
		{60 * time.Second, 0, 1, 4},
		{89 * time.Second, 0, 1, 4},
		{90 * time.Second, 5, 5, 9},
		{60 * time.Minute, 0, 0, 5}, // it counts whole minutes
		{61 * time.Minute, 0, 0, 0},
		{100 * time.Hour, 7, 7, 7},
		{time.Hour, 1, 8, 8}, // the clock was set back
	} {
		at := epoch.Add(tt.at)
		if tt.count > 0 {
			r.Count(tt.count, at)
		}
		if got := r.Report(at); got.LastMinute != tt.minute || got.LastHour != tt.hour {
			t.Errorf("after %v: %d in the minute and %d in the hour, want %d and %d", tt.at, got.LastMinute, got.LastHour, tt.minute, tt.hour)
		}
	}
	if got, want := r.Report(epoch).Last, epoch.Add(100*time.Hour); !got.Equal(want) {
		t.Errorf("the last one was at %v, want %v", got, want)
	}
}

// TestRateCounts compares the rate with a plain list of events.
func TestRateCounts(t *testing.T) {
	var r recent.Rate
	var events []time.Time
	at := epoch
	for i := range 3000 {
		at = at.Add(time.Duration(i*7919%4000) * time.Millisecond)
		r.Count(1, at)
		events = append(events, at)
		minute, hour := 0, 0
		for _, e := range events {
			if at.Unix()-e.Unix() < 60 {
				minute++
			}
			if at.Unix()/60-e.Unix()/60 < 60 {
				hour++
			}
		}
		if got := r.Report(at); got.LastMinute != minute || got.LastHour != hour {
			t.Fatalf("after %v: %+v, want %d and %d", at.Sub(epoch), got, minute, hour)
		}
	}
}

func BenchmarkGone(b *testing.B) {
	var m recent.Memory
	b.ReportAllocs()
	for b.Loop() {
		m.Gone(status.Gone{At: epoch, Service: "service-1", FQDN: "service-1.fed.example.", Cause: "withdrawn"})
	}
}

func BenchmarkCount(b *testing.B) {
	var r recent.Rate
	b.ReportAllocs()
	for b.Loop() {
		r.Count(1, epoch)
	}
}
