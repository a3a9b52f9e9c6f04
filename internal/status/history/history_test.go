package history_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/internal/status/history"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// limit is how many refusals, and how many services that are gone, are remembered.
const limit = 1000

func refuse(log *history.ServiceLog, service string) {
	log.NoteRefusal(&federation.InvalidError{Service: service, FQDN: service + ".example.", Rule: "no"}, epoch)
}

func TestRefusals(t *testing.T) {
	var log history.ServiceLog
	accept := func(service string) { log.NoteResponse(wire.Upsert, service, epoch) }
	for _, step := range []struct {
		do   func()
		want []string
	}{
		{func() { accept("a") }, nil},
		{func() { refuse(&log, "a"); refuse(&log, "b") }, []string{"b", "a"}},
		{func() { refuse(&log, "a") }, []string{"a", "b"}},
		{func() { accept("a") }, []string{"b"}},
		{func() { accept("a"); accept("d") }, []string{"b"}},
		{func() { log.NoteResponse(wire.Delete, "b", epoch) }, nil},
	} {
		step.do()
		var services []string
		for _, r := range log.Refusals() {
			services = append(services, r.Service)
		}
		if d := cmp.Diff(step.want, services); d != "" {
			t.Fatalf("-want +got:\n%s", d)
		}
	}
}

// TestRefusalsAreBounded has more refused than is remembered, and longer texts.
func TestRefusalsAreBounded(t *testing.T) {
	var log history.ServiceLog
	for i := range limit + 5 {
		refuse(&log, fmt.Sprint(i))
	}
	refusals := log.Refusals()
	if n := len(refusals); n != limit || refusals[0].Service != fmt.Sprint(limit+4) || refusals[n-1].Service != "5" {
		t.Errorf("%d refusals, from %s to %s", n, refusals[0].Service, refusals[n-1].Service)
	}
	long := strings.Repeat("\u00e9", 1<<20)
	log.NoteRefusal(&federation.InvalidError{Service: long, FQDN: long, Field: long, Rule: long}, epoch)
	r := log.Refusals()[0]
	for what, text := range map[string]string{"service": r.Service, "fqdn": r.FQDN, "field": r.Field, "rule": r.Rule} {
		if len(text) > 1024 || !strings.HasPrefix(long, text) || len(text)%2 != 0 {
			t.Errorf("%s: %d octets", what, len(text))
		}
	}
	log.NoteResponse(wire.Upsert, long, epoch)
	if now := log.Refusals()[0]; now.Service == r.Service {
		t.Error("a service with a long name is still refused")
	}
}

func TestRate(t *testing.T) {
	var log history.ServiceLog
	if got := log.UpdateRate(epoch); got != (status.EventRate{}) {
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
	} {
		at := epoch.Add(tt.at)
		for range tt.count {
			log.NoteResponse(wire.Upsert, "a", at)
		}
		if got := log.UpdateRate(at); got.LastMinute != tt.minute || got.LastHour != tt.hour {
			t.Errorf("after %v: %d in the minute and %d in the hour, want %d and %d", tt.at, got.LastMinute, got.LastHour, tt.minute, tt.hour)
		}
	}
}

// TestRateCounts compares the rate with a plain list of events.
func TestRateCounts(t *testing.T) {
	var log history.ServiceLog
	var events []time.Time
	at := epoch
	for i := range 3000 {
		at = at.Add(time.Duration(i*7919%4000) * time.Millisecond)
		log.NoteResponse(wire.Upsert, "a", at)
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
		if got := log.UpdateRate(at); got.LastMinute != minute || got.LastHour != hour {
			t.Fatalf("after %v: %+v, want %d and %d", at.Sub(epoch), got, minute, hour)
		}
	}
}
