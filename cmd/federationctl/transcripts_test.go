package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/internal/source/file/catalogfile"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/internal/status/page"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// transcripts is where they are, also from other folders.
var transcripts = must.Value(filepath.Abs("testdata/transcripts"))

var updateTranscripts = flag.Bool("update-transcripts", false, "write what commands print to testdata/transcripts")

// transcript runs the command lines of a file in testdata/transcripts, each behind "$ ", and
// compares what it prints with what stands below them. Addresses that
// differ from run to run have names, as in "AT=http://...".
func transcript(t *testing.T, name, dir string, environment map[string]string) {
	t.Helper()
	path := filepath.Join(transcripts, name+".txt")
	want := string(must.Get(os.ReadFile(path))(t))
	long := regexp.MustCompile(`^(\{|federationctl: |FEDERATION |act: |look: |OP |upsert |CATALOG |mesh-a|(api|shop) +(api|shop)|- |  federationctl |tcp://|SERVICE +NODE|shop.fed.example: |shop.fed.example +tcp|time=|\S+:\d+: )`) // for programs, or as long as what they are about
	var got strings.Builder
	for line := range strings.Lines(want) {
		script, is := strings.CutPrefix(line, "$ ")
		if !is {
			continue
		}
		for variable, text := range environment {
			t.Setenv(variable, text)
		}
		code, stdout, stderr := shell(t, dir, script)
		for output := range strings.Lines(stdout + stderr) {
			if text := strings.TrimSuffix(output, "\n"); len(text) > 80 && !long.MatchString(text) {
				t.Errorf("%s prints a line of %d characters: %s", strings.TrimSpace(script), len(text), text)
			}
		}
		fmt.Fprintf(&got, "%s%s%s", line, stdout, stderr)
		if code != 0 {
			fmt.Fprintf(&got, "[exit code %d]\n", code)
		}
		got.WriteByte('\n')
	}
	text := strings.TrimSuffix(got.String(), "\n")
	for variable, address := range environment {
		text = strings.ReplaceAll(text, address, variable)
	}
	for _, mask := range [][2]string{
		{`serve \S+ \(.*\)`, "serve VERSION"},
		{`127\.0\.0\.1:\d+`, "ADDRESS"},
		{`running for \d+ (s|min)`, "running for TIME"},
		{`\d+s ago +in \d+s`, "SINCE   UNTIL "},
		{`expires in \d+ h( \d+ min)?`, "expires in TIME"},
		{`20\d\d-\d\d-\d\dT[0-9:.]+Z`, "TIME"},
	} {
		text = regexp.MustCompile(mask[0]).ReplaceAllString(text, mask[1])
	}
	if *updateTranscripts {
		must.Do(t, os.WriteFile(path, []byte(text), 0o600))
	} else if diff := cmp.Diff(want, text); diff != "" {
		t.Errorf("%s (-want +got); after a change that is meant, run the test with -update-transcripts:\n%s", path, diff)
	}
}

// manyOwners is a CoreDNS that follows owners in several states.
type manyOwners struct {
	asked

	owners []status.FollowedOwner
	worse  atomic.Bool // than the first of them is
}

func (m *manyOwners) Status() status.Status {
	s := m.asked.Status()
	s.Owners, s.Began = m.owners, askedAt.Add(-72*time.Hour)
	for i := range s.Owners {
		s.Owners[i].Retry = func() {}
	}
	if !m.worse.Load() && len(s.Owners) == 2 {
		s.Owners = s.Owners[:1]
	}
	return s
}

func (m *manyOwners) Why(ctx context.Context, name string, qtype uint16) (status.NameExplanation, error) {
	why, err := m.asked.Why(ctx, name, qtype)
	if name == "shop.fed.example." {
		a := &why.Answers[0]
		a.Verdict, a.Rcode, a.Is, a.Records = status.Live, "NOERROR", "service", []string{name + " 30 IN A 192.0.2.10"}
		a.Holder = &status.NameHolder{Owner: m.owners[0].ID, Service: "shop", FQDN: name, Updated: askedAt}
	}
	return why, err
}

// Catalog has the services with the first owner, of which api is stale.
func (m *manyOwners) Catalog(of string) iter.Seq2[status.CatalogService, error] {
	return func(yield func(status.CatalogService, error) bool) {
		for _, encoded := range m.services {
			s := encoded.Service()
			if of != m.owners[0].ID && of != "" || !yield(status.NewService(s, askedAt, s.Name == "api")) {
				return
			}
		}
	}
}

// followed returns owners in each state.
func followed() []status.FollowedOwner {
	ago := func(d time.Duration) time.Time { return askedAt.Add(-d) }
	in := askedAt.Add
	return []status.FollowedOwner{
		{ID: "mesh-a.example:8008", State: "synced", Since: ago(50 * time.Hour), Known: true, Services: 123456, Instances: 200000, Octets: 61 << 20, Retention: 86400},
		{ID: "mesh-b.example:8008", State: "stale", Since: ago(2 * time.Hour), Known: true, Services: 1, Stale: 1, Retention: 86400, Lost: ago(2 * time.Hour), Expires: in(22 * time.Hour), Failure: "Unavailable: connection refused", Remedy: "check that the owner runs", NextAttempt: in(4 * time.Second)},
		{ID: "mesh-c.example:8008", State: "expired", Since: ago(40 * time.Minute), Known: true, Retention: 3600, Failure: "Unavailable: connection refused", Lost: ago(100 * time.Minute)},
		{ID: "mesh-d.example:8008", State: "synced", Since: ago(297 * time.Second), Known: true, Services: 12, NotAdmitted: 2, Retention: 86400},
		{ID: "mesh-west.prod.example.org:8008", State: "connecting", Since: ago(9 * time.Second), Retention: 86400, Failure: "Unavailable: no such host"},
		{ID: "mesh-e.example:8008", State: "parked", Since: ago(time.Hour), Known: true, Retention: 86400, Failure: "Unauthenticated: not allowed"},
	}
}

// statusAt serves the status of a process until the test ends, and returns its URL.
func statusAt(t *testing.T, source page.ReportSource) string {
	t.Helper()
	server := httptest.NewServer(page.NewHandler(source))
	t.Cleanup(server.Close)
	return server.URL
}

// TestTranscriptsOfConsumer has what the commands print of a CoreDNS in trouble, one that is
// well, and none.
func TestTranscriptsOfConsumer(t *testing.T) {
	services := catalogfile.Parse([]byte(transcribed), wire.AnyAddress())
	must.Do(t, services.Err())
	slices.SortFunc(services.Services, func(a, b *wire.EncodedService) int { return strings.Compare(a.Name(), b.Name()) })
	all := followed()
	look := &manyOwners{asked: asked{services.Services}, owners: all[:2]}
	look.worse.Store(true)
	gone := httptest.NewServer(nil)
	gone.Close()
	transcript(t, "consumer", t.TempDir(), map[string]string{
		"BAD":  statusAt(t, &manyOwners{asked: asked{services.Services}, owners: all}),
		"WELL": statusAt(t, &manyOwners{asked: asked{services.Services}, owners: all[:1]}),
		"LOOK": statusAt(t, look),
		"GONE": gone.URL, "OTHER": statusAt(t, nothing{}),
	})
}

// importing is an importer that cannot write everything.
type importing struct{ manyOwners }

func (i *importing) Status() status.Status {
	s := i.manyOwners.Status()
	s.Role, s.Imports = status.Importer, &status.Imports{
		Cluster: "https://10.96.0.1:443", Namespace: "fed", Leads: true, Leader: "import-0", Services: map[string]int{status.ImportWritten: 123455, status.ImportKept: 12},
		Refused: map[string]int{status.ImportNameTaken: 1}, Problems: []status.ImportedService{i.problem()},
	}
	return s
}

func (*importing) problem() status.ImportedService {
	return status.ImportedService{
		Since: askedAt.Add(-time.Minute), Owner: "mesh-a.example:8008", Service: "shop", FQDN: "shop.fed.example.", Object: "fed/shop", State: status.ImportNameTaken, Rule: "there is a Service fed/shop that somebody else has made",
	}
}

func (i *importing) Why(_ context.Context, name string, _ uint16) (status.NameExplanation, error) {
	why := status.NameExplanation{Role: status.Importer, Now: askedAt, Name: name, Type: "A"}
	for _, u := range i.owners {
		why.Refused = append(why.Refused, status.OwnerPart{ID: u.ID, State: u.State, Known: u.Known, Since: u.Since, Expires: u.Expires, Failure: u.Failure, Remedy: u.Remedy, NextAttempt: u.NextAttempt})
	}
	if problem := i.problem(); name == problem.FQDN {
		why.Imports = []status.ImportedService{problem}
	}
	return why, nil
}

// TestTranscriptsOfImporter has what the commands print of an importer.
func TestTranscriptsOfImporter(t *testing.T) {
	all := followed()
	process := &importing{manyOwners{owners: slices.Concat(all[:1], all[2:3])}}
	process.worse.Store(true)
	transcript(t, "importer", t.TempDir(), map[string]string{"IMPORT": statusAt(t, process)})
}

// nothing is an endpoint of something else.
type nothing struct{ page.ReportSource }

func (nothing) Status() status.Status { return status.Status{} }

const transcribed = `services:
- name: shop
  fqdn: shop.fed.example
  labels: {team: storefront, tier: gold}
  endpoints:
  - {address: 192.0.2.10, port: 443, labels: [stable]}
  - {address: "2001:db8::10", port: 443}
  - {address: 192.0.2.11, port: 8443, labels: [canary]}
  - {address: 192.0.2.12, port: 8443, labels: [canary]}
  instances:
  - {id: v1, protocol: HTTPS, endpointSelector: [stable]}
  - {id: v2, protocol: HTTPS, endpointSelector: [canary]}
- name: api
  fqdn: api.fed.example
  labels: {team: platform}
  endpoints: [{address: 192.0.2.20, port: 80}, {address: gw.example.net, port: 81}]
  instances: [{id: v1, protocol: HTTP}]
`

// TestTranscriptsOfOwner has what they print of an owner.
func TestTranscriptsOfOwner(t *testing.T) {
	dir := pkiIn(t)
	write(t, filepath.Join(dir, "catalog.yaml"), transcribed)
	write(t, filepath.Join(dir, "owner.yaml"), `identity: {files: {cert: owner.pem, key: owner-key.pem, ca: ca.pem}}
allow: {ids: ["spiffe://federation.example/consumer"]}
catalogs:
- sources: [{file: {path: catalog.yaml}}]
  exports:
  - {to: ["*"], match: {labels: {team: storefront}}}
`)
	t.Chdir(dir)
	process, owner := runServe(t, "", "catalog.yaml", "--status", "127.0.0.1:0")
	at := "http://" + strings.TrimPrefix(process.line(), "status on ")
	await.Until(t, patience, func() string { // consumers are served a moment later
		response, err := http.Get(at + "/v1/status")
		if err != nil {
			return err.Error()
		}
		defer response.Body.Close()
		if text, err := io.ReadAll(response.Body); err != nil || !strings.Contains(string(text), `"ready":true`) {
			return fmt.Sprintf("%v; the owner is not ready: %s", err, text)
		}
		return ""
	})
	transcript(t, "owner", dir, map[string]string{"AT": at, "OWNER": owner})
}

// TestStatusWatch follows a process that gets worse, and then goes: what has not changed is
// not printed again.
func TestStatusWatch(t *testing.T) {
	source := &manyOwners{owners: followed()[:2]}
	server := httptest.NewServer(page.NewHandler(source))
	t.Cleanup(server.Close)
	r := background(t, "status", "--watch", "--interval", "1ms", "--at", server.URL)
	says := func(want ...string) {
		t.Helper()
		for _, text := range want {
			if line := r.line(); !strings.HasPrefix(line, text) || text == "" && line != "" {
				t.Fatalf("%q does not begin with %q", line, text)
			}
		}
	}
	says("CoreDNS with federation v1.2.3, running for 3 days: well", "", "LEVEL", "well   mesh-a")
	source.worse.Store(true)
	says("", "CoreDNS with federation v1.2.3, running for 3 days: look", "", "LEVEL", "look   mesh-b", "well   mesh-a")
	line := r.line()
	for !strings.HasPrefix(line, "  to do:") {
		line = r.line()
	}
	server.Close()
	for line != "" {
		line = r.line()
	}
	says("no answer: http://127.0.0.1")
	if code := r.stop(); code != exitDone {
		t.Errorf("exit code %d", code)
	}
}

// TestTranscriptsOfTools has what the commands print that ask no status: about files, with an
// owner in which programs register, and with a DNS server.
func TestTranscriptsOfTools(t *testing.T) {
	const rules = `rules:
- name: shop
  providers: ["` + pkiConsumerID + `"]
  services: [shop.fed.example]
  addresses: [192.0.2.0/24]
`
	dir := pkiIn(t)
	for name, text := range map[string]string{
		"catalog.yaml": transcribed, "rules.yaml": rules,
		"broken.yaml":     strings.Replace(transcribed, "port: 443", "port: 0", 1),
		"other.yaml":      strings.NewReplacer("192.0.2.20", "192.0.2.21", "tier: gold", "tier: silver").Replace(transcribed),
		"owner.yaml":      strings.Replace(ownerText, "metrics: \"127.0.0.1:0\"\n", "", 1),
		"closed.yaml":     ownerText + "  exports: []\n",
		"registrar.yaml":  strings.Replace(ownerText, "file: {path: catalog.yaml}", "registration: {rules: rules.yaml, convergence: 1s}", 1),
		"Corefile":        "fed.example {\nfederation {\nowner owner.example:8008\ntls consumer.pem consumer-key.pem ca.pem\n}\n}\n",
		"Corefile.broken": "fed.example {\nfederation {\nowner owner\ntsl a b c\n}\n}\n",
	} {
		write(t, filepath.Join(dir, name), text)
	}
	_, address := runServe(t, dir, filepath.Join(dir, "catalog.yaml"))
	write(t, filepath.Join(dir, "import.yaml"), strings.NewReplacer(
		"- addresses: [\"owner.example:8008\"]", `- {name: mesh-a, addresses: ["`+address+`"], owner_ids: ["`+pkiOwnerID+`"], zones: [fed.example], import_names: [shop.fed.example]}`,
		"persist: catalogs\n", "kubernetes: {kubeconfig: kubeconfig, namespace: fed}\n",
	).Replace(importText))
	owner := background(t, "serve", "--config", filepath.Join(dir, "registrar.yaml"))
	at := ""
	must.Get(fmt.Sscanf(owner.line(), "serving "+filepath.Join(dir, "registrar.yaml")+" on %s", &at))(t)
	(&configured{running: owner, web: strings.TrimSuffix(strings.TrimPrefix(owner.line(), "metrics on "), "metrics")}).complete()
	transcript(t, "tools", dir, map[string]string{
		"REGISTRAR": at, "LISTEN": "127.0.0.1:0",
	})
}

// TestEveryCommandHasGoldens has a golden of the help of each command, and of each that does
// something one of a success and one of a failure.
func TestEveryCommandHasGoldens(t *testing.T) {
	ran := make(map[string]map[bool]bool) // by command: whether it was a success
	for _, path := range must.Get(filepath.Glob(transcripts + "/*.txt"))(t) {
		for run := range strings.SplitSeq("\n"+string(must.Get(os.ReadFile(path))(t)), "\n$ ") {
			line, _, _ := strings.Cut(run, "\n")
			_, line, _ = strings.Cut(line, "federationctl ")
			words := []string{"federationctl"}
			for word := range strings.FieldsSeq(line) {
				words = append(words, word)
				name := strings.Join(words, "-")
				if ran[name] == nil {
					ran[name] = make(map[bool]bool)
				}
				ran[name][!strings.Contains(run, "\n[exit code ")] = true
			}
		}
	}
	root := rootCommand(t.Context())
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	for _, command := range commandsBelow(root) {
		name := strings.ReplaceAll(command.CommandPath(), " ", "-")
		library := name == "federationctl-help" || strings.HasPrefix(name, "federationctl-completion")
		for _, success := range []bool{true, false} {
			if does := !command.HasAvailableSubCommands() && !library; does && !ran[name][success] {
				t.Errorf("no transcript has %s with success=%t", command.CommandPath(), success)
			}
		}
	}
}
