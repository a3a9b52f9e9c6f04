package config

import (
	"slices"
	"strings"
	"testing"
)

// TestPublishTo has what is wrong with relays that are dialed, and with owners that dial.
func TestPublishTo(t *testing.T) {
	const head = `identity: {files: {cert: c, key: k, ca: a}}
allow: {ids: [relay.example]}
`
	for name, tc := range map[string]struct {
		text string
		want []string // parts of what is wrong; none: nothing is
	}{
		"in order": {`publish_to: [{addresses: ["relay.example:8008"], owner_ids: [relay.example], catalog: a.example}]
catalogs: [{server_name: a.example, sources: [{file: {path: f}}]}]
`, nil},
		"in order, at the relay": {`catalogs: [{server_name: b.example, relay: {accept: [a.example, b.example], zones: [b.example]}}]
`, nil},
		"no addresses": {`publish_to: [{owner_ids: [relay.example]}]
catalogs: [{sources: [{file: {path: f}}]}]
`, []string{"publish_to[0].addresses: required"}},
		"no such catalog, twice": {`publish_to: [{addresses: ["relay.example:8008"], catalog: b.example}, {addresses: ["relay.example:8008"], catalog: b.example}]
catalogs: [{sources: [{file: {path: f}}]}]
`, []string{"b.example is the server_name of no catalog", "is there twice"}},
		"both ways": {`catalogs: [{relay: {accept: [a.example], addresses: ["a.example:8008"]}}]
`, []string{"a relay dials its owner, or the owner dials it"}},
		"who is dialed": {`catalogs: [{relay: {accept: [a.example], owner_ids: [a.example], tls_servername: a.example}}]
`, []string{"accept names who may dial in", "tls_servername: goes with addresses"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, r := read([]byte(head + tc.text))
			var wrong []string
			for _, p := range r.Wrong() {
				wrong = append(wrong, p.String())
			}
			if len(tc.want) == 0 && len(wrong) > 0 {
				t.Errorf("wrong is %q", wrong)
			}
			for _, want := range tc.want {
				if !slices.ContainsFunc(wrong, func(s string) bool { return strings.Contains(s, want) }) {
					t.Errorf("wrong is %q, expected %q", wrong, want)
				}
			}
		})
	}
}
