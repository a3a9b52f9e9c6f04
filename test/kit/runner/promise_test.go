package main

import (
	"strings"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/runner/race"
)

// A promise is broken by most of its times in a package, and not by some.
func TestBrokenPromises(t *testing.T) {
	const bound = 2 * time.Second
	times := func(pkg string, all ...time.Duration) (list []took) {
		for _, d := range all {
			list = append(list, took{pkg: pkg, promise: "an answer", bound: bound, time: d})
		}
		return list
	}
	const late = bound + time.Millisecond
	for name, tc := range map[string]struct {
		all  []took
		want string
	}{
		"nothing":                 {nil, ""},
		"kept":                    {times("a", bound, 0, bound), ""},
		"some are late":           {times("a", late, 0, late, bound), ""},
		"most are late":           {times("a", time.Hour, 0, late), "FAIL\ta: an answer took 2.001s in the median of 3 (0s to 1h0m0s), and 2s is promised\n"},
		"in one package of three": {append(times("b", late), append(times("a", 0, 0, 0), times("c", 0)...)...), "FAIL\tb: an answer took 2.001s in the median of 1 (2.001s to 2.001s), and 2s is promised\n"},
	} {
		if got := brokenPromises(tc.all); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// What await notes is what is compared: a run whose tests pass fails with most of them
// late.
func TestPromise(t *testing.T) {
	slow := `package a
import ("fmt"; "testing"; "time")
func TestSlow(t *testing.T) {
	for _, took := range []time.Duration{TIMES} {
		t.Attr("` + await.Attribute + `", fmt.Sprintf("%v %v %s", took, time.Second, "an answer"))
	}
}
`
	for times, want := range map[string]int{"time.Minute, time.Minute, 1": 1, "time.Minute, 1, 1": 0} {
		out, code := runIn(t, module(t, map[string]string{"a_test.go": strings.Replace(slow, "TIMES", times, 1)}), ".")
		if code != want || strings.Contains(out, "an answer") != (want == 1) {
			t.Errorf("with %s the exit code is %d, want %d, after\n%s", times, code, want, out)
		}
	}
}

// Package await and this one agree on how it is written.
func TestParseTook(t *testing.T) {
	if race.Enabled {
		t.Skip("nothing is noted with the race detector")
	}
	recorder := &attributes{TB: t}
	await.Took(recorder, "an answer of some words", 2*time.Second, 1500*time.Microsecond)
	got, ok := parseTook(&event{Package: "a", Key: recorder.key, Value: recorder.value})
	if want := (took{pkg: "a", promise: "an answer of some words", bound: 2 * time.Second, time: 1500 * time.Microsecond}); got != want || !ok {
		t.Errorf("%+v, %v, want %+v", got, ok, want)
	}
	for _, e := range []event{{Key: "other", Value: recorder.value}, {Key: await.Attribute, Value: "1s 2s"}, {Key: await.Attribute, Value: "1s two words"}} {
		if got, ok := parseTook(&e); ok {
			t.Errorf("%+v is taken for %+v", e, got)
		}
	}
}

// attributes keeps an attribute of a test.
type attributes struct {
	testing.TB

	key, value string
}

func (a *attributes) Attr(key, value string) { a.key, a.value = key, value }
