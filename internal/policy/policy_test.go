package policy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/policy"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

func id(t testing.TB, s string) federation.ID {
	t.Helper()
	return must.Get(federation.ParseID(s))(t)
}

func encoded(t testing.TB, s *federation.Service) *wire.EncodedService {
	t.Helper()
	return must.Get(wire.NewEncoded(s))(t)
}

// web is a service with all that a policy can look at or leave out: web.pay.example.
func web(t testing.TB) *federation.Service {
	t.Helper()
	address := must.Get(federation.ParseAddress("192.0.2.1"))(t)
	return &federation.Service{
		Name: "web", FQDN: services.FQDN("web.pay.example"), Description: "of the service", Tags: []string{"edge"},
		Labels: federation.Pairs(map[string]string{"tier": "public", "internal-id": "7"}),
		SANs:   []string{"spiffe://pay.example/web"},
		Endpoints: []federation.Endpoint{
			{Address: address, Port: 1, Labels: []string{"edge"}, Description: "of the endpoint"},
			{Address: address, Port: 2, Labels: []string{"core"}},
		},
		Instances: []federation.Instance{
			{ID: "a", Protocol: federation.HTTP, EndpointSelector: []string{"edge", "core"}, Description: "of the instance"},
			{ID: "b", Protocol: federation.HTTP, EndpointSelector: []string{"core"}},
			{ID: "c", Protocol: federation.GRPC, EndpointSelector: []string{"nothing"}, Metadata: federation.Pairs(map[string]string{"internal-x": "1", "SNI": "s"})},
			{ID: "d", Protocol: federation.TCP},
		},
	}
}

// compile returns the policy of rules without mistakes.
func compile(t testing.TB, rules ...policy.Rule) *policy.Policy {
	t.Helper()
	p, mistakes := policy.New(rules)
	for _, m := range mistakes {
		t.Error(m)
	}
	return p
}

// consumer is the class of a consumer with the identities.
func consumer(t testing.TB, p *policy.Policy, ids ...string) policy.ConsumerClass {
	t.Helper()
	var parsed []federation.ID
	for _, s := range ids {
		parsed = append(parsed, id(t, s))
	}
	return p.ClassOf(parsed)
}

// nobody are the identities of a consumer that has none.
var nobody []string

func TestNoPolicy(t *testing.T) {
	var p *policy.Policy
	s := encoded(t, web(t))
	for _, ids := range [][]string{nobody, {"dns.example"}} {
		class, v := consumer(t, p, ids...), p.Judge(s)
		d := p.Explain(class, web(t))
		if v.ServiceFor(class) != s || v.DecidingRule(class) != 0 || class.RuleNumbers() != nil || d.Rule != 0 || !d.Service.Equal(web(t)) {
			t.Errorf("without a policy, %v is told %v by rule %d, and explained %+v", ids, v.ServiceFor(class), v.DecidingRule(class), d)
		}
	}
}

func TestEmptyPolicyTellsNothing(t *testing.T) {
	p := compile(t)
	s := encoded(t, web(t))
	class := consumer(t, p, "dns.example")
	if d := p.Explain(class, web(t)); p.Judge(s).ServiceFor(class) != nil || d.Service != nil || d.Reason != "no rule is for this consumer" {
		t.Errorf("an empty policy tells a service: %+v", d)
	}
	if (policy.Verdict{}).ServiceFor(class) != nil || (policy.Verdict{}).DecidingRule(class) != 0 {
		t.Error("the zero Verdict tells something")
	}
}

// TestMistakesTellNothing checks that a caller who overlooks the mistakes leaks nothing.
func TestMistakesTellNothing(t *testing.T) {
	p, mistakes := policy.New([]policy.Rule{{To: []string{"*"}}, {}})
	if len(mistakes) != 1 || p == nil || p.Judge(encoded(t, web(t))).ServiceFor(p.ClassOf(nil)) != nil {
		t.Errorf("a policy with the mistakes %v tells a service", mistakes)
	}
}

func TestExplainSaysWhatIsNotMet(t *testing.T) {
	for unmet, rule := range map[string]policy.Rule{
		"the fqdn":   {FQDNs: []string{"*.ay.example", "*.web.pay.example", "pay.example"}, Tags: []string{"core"}},
		"the labels": {FQDNs: []string{"*"}, Labels: map[string]string{"tier": "private", "internal-id": "*"}},
		"the tags":   {Labels: map[string]string{"tier": "*"}, Tags: []string{"Edge"}},
	} {
		rule.To = []string{"*"}
		p := compile(t, rule)
		if d := p.Explain(p.ClassOf(nil), web(t)); d.Reason != "it does not meet "+unmet+" of rule 1" {
			t.Errorf("explained %+v, want %q", d, unmet)
		}
	}
}

func TestExplainNamesFewRules(t *testing.T) {
	rules := make([]policy.Rule, 13)
	for i := range rules {
		rules[i] = policy.Rule{Tags: []string{"core"}, To: []string{"*"}}
	}
	p := compile(t, rules...)
	d := p.Explain(p.ClassOf(nil), web(t))
	if !strings.HasSuffix(d.Reason, "the tags of rule 9, the tags of rule 10, or of 3 more") {
		t.Errorf("the reason is %q", d.Reason)
	}
}

// describe is what a service says, without what stays the same in every shape.
func describe(s *federation.Service) string {
	if s == nil {
		return "hidden"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %q tags%v labels%v sans%v", s.FQDN, s.Description, s.Tags, s.Labels, s.SANs)
	for _, e := range s.Endpoints {
		fmt.Fprintf(&b, "\n:%d%v %q", e.Port, e.Labels, e.Description)
	}
	for _, in := range s.Instances {
		fmt.Fprintf(&b, "\n%s/%s%v%v %q", in.ID, in.Protocol, in.EndpointSelector, in.Metadata, in.Description)
	}
	return b.String()
}

func TestShape(t *testing.T) {
	asItIs := describe(web(t))
	type shape = policy.Rule
	for _, tt := range []struct {
		name   string
		change func(s *federation.Service) // before it is told
		rule   shape
		want   func(s *federation.Service) // what is made of it; nil: nothing
		hidden string
	}{
		{name: "none"},
		{
			name: "everything stripped",
			rule: shape{Strip: []string{"description", "tags", "sans", "labels.*", "metadata.*", "labels.tier", "tags"}},
			want: func(s *federation.Service) {
				s.Description, s.Tags, s.Labels, s.SANs = "", nil, nil, nil
				s.Endpoints[0].Description, s.Instances[0].Description, s.Instances[2].Metadata = "", "", nil
			},
		},
		{
			name: "some endpoints", rule: shape{Endpoints: []string{"edge", "none has it"}},
			// c selects nothing, and d says nothing: both are reached through all that remains.
			want: func(s *federation.Service) {
				s.Endpoints, s.Instances = s.Endpoints[:1], slices.Delete(s.Instances, 1, 2)
			},
		},
		{name: "no endpoint", rule: shape{Endpoints: []string{"none has it"}}, hidden: "none of its endpoints has a label that the rule asks for"},
		{
			name: "no instance", rule: shape{Endpoints: []string{"edge"}},
			change: func(s *federation.Service) { s.Instances = s.Instances[1:2] },
			hidden: "every instance is reached only through endpoints that the rule leaves out",
		},
		{
			name: "alias of the name itself", rule: shape{As: map[string]string{"Web.Pay.Example.": "bücher.example"}},
			want: func(s *federation.Service) { s.FQDN = services.FQDN("xn--bcher-kva.example") },
		},
		{
			name: "longest alias", rule: shape{As: map[string]string{".": "a", "example": "b", "pay.example": "c", "x.web.pay.example": "d", "ay.example": "e"}},
			want: func(s *federation.Service) { s.FQDN = services.FQDN("web.c") },
		},
		{
			name: "alias that is too long", rule: shape{As: map[string]string{"pay.example": strings.Repeat("a.", 126)}},
			hidden: "as " + strings.Repeat("a.", 126) + " for pay.example.: name is longer than 254 characters with its final dot",
		},
		{
			name: "alias that is the root", rule: shape{As: map[string]string{"web.pay.example": "."}},
			hidden: "as . for web.pay.example.: name is empty",
		},
		{
			name: "alias that is an address", rule: shape{As: map[string]string{"pay.example": "."}},
			change: func(s *federation.Service) { s.FQDN = services.FQDN("web.1.pay.example") },
			hidden: "as . for pay.example.: last label is a number, so the name looks like an address",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			made := func(changes ...func(*federation.Service)) *federation.Service {
				s := web(t)
				for _, change := range append([]func(*federation.Service){tt.change}, changes...) {
					if change != nil {
						change(s)
					}
				}
				return s
			}
			tt.rule.To = []string{"*"}
			p := compile(t, tt.rule)
			before := encoded(t, made())
			var got *federation.Service
			told := p.Judge(before).ServiceFor(p.ClassOf(nil))
			if told != nil {
				got = told.Service()
			}
			want := made(tt.want)
			if tt.hidden != "" {
				want = nil
			}
			if describe(got) != describe(want) || (told == before) != (tt.want == nil && tt.hidden == "") {
				t.Errorf("told %s\nwant %s", describe(got), describe(want))
			}
			s := made()
			d := p.Explain(p.ClassOf(nil), s)
			if describe(d.Service) != describe(want) || tt.hidden != "" && d.Reason != tt.hidden {
				t.Errorf("explained %q %s\nwant %s", d.Reason, describe(d.Service), describe(want))
			}
			if !s.Equal(made()) {
				t.Errorf("the service was changed to %s", describe(s))
			}
		})
	}
	if describe(web(t)) != asItIs {
		t.Error("the tests change what they share")
	}
}

func TestExplainSaysWhatChanged(t *testing.T) {
	p := compile(t, policy.Rule{
		To: []string{"*"}, As: map[string]string{"pay.example": "partner.example"}, Endpoints: []string{"edge"},
		Strip: []string{"description", "tags", "sans", "labels.*", "metadata.*"},
	})
	const want = "told as web.partner.example in place of web.pay.example, with 1 of 2 endpoints and 3 of 4 instances, stripped of descriptions, tags, sans, labels, metadata"
	if d := p.Explain(p.ClassOf(nil), web(t)); d.Reason != want {
		t.Errorf("the reason is %q, want %q", d.Reason, want)
	}
}

// TestEncodings checks that what is told is encoded once for all rules that shape alike.
func TestEncodings(t *testing.T) {
	p := compile(
		t,
		policy.Rule{To: []string{"a.example"}, Strip: []string{"tags", "sans"}, Endpoints: []string{"edge", "none has it"}},
		policy.Rule{To: []string{"b.example"}, Strip: []string{"sans", "tags", "tags"}, Endpoints: []string{"none has it", "edge"}},
		policy.Rule{To: []string{"c.example"}, Strip: []string{"tags"}},
		policy.Rule{To: []string{"d.example"}},
	)
	s := encoded(t, web(t))
	v := p.Judge(s)
	told := func(id string) *wire.EncodedService { return v.ServiceFor(consumer(t, p, id)) }
	if a, b, c := told("a.example"), told("b.example"), told("c.example"); a == nil || a != b || a == c || c == nil || told("d.example") != s {
		t.Errorf("the encodings are %p, %p, %p and %p of %p", a, b, c, told("d.example"), s)
	}
}

func TestClass(t *testing.T) {
	p := compile(
		t,
		policy.Rule{To: []string{"spiffe://acme.example/**"}, Tags: []string{"a"}},
		policy.Rule{To: []string{"*.acme.example", "b.acme.example"}, Tags: []string{"b"}},
		policy.Rule{To: []string{"b.acme.example"}},
		policy.Rule{To: []string{"*"}, Tags: []string{"c"}},
		policy.Rule{To: []string{"*"}, FQDNs: []string{"*", "web.example"}},
		policy.Rule{To: []string{"*"}, Tags: []string{"d"}},
	)
	for _, tt := range []struct {
		ids  []string
		want []int
	}{
		{nobody, []int{4, 5}},
		{[]string{"other.example"}, []int{4, 5}},
		{[]string{"spiffe://acme.example/a"}, []int{1, 4, 5}},
		{[]string{"a.acme.example"}, []int{2, 4, 5}},
		{[]string{"b.acme.example"}, []int{2, 3}},
		{[]string{"b.acme.example", "spiffe://acme.example/a"}, []int{1, 2, 3}},
	} {
		class := consumer(t, p, tt.ids...)
		if got := class.RuleNumbers(); !slices.Equal(got, tt.want) {
			t.Errorf("the rules for %v are %v, want %v", tt.ids, got, tt.want)
		}
		if slices.Reverse(tt.ids); class != consumer(t, p, tt.ids...) {
			t.Errorf("the class of %v depends on the order", tt.ids)
		}
	}
	if consumer(t, p, "other.example") != p.ClassOf(nil) {
		t.Error("two consumers with the same rules are not one class")
	}
}

// TestManyRules checks the last rule of as many as there can be.
func TestManyRules(t *testing.T) {
	rules := make([]policy.Rule, policy.MaxRules)
	for i := range rules {
		rules[i] = policy.Rule{To: []string{"a.example"}, FQDNs: []string{fmt.Sprintf("x%d.example", i)}, Strip: []string{fmt.Sprintf("labels.x%d", i)}}
	}
	last := &rules[len(rules)-1]
	last.FQDNs, last.Strip = []string{"web.pay.example"}, []string{"tags"}
	p := compile(t, rules...)
	class := consumer(t, p, "a.example")
	if v := p.Judge(encoded(t, web(t))); v.DecidingRule(class) != policy.MaxRules || len(v.ServiceFor(class).Service().Tags) != 0 || len(class.RuleNumbers()) != policy.MaxRules {
		t.Errorf("rule %d decides", v.DecidingRule(class))
	}
}

func TestMistakes(t *testing.T) {
	long := strings.Repeat("x", limits.TagBytes+1)
	many := make([]string, policy.MaxEntries+1)
	manyPairs := map[string]string{}
	for i := range many {
		many[i] = fmt.Sprintf("a%d", i)
		manyPairs[many[i]] = many[i]
	}
	_, mistakes := policy.New([]policy.Rule{
		{FQDNs: []string{"*", "a.*.example"}, To: []string{"a.example", "spiffe://*/x"}},
		{},
		{To: many[:policy.MaxEntries], FQDNs: many[:policy.MaxEntries]}, // as many as there can be
		{To: many, FQDNs: many, Tags: many, Labels: manyPairs, As: manyPairs, Endpoints: many, Strip: many},
		{
			To: []string{"*", "*", ""}, Tags: []string{"a", "", "*", long}, Labels: map[string]string{"": "x", "*": "x", "a": "*"},
			Endpoints: []string{"\xff", "*"},
		},
		{
			To:    []string{"*"},
			As:    map[string]string{"pay.example": "-", "Pay.Example.": "a", "*.example": "b", "_x.example": "c", "": "d", ".": "", "ok.example": "."},
			Strip: []string{"tags", "name", "labels", "labels.", "metadata.a**", "endpoints.labels", "Tags", "sans.x", "labels.a.b*"},
		},
	})
	var got []string
	for _, m := range mistakes {
		got = append(got, fmt.Sprintf("%d %s: %v", m.Rule, m.Field, m.Err))
	}
	want := []string{
		`1 match.fqdn[1]: name pattern "a.*.example": "*" stands alone, or as the first label before a name, as in *.pay.example`,
		`1 to[1]: identity pattern "spiffe://*/x": a trust domain is never a pattern: write it out, and one pattern for each`,
		`2 to: names nobody; "*" is everyone who may subscribe`,
		`4 match.fqdn: more than 256 entries`,
		`4 match.labels: more than 256 entries`,
		`4 match.tags: more than 256 entries`,
		`4 to: more than 256 entries`,
		`4 as: more than 256 entries`,
		`4 endpoints.labels: more than 256 entries`,
		`4 strip: more than 256 entries`,
		`5 match.labels.: label pattern "=x": the key is missing`,
		`5 match.labels.*: label pattern "*=x": a key is never a pattern here: write it out`,
		`5 match.tags[1]: is empty; leave it out`,
		`5 match.tags[2]: is taken as it is written, and "*" stands for nothing here; leave the list out for all`,
		`5 match.tags[3]: 513 bytes, the limit is 512`,
		`5 to[2]: identity pattern "": name is empty`,
		`5 endpoints.labels[0]: not valid UTF-8: "\xff"`,
		`5 endpoints.labels[1]: is taken as it is written, and "*" stands for nothing here; leave the list out for all`,
		`6 as.: zone "": name is empty`,
		`6 as.*.example: zone "*.example": label has a character other than a-z, 0-9, '-' and '_'`,
		`6 as..: zone "": name is empty`,
		`6 as._x.example: zone "_x.example": label begins with '_', which is kept for service labels`,
		`6 as.pay.example: is the same name as another entry`,
		`6 strip[1]: "name" is none of description, tags, sans, labels.KEY and metadata.KEY, where '*' in a KEY stands for any characters`,
		`6 strip[2]: "labels" names no key; labels.* is all of them`,
		`6 strip[3]: "labels." names no key; labels.* is all of them`,
		`6 strip[4]: key pattern "a**": "**" says no more than "*"`,
		`6 strip[5]: "endpoints.labels" is none of description, tags, sans, labels.KEY and metadata.KEY, where '*' in a KEY stands for any characters`,
		`6 strip[6]: "Tags" is none of description, tags, sans, labels.KEY and metadata.KEY, where '*' in a KEY stands for any characters`,
		`6 strip[7]: "sans.x" is none of description, tags, sans, labels.KEY and metadata.KEY, where '*' in a KEY stands for any characters`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the mistakes are (-want +got):\n%s", diff)
	}

	_, mistakes = policy.New(make([]policy.Rule, policy.MaxRules+1))
	if len(mistakes) != 1 || mistakes[0].Rule != 0 || mistakes[0].Err.Error() != "more than 1000 rules" {
		t.Errorf("too many rules give %v", mistakes)
	}
}
