package rules

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern/capture"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/setting"
)

// MaxBytes is how large a file of rules may be.
const MaxBytes = 1 << 20

// The limits of values in a file.
const (
	maxName  = 63 // bytes of the name of a rule
	maxQuota = 1_000_000
	leastTTL = time.Second // heartbeats cannot keep a shorter one
	mostTTL  = time.Hour
)

// fileContent is the content of a file of rules.
type fileContent struct {
	Rules []*fileEntry `yaml:"rules" needs:"name providers services" most:"1000" doc:"Who may register what. The first rule that fits decides, and what no rule allows is refused."`
}

// fileEntry is a rule as a file has it.
type fileEntry struct {
	Name      string           `yaml:"name" as:"name" doc:"What the rule is called in refusals, logs and lists."`
	Providers []capture.ID     `yaml:"providers" as:"provider" most:"256" least:"one is required" doc:"Identities, or patterns of them, of which a provider must have one. A part in braces is captured for services and addresses."`
	Services  []capture.Name   `yaml:"services" as:"service" most:"256" least:"one is required" doc:"Names, or patterns of them, that the providers may register."`
	Addresses []allowedAddress `yaml:"addresses" as:"address" most:"256" least:"one is required; leave it out for that of the connection" doc:"Where nodes may be: peer, addresses, ranges, or patterns of host names. By default peer, the address that the connection comes from; behind NAT, use ranges."`
	TTL       struct {
		Min     time.Duration `yaml:"min" as:"ttl" default:"5s" doc:"The shortest ttl that a provider may ask for, from 1s."`
		Max     time.Duration `yaml:"max" as:"ttl" default:"5m" doc:"The longest ttl that a provider may ask for, up to 1h."`
		Default time.Duration `yaml:"default" as:"ttl" default:"30s" doc:"The ttl of a provider that asks for none. 30s means that a program that was killed is withdrawn half a minute later."`
	} `yaml:"ttl" doc:"How long a node stays without a word of its provider."`
	Quota int `yaml:"quota" as:"quota" default:"100" doc:"How many nodes one identity may register. Raise it if one identity stands for many programs."`
}

// allowedAddress is an entry of addresses: one of the first three fields, and its text.
type allowedAddress struct {
	peer  bool
	block netip.Prefix
	hosts capture.Name
	text  string
}

func (a allowedAddress) String() string { return a.text }

// Schema returns what a file of rules may have.
func Schema() *setting.Schema {
	return setting.SchemaOf(reflect.TypeFor[fileContent](), `needs:"rules"`)
}

// Parse returns the rules of a file, or everything that is wrong with the file, in the order of
// lines.
func Parse(data []byte) (*Rules, []problem.Problem) {
	var in fileContent
	d := problem.Read(data, MaxBytes, "rules are", "rules", map[string]problem.Format{
		"name": problem.FormatOf(parseName), "provider": problem.FormatOf(capture.ParseID), "service": problem.FormatOf(capture.ParseName),
		"address": problem.FormatOf(parseAddress), "quota": problem.FormatOf(setting.WholeNumber(maxQuota)),
		"ttl": problem.FormatOf(func(text string) (time.Duration, error) { return setting.ParseDurationIn(text, leastTTL, mostTTL) }),
	}, &in)
	rules := new(Rules)
	names := make(map[string]int) // lines
	for i, e := range in.Rules {
		if e == nil {
			continue
		}
		path := fmt.Sprintf("rules[%d]", i)
		line := d.LineOf(path + ".name")
		if first, twice := names[e.Name]; twice && e.Name != "" {
			d.AddProblemf(path+".name", "%s is there twice, first on line %d", safetext.Quote(e.Name), first)
		} else {
			names[e.Name] = line
		}
		rules.rules = append(rules.rules, e.compileRule(d, path))
	}
	if problems := d.SortedProblems(); len(problems) > 0 {
		return nil, problems
	}
	return rules, nil
}

// compileRule returns the compiled rule of the entry at that path.
func (e *fileEntry) compileRule(d *problem.Document, path string) compiledRule {
	r := compiledRule{
		name: e.Name, services: e.Services, peer: !d.HasValue(path + ".addresses"),
		min: e.TTL.Min, max: e.TTL.Max, usual: e.TTL.Default, quota: e.Quota,
	}
	for _, p := range e.Providers {
		r.providers = append(r.providers, newProviderPattern(p))
	}
	for _, a := range e.Addresses {
		switch {
		case a.peer:
			r.peer = true
		case a.block.IsValid():
			r.ranges = append(r.ranges, a.block)
		case a.text != "":
			r.hosts = append(r.hosts, a.hosts)
		}
	}
	ttl := path + ".ttl"
	if !d.HasValue(ttl + ".default") {
		r.usual = min(max(r.usual, r.min), r.max)
	}
	switch {
	case d.HasProblemIn(ttl):
	case r.min > r.max:
		d.AddProblemf(ttl, "min is %v, and max is %v", r.min, r.max)
	case r.usual < r.min || r.usual > r.max:
		d.AddProblemf(ttl, "default is %v, and not from %v to %v", r.usual, r.min, r.max)
	}
	r.checkCaptures(d, path)
	return r
}

const nameCharacters = "abcdefghijklmnopqrstuvwxyz0123456789-._"

// parseName returns the name of a rule, which appears in reasons, logs and stores.
func parseName(text string) (string, error) {
	if text == "" || len(text) > maxName || strings.Trim(strings.ToLower(text), nameCharacters) != "" {
		return "", fmt.Errorf("%s is not a name of letters, digits, '-', '.' and '_', %d at most", safetext.Quote(text), maxName)
	}
	return text, nil
}

// checkCaptures adds a problem for each capture that the rule uses and that one of its providers
// does not capture.
func (r *compiledRule) checkCaptures(d *problem.Document, path string) {
	said := map[string]bool{}
	check := func(key string, list []capture.Name) {
		for i := range list {
			for _, name := range list[i].CaptureNames() {
				for j := range r.providers {
					if p := &r.providers[j]; !said[name] && p.String() != "" && !p.HasCapture(name) {
						said[name] = true
						d.AddProblemf(path+"."+key, "%s has {%s}, which the pattern %s of providers does not capture",
							safetext.Quote(list[i].String()), name, safetext.Quote(p.String()))
					}
				}
			}
		}
	}
	check("services", r.services)
	check("addresses", r.hosts)
}

// parseAddress returns what an entry of addresses allows: the word peer for the address of the
// connection, an address, a range of addresses, or a pattern of host names.
func parseAddress(text string) (allowedAddress, error) {
	if text == "peer" {
		return allowedAddress{peer: true, text: text}, nil
	}
	cidr := text
	if ip, err := netip.ParseAddr(text); err == nil {
		if _, err = federation.ParseAddress(text); err != nil { // a zone identifier
			return allowedAddress{}, err
		}
		cidr = netip.PrefixFrom(ip, ip.BitLen()).String()
	}
	if strings.Contains(cidr, "/") {
		block, err := setting.ParsePrefix(cidr)
		return allowedAddress{block: block, text: text}, err
	}
	hosts, err := capture.ParseName(text)
	if err != nil {
		return allowedAddress{}, fmt.Errorf("neither peer, nor a CIDR, nor a pattern of host names: %w", err)
	}
	return allowedAddress{hosts: hosts, text: text}, nil
}
