package rules_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// BenchmarkJudge judges the same request by more and more rules: one for each team of
// a trust domain, and all of them for names below one name.
func BenchmarkJudge(b *testing.B) {
	for _, tt := range []struct{ name, service string }{
		{"zones", "{account}.team-%[1]d.fed.example"},
		{"one zone", "*.shared.example"},
	} {
		for _, count := range []int{1, 1000} {
			b.Run(fmt.Sprintf("%s/%d", tt.name, count), func(b *testing.B) {
				var text strings.Builder
				text.WriteString("rules:\n")
				for i := range count {
					fmt.Fprintf(&text, "- name: team-%[1]d\n  providers: ['spiffe://west.example/ns/team-%[1]d/sa/{account}']\n  services: ['"+tt.service+"']\n", i)
				}
				r, last := parsed(b, text.String()), count-1
				service := strings.NewReplacer("{account}", "web", "*", "web", "%[1]d", fmt.Sprint(last)).Replace(tt.service)
				q := request{fmt.Sprintf("spiffe://west.example/ns/team-%d/sa/web", last), "192.0.2.1", service, "192.0.2.1", 0}.parsed(b)
				b.ReportAllocs()
				for b.Loop() {
					must.Get(r.Judge(q))(b)
				}
			})
		}
	}
}
