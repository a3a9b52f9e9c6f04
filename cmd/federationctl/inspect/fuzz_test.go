package inspect_test

import (
	"strings"
	"testing"
	"unicode"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// FuzzDump dumps services with any texts, and reads the same from it: no
// text is anything but text there.
func FuzzDump(f *testing.F) {
	for i, text := range awkward {
		f.Add(text, awkward[(i*7+3)%len(awkward)], awkward[(i*5+1)%len(awkward)])
	}
	f.Fuzz(func(t *testing.T, name, key, value string) {
		s := service(t, name, "a.fed.example", "192.0.2.1", "host.example")
		s.Description = value
		s.Tags = []string{key, value}
		s.Labels = []federation.Pair{{Key: key, Value: value}}
		s.Endpoints[0].Labels, s.Endpoints[0].Description = []string{key}, name
		s.Instances[0].ID, s.Instances[0].Description = value, key
		s.Instances[0].Metadata = []federation.Pair{{Key: key, Value: value}}
		s.Instances[0].EndpointSelector = []string{key}
		if err := s.Validate(); err != nil {
			t.Skip(err) // no service has such texts
		}
		text := dump(t, s, service(t, "zzz", "z.fed.example", "192.0.2.2"))
		if i := strings.IndexFunc(text, func(r rune) bool {
			return r != '\n' && unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp, unicode.Bidi_Control)
		}); i >= 0 {
			t.Errorf("it has %+q", text[i:min(len(text), i+10)])
		}
		if got := dump(t, read(t, text)...); got != text {
			t.Errorf("%s, expected %s", got, text)
		}
	})
}
