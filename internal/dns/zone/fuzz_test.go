package zone_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/zonetest"
)

// FuzzLookup makes a catalog of bytes and asks it one question: by name, or, when
// that is empty, one of the names that are worth a question. Every reply can be
// sent, is about the name that was asked, and is what the oracle says.
func FuzzLookup(f *testing.F) {
	for seed := range uint64(8) {
		catalog := make([]byte, 512)
		random := rand.New(rand.NewPCG(seed, 1))
		for i := range catalog {
			catalog[i] = byte(random.Uint32())
		}
		f.Add(catalog, "", uint16(seed), dns.TypeA)
		f.Add(catalog, "", uint16(seed), dns.TypeSRV)
		f.Add(catalog, "_http._tcp.a.z.", uint16(0), dns.TypeSRV)
	}
	f.Add([]byte(nil), ".", uint16(0), dns.TypeSOA)
	f.Add([]byte(nil), `\..z.`, uint16(0), dns.TypeANY)
	f.Add([]byte(nil), strings.Repeat("a.", 126)+"z.", uint16(0), dns.TypeTXT)
	f.Fuzz(func(t *testing.T, catalog []byte, name string, which, qtype uint16) {
		c := newChaosFrom(bytesSource{&catalog})
		b := zonetest.NewBuilder(c.config, nil)
		for range 1 + c.IntN(12) {
			c.step(b)
		}
		z := b.Publish(now)
		if name == "" {
			names := c.names()
			name = names[int(which)%len(names)]
		}
		name, ok := received(name)
		if !ok {
			return
		}
		r := z.Lookup(name, qtype, now)
		if r.Kind == zone.Outside {
			return
		}
		checkReply(t, &r, name)
		if strings.Contains(name, `\`) {
			return // the oracle does not speak the language of escapes
		}
		if d := gocmp.Diff(c.answer(name, qtype), answer(z, name, qtype)); d != "" {
			t.Errorf("%s %s (-want +got):\n%s\n%s", name, dns.Type(qtype), d, c)
		}
	})
}

// received returns a name as it is when it has come over the wire, in lower
// case.
func received(name string) (string, bool) {
	wire := make([]byte, 256)
	n, err := dns.PackDomainName(dns.Fqdn(name), wire, 0, nil, false)
	if err != nil {
		return "", false
	}
	name, _, err = dns.UnpackDomainName(wire[:n], 0)
	return strings.ToLower(name), err == nil
}

// bytesSource takes one byte for each choice, and 0 when there are no more.
type bytesSource struct{ rest *[]byte }

// Uint64 implements rand.Source. Bounded numbers are made of the high bits or of
// the low ones, by the bound; the bit between keeps all zeros from being refused
// for ever.
func (s bytesSource) Uint64() uint64 {
	var next uint64
	if rest := *s.rest; len(rest) > 0 {
		next, *s.rest = uint64(rest[0]), rest[1:]
	}
	return next<<56 | 1<<40 | next
}
