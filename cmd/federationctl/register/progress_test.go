package register

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation/provider"
)

var errCheck = errors.New("the check fails")

// A node that was registered is drained for as long as clients may have it in their caches,
// whatever has withdrawn it before.
func TestDrainAfterWithdrawal(t *testing.T) {
	registered := func(j *progressLog) { j.noteStatus(provider.Status{State: provider.Registered, TTL: 30 * time.Second}) }
	for _, tt := range []struct {
		name   string
		before func(j *progressLog) // what has happened
		drain  time.Duration
		want   time.Duration
		line   string
	}{
		{"registered", registered, 10 * time.Second, 10 * time.Second, "withdrawing web, and waiting 10s for the caches of its clients"},
		{"registered, without a drain", registered, 0, 0, "withdrawing web"},
		{"never registered", func(j *progressLog) { j.noteUnhealthy(errCheck) }, 10 * time.Second, 0, ""},
		{"a check has failed", func(j *progressLog) {
			registered(j)
			j.noteUnhealthy(errCheck)
			time.Sleep(4 * time.Second)
			j.noteUnhealthy(errCheck) // for another reason
		}, 10 * time.Second, 6 * time.Second, "web was withdrawn 4s ago; waiting 6s for the caches of its clients"},
		{"a check has failed long ago", func(j *progressLog) {
			registered(j)
			j.noteUnhealthy(errCheck)
			time.Sleep(10 * time.Second)
		}, 10 * time.Second, 0, ""},
		{"refused since", func(j *progressLog) {
			registered(j)
			j.noteStatus(provider.Status{State: provider.Refused})
		}, 10 * time.Second, 10 * time.Second, "web was withdrawn 0s ago; waiting 10s for the caches of its clients"},
		{"drained", func(j *progressLog) {
			registered(j)
			j.noteWithdrawal("web", 10*time.Second)
			time.Sleep(4 * time.Second)
		}, 0, 0, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			var said strings.Builder
			j := newProgress(&said)
			tt.before(j)
			said.Reset()
			got := j.noteWithdrawal("web", tt.drain)
			line := strings.TrimSuffix(strings.TrimPrefix(said.String(), "federationctl: "), "\n")
			if got != tt.want || line != tt.line {
				t.Errorf("%s: %v and %q, want %v and %q", tt.name, got, line, tt.want, tt.line)
			}
		})
	}
}

// TestProgressWaits has a node that is stored before clients can get it.
func TestProgressWaits(t *testing.T) {
	var text strings.Builder
	j := newProgress(&text)
	s := provider.Status{Node: provider.Node{Service: "shop.fed.example"}, State: provider.Registered, Owner: "o:8008", URI: "http://192.0.2.1:80", TTL: 30 * time.Second}
	waits := s
	waits.Waits = true
	refused := provider.Status{Node: s.Node, State: provider.Refused, Owner: "o:8008", Rule: "no-rule", Reason: "none"}
	for _, s := range []provider.Status{waits, s, waits, refused, s} {
		j.noteStatus(s)
	}
	const stored = "federationctl: stored, and not published yet: shop.fed.example at http://192.0.2.1:80, with owner o:8008, ttl 30s; clients get it once the catalog of the owner is available\n"
	want := stored + "federationctl: published: shop.fed.example at http://192.0.2.1:80, with owner o:8008\n" + stored +
		"federationctl: refused by owner o:8008: shop.fed.example at : rule no-rule: none; asking the owner again\n" +
		"federationctl: registered: shop.fed.example at http://192.0.2.1:80, with owner o:8008, ttl 30s\n"
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Errorf("unexpected lines (-want +got):\n%s", diff)
	}
}
