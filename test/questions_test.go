package test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// question is what a reader who is new asks, and where the pages answer.
type question struct {
	asks    string
	page    string
	heading string // of the section with the answer; sections within it belong to it
	phrase  string // of the answer, with any white space between its words
}

// The reader's test: a reader who has the pages and nothing else finds the answer to each of these
// questions. They were written down before the pages were rewritten, so that nothing was lost.
var questions = []question{
	{"What is it?", "README.md", "federation", "a CoreDNS plugin that makes the services of another team or company resolvable by name"},
	{"Why not forward, or Consul?", "README.md", "federation", "an owner can claim only the names and addresses that you grant"},
	{"Who can be an owner?", "README.md", "federation", "any program can publish with package"},
	{"How do I try it in one command?", "README.md", "Try it", "make run"},
	{"What does a client see when the owner is down, and for how long?", "docs/answers.md", "When an owner is not there", "stale: EDE 3, and a TTL of at most 30 s"},
	{"How do I see that an answer is stale?", "README.md", "Try it", "EDE: 3 (Stale Answer)"},
	{"Which names does a service have?", "README.md", "Description", "the endpoints and the text of `v1`"},
	{"What is the format of a catalog file?", "docs/catalog.md", "All that a service can say", "required; unique in the catalog"},
	{"What is the smallest catalog file?", "docs/catalog.md", "The smallest one", "endpoints: [{address: 192.0.2.10, port: 443}]"},
	{"What is an instance?", "README.md", "Description", "*instances* (each an ID and a protocol)"},
	{"How do I publish what is in Kubernetes?", "docs/owner.md", "A Kubernetes cluster", "kubernetes: {cluster: west, zone: west.fed.example}"},
	{"How do I publish programs and VMs?", "docs/owner.md", "A first one", "federationctl register --server owner.example:8008"},
	{"Who may see what?", "docs/owner.md", "Who is told what", "`exports` which services of a catalog they are told"},
	{"Which certificates and identities do both sides need?", "docs/install.md", "Security from the first day", "URI:spiffe://dns.example/coredns"},
	{"How do I limit what an owner may claim?", "README.md", "Description", "An owner can publish only in the zones of its block"},
	{"What if two owners have one name?", "README.md", "Several owners", "first withdraws it or its retention ends"},
	{"What if an owner comes back with half of its services?", "docs/answers.md", "When an owner is not there", "came back without most of its services"},
	{"What is answered before the first catalog?", "docs/answers.md", "When an owner is not there", "is sending its first catalog"},
	{"How do names survive a restart?", "docs/operating.md", "Persistence", "keeps the last good catalog of one owner"},
	{"What do I do in EKS, GKE or AKS?", "docs/places.md", "EKS, GKE, AKS and other clusters with a DNS that you cannot replace", "have the cluster's DNS forward the zones of your owners to it"},
	{"How much memory and processor time does it take?", "docs/install.md", "Capacity", "memory of the CoreDNS process with 10,000 services"},
	{"What do I alert on?", "docs/operating.md", "What to watch", "has a dashboard and alerts for Prometheus"},
	{"An alert fired: what now?", "docs/runbook.md", "Alerts of a consumer", "repair the owner or the network before the retention ends"},
	{"A name is not answered: what now?", "docs/runbook.md", "Names that are missing or wrong", "the service was removed from its source"},
	{"How do I stop a backend?", "docs/owner.md", "To stop a backend", "Wait one TTL more"},
	{"How do I rotate an authority?", "docs/operating.md", "Certificates", "Add the new authority to the CA bundles of both sides"},
	{"How do I upgrade?", "docs/operating.md", "Upgrades", "upgrade one after the other"},
	{"How do the lifetimes differ?", "docs/owner.md", "Lifetimes", "each bounds something else"},
	{"How do I build it into my own CoreDNS?", "docs/install.md", "Your own CoreDNS", "go generate"},
	{"How do pods use the services if I cannot change the cluster's DNS?", "docs/import.md", "Into Kubernetes", "Use the importer where you cannot change the cluster's DNS"},
	{"What becomes of imported Services when the owner, the importer or the API server is away?", "docs/import.md", "What happens when", "and are deleted when its `retention` ends"},
	{"Why does TLS to an imported Service fail?", "docs/import.md", "What a Service cannot do", "Tell TLS clients the server name"},
	{"What does it not do?", "docs/limits.md", "DNS", "There are no PTR records"},
}

var space = regexp.MustCompile(`\s+`)

// TestQuestions looks for each answer in its section.
func TestQuestions(t *testing.T) {
	if len(questions) != 33 {
		t.Errorf("there are %d questions", len(questions))
	}
	for _, q := range questions {
		lines, line := documentAt(t, q.page).section(q.heading)
		text := space.ReplaceAllString(strings.Join(lines, " "), " ")
		if !strings.Contains(text, q.phrase) {
			t.Errorf("%s %s below %q does not say %q", q.asks, q.page, q.heading, q.phrase)
			continue
		}
		t.Logf("%s %s:%d", q.asks, q.page, line)
	}
}

// section returns the lines below a heading, until the next one of its level or above, and the
// number of the line with the heading. There are none if no heading has the title.
func (d *document) section(title string) (lines []string, line int) {
	prose, all := strings.Split(d.prose, "\n"), strings.Split(d.text, "\n")
	begin := slices.IndexFunc(prose, func(l string) bool {
		found := heading.FindStringSubmatch(l)
		return found != nil && found[1] == title
	})
	if begin < 0 {
		return nil, 0
	}
	level := strings.Index(prose[begin], " ")
	end := slices.IndexFunc(prose[begin+1:], func(l string) bool {
		return heading.MatchString(l) && strings.Index(l, " ") <= level
	})
	if end < 0 {
		end = len(all) - begin - 1
	}
	return all[begin+1 : begin+1+end], begin + 1
}
