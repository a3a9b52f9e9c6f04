package zone

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestNearestNames has a mistake of each kind, and a catalog that is too large to be looked at.
func TestNearestNames(t *testing.T) {
	t.Parallel()
	names := []string{"web.fed.example.", "web-2.fed.example.", "web-10.fed.example.", "mail.shop.fed.example.", "mail.store.fed.example.", "mail.shop.other.example.", "mail.a.b.example."}
	for asked, want := range map[string]string{
		"wbe.fed.example.":          "web.fed.example.",
		"we.fed.example.":           "web.fed.example.",
		"webb.fed.example.":         "web.fed.example.",
		"wab.fed.example.":          "web.fed.example.",
		"wb.fed.example.":           "web.fed.example.",
		"web.fde.example.":          "web.fed.example.",
		"web2.fed.example.":         "web.fed.example. web-2.fed.example.",
		"web-1.fed.example.":        "web-2.fed.example. web-10.fed.example.",
		"v9.web.fed.example.":       "web.fed.example.",
		"mail.fed.example.":         "mail.shop.fed.example. mail.store.fed.example. mail.a.b.example.",
		"mail.sale.shop.example.":   "mail.a.b.example. mail.shop.fed.example. mail.shop.other.example.",
		"nothing.like.fed.example.": "",
		"example.":                  "",
		".":                         "",
	} {
		got := strings.Join(nearestNames(asked, func(name string) bool { return slices.Contains(names, name) }, slices.Values(names)), " ")
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", asked, d)
		}
	}
	looked, visited := 0, 0
	found := nearestNames("web.fed.example.", func(name string) bool { looked++; return name == "wef.fed.example." }, func(yield func(string) bool) {
		for yield(fmt.Sprintf("x%d.fed.example.", visited)) {
			visited++
		}
	})
	if !slices.Equal(found, []string{"wef.fed.example."}) || visited != mostVisited || looked > 80*len("web.fed.example.") {
		t.Errorf("%q of an endless catalog, after %d look-ups and %d names", found, looked, visited)
	}
}
