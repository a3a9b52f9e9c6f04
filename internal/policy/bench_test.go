package policy_test

import (
	"fmt"
	"runtime"
	"strconv"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/policy"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// partners returns n rules, each with the services of a zone for a partner. The service
// web is in the last zone. The shape of each is that of r.
func partners(n int, r policy.Rule) []policy.Rule {
	rules := make([]policy.Rule, n)
	for i := range rules {
		rules[i] = r
		rules[i].FQDNs = []string{fmt.Sprintf("*.team-%d.example", i), fmt.Sprintf("shared-%d.example", i)}
		rules[i].To = []string{fmt.Sprintf("spiffe://partner-%d.example/ns/dns/*", i), fmt.Sprintf("dns.partner-%d.example", i)}
	}
	rules[n-1].FQDNs[0] = "*.pay.example"
	return rules
}

// shapes are kinds of rules, by what they take to be judged.
var shapes = []struct {
	name string
	rule policy.Rule
}{
	{"fqdn", policy.Rule{}}, // the conditions are about the fqdn alone, and nothing changes
	{"labels", policy.Rule{Labels: map[string]string{"tier": "public"}}},
	{"strip", policy.Rule{Strip: []string{"description", "labels.internal-*"}}},
	{"endpoints", policy.Rule{Endpoints: []string{"edge"}, As: map[string]string{"pay.example": "pay.partner.example"}}},
}

// BenchmarkJudge judges a service that meets the last of many rules.
func BenchmarkJudge(b *testing.B) {
	s := encoded(b, web(b))
	for _, shape := range shapes {
		for _, n := range []int{1, 50, 500} {
			b.Run(shape.name+"/"+strconv.Itoa(n), func(b *testing.B) {
				p := compile(b, partners(n, shape.rule)...)
				b.ReportAllocs()
				for b.Loop() {
					p.Judge(s)
				}
			})
		}
	}
	// Every rule is met, and every tenth shapes in its own way.
	for _, n := range []int{50, 500} {
		b.Run("all/"+strconv.Itoa(n), func(b *testing.B) {
			rules := partners(n, policy.Rule{})
			for i := range rules {
				rules[i].FQDNs = nil
				if i%10 == 0 {
					rules[i].As = map[string]string{"pay.example": fmt.Sprintf("pay-%d.example", i)}
				}
			}
			p := compile(b, rules...)
			b.ReportAllocs()
			for b.Loop() {
				p.Judge(s)
			}
		})
	}
	b.Run("none", func(b *testing.B) { // none is met
		p := compile(b, policy.Rule{FQDNs: []string{"*.x.example"}, To: []string{"*"}})
		b.ReportAllocs()
		for b.Loop() {
			p.Judge(s)
		}
	})
	b.Run("decode", func(b *testing.B) { // what the first look inside takes, for comparison
		b.ReportAllocs()
		for b.Loop() {
			s.Service()
		}
	})
}

// BenchmarkFor looks for the last of the rules.
func BenchmarkFor(b *testing.B) {
	s := encoded(b, web(b))
	for _, n := range []int{1, 50, 500} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			p := compile(b, partners(n, shapes[2].rule)...)
			v, class := p.Judge(s), consumer(b, p, fmt.Sprintf("dns.partner-%d.example", n-1))
			b.ReportAllocs()
			for b.Loop() {
				if v.ServiceFor(class) == nil {
					b.Fatal("not told")
				}
			}
		})
	}
}

func BenchmarkClass(b *testing.B) {
	for _, n := range []int{1, 50, 500} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			p := compile(b, partners(n, policy.Rule{})...)
			ids := []federation.ID{id(b, fmt.Sprintf("spiffe://partner-%d.example/ns/dns/a", n-1))}
			b.ReportAllocs()
			for b.Loop() {
				p.ClassOf(ids)
			}
		})
	}
}

// BenchmarkNew compiles policies, up to as many patterns as there can be.
func BenchmarkNew(b *testing.B) {
	large := partners(policy.MaxRules, policy.Rule{})
	for i := range large {
		for n := range policy.MaxEntries - 2 {
			large[i].To = append(large[i].To, fmt.Sprintf("spiffe://p-%d-%d.example/*", i, n))
			large[i].FQDNs = append(large[i].FQDNs, fmt.Sprintf("*.t-%d-%d.example", i, n))
		}
	}
	for name, rules := range map[string][]policy.Rule{"50": partners(50, shapes[2].rule), "500": partners(500, shapes[2].rule), "largest": large} {
		b.Run("New/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				compile(b, rules...)
			}
		})
	}
}

// BenchmarkVerdicts reports what the verdicts on many services take: each meets all of
// 50 rules and is told as it is.
func BenchmarkVerdicts(b *testing.B) {
	list := make([]*wire.EncodedService, 10_000)
	for i := range list {
		s := web(b)
		s.Name, s.FQDN = strconv.Itoa(i), services.FQDN(fmt.Sprintf("s%d.pay.example", i))
		list[i] = encoded(b, s)
	}
	for _, shape := range shapes {
		b.Run(shape.name, func(b *testing.B) {
			rules := partners(50, shape.rule)
			for i := range rules {
				rules[i].FQDNs = nil
			}
			p := compile(b, rules...)
			for b.Loop() {
				before := heap()
				verdicts := make([]policy.Verdict, len(list))
				for i, s := range list {
					verdicts[i] = p.Judge(s)
				}
				b.ReportMetric(float64(heap()-before)/float64(len(list)), "B/service")
				runtime.KeepAlive(verdicts)
			}
		})
	}
}

// heap returns how many bytes are in use.
func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
