package status

import (
	"cmp"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

func TestSpan(t *testing.T) {
	for text, want := range map[string]string{
		"-1s": "0 s", "499ms": "0 s", "59.4s": "59 s", "59.6s": "1 min", "89s": "1 min", "90s": "2 min", "4m57s": "5 min", "59m31s": "1 h", "1h59m40s": "2 h", "22h30m": "22 h 30 min",
		"47h59m40s": "2 days", "60h": "3 days", "59h": "2 days",
	} {
		if got := FormatSpan(must.Get(time.ParseDuration(text))(t)); got != want {
			t.Errorf("%s is %s, and to be %s", text, got, want)
		}
	}
	for seconds, want := range map[float64]string{86400: "24 h", 90: "1 min 30 s", 3605: "1 h 5 s", 0: "forever", 1.5: "1.5 s"} {
		if got := FormatSeconds(seconds); got != want {
			t.Errorf("%v is %s, and to be %s", seconds, got, want)
		}
	}
}

// TestCompareNames has names as people sort them.
func TestCompareNames(t *testing.T) {
	t.Parallel()
	sorted := []string{"", "-", "0", "007", "7", "7a", "7b", "10", "a", "web", "web-", "web-1", "web-2", "web-02b", "web-10", "web-10-2", "web-10-11", "web-99999999999999999999", "web-100000000000000000000", "web.", "webb"}
	for i, a := range sorted {
		for j, b := range sorted {
			if got := CompareNames(a, b); got != cmp.Compare(i, j) {
				t.Errorf("%q and %q: %d", a, b, got)
			}
		}
	}
}
