package faultowner

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

func TestParse(t *testing.T) {
	got := must.Get(Parse(`
		# a good start
		announce
		nonce empty
		upsert web web.fed.example 192.0.2.1
		services 0 10 fed.example
		---
		wait 3s
		operation 9 web web.fed.example 192.0.2.1
		status ResourceExhausted`))(t)
	want := Script{
		{
			{Verb: "announce"},
			{Verb: "nonce", Word: "empty"},
			{Verb: "upsert", Name: "web", FQDN: "web.fed.example", Address: "192.0.2.1"},
			{Verb: "services", N: 10, FQDN: "fed.example"},
		},
		{
			{Verb: "wait", Wait: 3 * time.Second},
			{Verb: "operation", N: 9, Name: "web", FQDN: "web.fed.example", Address: "192.0.2.1"},
			{Verb: "status", Code: codes.ResourceExhausted},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseErrors(t *testing.T) {
	for text, want := range map[string]string{
		"lie":                "line 1: lie: no such step",
		"\nhang now":         `line 2: hang: takes "", not "now"`,
		"upsert web":         `line 1: upsert: takes "NAME FQDN ADDRESS", not "web"`,
		"nonce odd":          `line 1: nonce: "odd" is not one of counted|empty|same`,
		"nonce counted|same": `line 1: nonce: "counted|same" is not one of counted|empty|same`,
		"wait long":          `line 1: wait: time: invalid duration "long"`,
		"status BAD":         `line 1: status: no code has the name "BAD"`,
	} {
		if _, err := Parse(text); err == nil || err.Error() != want {
			t.Errorf("%q: error is %v, want %s", text, err, want)
		}
	}
}

// TestBehaviours checks that each behaviour has a unique name and a script in which
// all words were replaced. Only the one without an owner has no steps.
func TestBehaviours(t *testing.T) {
	seen := make(map[string]bool)
	for _, b := range Behaviours {
		if seen[b.Name] {
			t.Errorf("two behaviours are named %s", b.Name)
		}
		seen[b.Name] = true
		script, err := b.Script("fed.example", "other.example", 24)
		if err != nil {
			t.Errorf("%s: %v", b.Name, err)
			continue
		}
		if empty := len(script[0]) == 0; empty != (b.Identity == Nobody) {
			t.Errorf("%s: the script has no first step: %t, and the identity is %q", b.Name, empty, b.Identity)
		}
		for _, session := range script {
			for _, step := range session {
				for _, word := range []string{"ALL", "ZONE", "HALF", "MORE", "OTHER", "WHOLE"} {
					if strings.Contains(step.FQDN, word) {
						t.Errorf("%s: %s is not replaced in %v", b.Name, word, step)
					}
				}
			}
		}
	}
}
