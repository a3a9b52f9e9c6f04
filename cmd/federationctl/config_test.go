package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/policy"
	"github.com/hamlet-federation/coredns-federation/internal/source/consul"
	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes"
	kubeexport "github.com/hamlet-federation/coredns-federation/internal/source/kubernetes/export"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// ownerText is a configuration with a catalog file and one consumer.
const ownerText = `listen: "127.0.0.1:0"
metrics: "127.0.0.1:0"
identity:
  files: {cert: owner.pem, key: owner-key.pem, ca: ca.pem}
allow:
  ids: ["` + pkiConsumerID + `"]
catalogs:
- sources:
  - file: {path: catalog.yaml}
`

// oneService returns a catalog of one service.
func oneService(name string) string {
	return "services:\n- name: " + name + "\n  fqdn: " + name + ".fed.example\n" +
		"  endpoints: [{address: 192.0.2.20, port: 80}]\n  instances: [{id: v1, protocol: HTTP}]\n"
}

// configured is an owner with a configuration file.
type configured struct {
	*running

	dir, file    string
	address, web string // host:port of the owner, and the URL of its metrics
	status       string // host:port of its status, where the configuration has the key
}

// serveConfig starts an owner with a configuration, and the certificates of all
// parties beside it. Catalogs has the files beside the configuration, by name.
func serveConfig(t *testing.T, text string, catalogs map[string]string) *configured {
	t.Helper()
	dir := partiesIn(t)
	for name, catalog := range catalogs {
		write(t, filepath.Join(dir, name), catalog)
	}
	c := &configured{dir: dir, file: write(t, filepath.Join(dir, "owner.yaml"), text)}
	c.running = &running{t: t}
	c.start(nil)
	return c
}

// get returns the code and the body of what the owner answers on its metrics address.
func (c *configured) get(path string) (code int, body string) {
	c.t.Helper()
	response := must.Get(http.Get(c.web + path))(c.t)
	defer response.Body.Close()
	data := must.Get(io.ReadAll(response.Body))(c.t)
	return response.StatusCode, string(data)
}

// shows waits until what the owner answers has that text.
func (c *configured) shows(path, text string) {
	c.t.Helper()
	eventually(c.t, func() string {
		if _, body := c.get(path); !strings.Contains(body, text) {
			return fmt.Sprintf("%s has no %q:\n%s", path, text, body)
		}
		return ""
	})
}

// metrics waits until the metrics have these values.
func (c *configured) metrics(want map[string]float64) {
	c.t.Helper()
	eventually(c.t, func() string {
		all, got := scrape(c.t, c.web+"metrics"), make(map[string]float64)
		for series := range want {
			if value, ok := all["federation_owner_"+series]; ok {
				got[series] = value
			}
		}
		return cmp.Diff(want, got)
	})
}

// complete waits until the default catalog is served: until then consumers get Unavailable.
func (c *configured) complete() {
	c.t.Helper()
	c.metrics(map[string]float64{`catalog_unavailable`: 0})
}

// as connects a party to the owner with that server name in the handshake.
func (c *configured) as(party, serverName string) *grpc.ClientConn {
	c.t.Helper()
	source := must.Get(mtls.Load(filesOf(c.dir, party), nil))(c.t)
	owner := must.Get(federation.ParseID(pkiOwnerID))(c.t)
	conn := must.Get(grpc.NewClient("passthrough:///"+c.address, grpc.WithTransportCredentials(source.Client(serverName, []federation.ID{owner}))))(c.t)
	c.t.Cleanup(func() { conn.Close() })
	return conn
}

// gets subscribes until the first response is that one.
func (c *configured) gets(conn *grpc.ClientConn, want string) *stream {
	c.t.Helper()
	var last *stream
	eventually(c.t, func() string {
		last = subscribe(c.t, conn)
		m, err := last.Recv()
		if err != nil {
			return err.Error()
		}
		if got := m.GetResponse().GetOperation().String() + " " + m.GetResponse().GetResourceId(); got != want {
			return fmt.Sprintf("received %q, expected %q", got, want)
		}
		return ""
	})
	return last
}

// twoCatalogs has a default catalog and another one.
const twoCatalogs = ownerText + `- server_name: b.owner.example
  sources:
  - file: {path: b.yaml, lifetime: forever}
`

// TestConfigCatalogs has two catalogs behind one address. A consumer chooses one by the
// server name of its handshake, and must be named.
func TestConfigCatalogs(t *testing.T) {
	c := serveConfig(t, twoCatalogs, map[string]string{"catalog.yaml": oneService("a"), "b.yaml": oneService("b")})
	c.gets(c.as("consumer", "owner.example"), "UPSERT a")
	c.gets(c.as("consumer", "B.owner.example"), "UPSERT b")
	if code := subscribe(t, c.as("partner", "owner.example")).ends(); code != codes.Unauthenticated {
		t.Errorf("a consumer that allow does not name gets %v, expected Unauthenticated", code)
	}
	c.metrics(map[string]float64{
		`services`: 1, `services{catalog="b.owner.example"}`: 1,
		`consumers{catalog="b.owner.example",version="v1alpha2"}`: 1,
		`catalog_unavailable`: 0,
		`source_complete{catalog="b.owner.example",source="file:b.yaml"}`:        1,
		`source_services{catalog="b.owner.example",source="file:b.yaml"}`:        1,
		`source_hidden_services{catalog="b.owner.example",source="file:b.yaml"}`: 0,
		`source_away_seconds{catalog="b.owner.example",source="file:b.yaml"}`:    0,
		`file_broken{file="config"}`:                                             0,
		`file_broken{file="catalog"}`:                                            0,
	})
	c.shows("", `"name":"b.owner.example","services":1,"consumers":{"v1alpha2":1}`)
	c.shows("", `"name":"file:b.yaml","state":"current"`)
	if code := c.stop(); code != exitDone {
		t.Errorf("serve ended with exit code %d; standard error:\n%s", code, c.errs)
	}
}

// TestConfigWaitsForSources has a catalog file that is not there yet. Its consumers get
// Unavailable, those of other catalogs are served, and the owner is not ready.
func TestConfigWaitsForSources(t *testing.T) {
	t.Parallel()
	c := serveConfig(t, twoCatalogs, nil)
	eventually(t, func() string {
		want := "not ready\ncatalog (default): waiting for the first state of file:catalog.yaml\n" +
			"catalog b.owner.example: waiting for the first state of file:b.yaml\n"
		if code, body := c.get("readyz"); code != http.StatusServiceUnavailable || body != want {
			return fmt.Sprintf("/readyz is %d, %q, expected 503, %q", code, body, want)
		}
		return ""
	})
	write(t, filepath.Join(c.dir, "catalog.yaml"), oneService("a"))
	c.gets(c.as("consumer", "owner.example"), "UPSERT a")
	c.shows("readyz", "ready\n") // the other catalog does not take this one with it
	b := c.as("consumer", "b.owner.example")
	if code := subscribe(t, b).ends(); code != codes.Unavailable {
		t.Errorf("a consumer of a catalog that is not complete gets %v, expected Unavailable", code)
	}
	if code, body := c.get("healthz"); code != http.StatusOK || body != "ok\n" {
		t.Errorf("/healthz is %d, %q", code, body)
	}
	c.metrics(map[string]float64{
		`catalog_unavailable{catalog="b.owner.example"}`:                  1,
		`source_complete{catalog="b.owner.example",source="file:b.yaml"}`: 0,
		`file_broken{file="catalog"}`:                                     1,
	})
	c.shows("", `"unavailable":"waiting for the first state of file:b.yaml"`)
	c.shows("", `"name":"file:b.yaml","state":"waiting"`)

	file := write(t, filepath.Join(c.dir, "b.yaml"), oneService("b"))
	stream := c.gets(b, "UPSERT b")
	if code, body := c.get("readyz"); code != http.StatusOK || body != "ready\n" {
		t.Errorf("/readyz is %d, %q", code, body)
	}
	must.Do(t, os.Remove(file))
	c.metrics(map[string]float64{`file_broken{file="catalog"}`: 1, `catalog_unavailable{catalog="b.owner.example"}`: 0})
	if code, body := c.get("readyz"); code != http.StatusOK {
		t.Errorf("/readyz is %d, %q after a file is gone", code, body)
	}
	write(t, file, oneService("b")+strings.TrimPrefix(oneService("c"), "services:\n"))
	ack(stream)
	for _, want := range []string{"UNKNOWN", "UPSERT c"} {
		if got := stream.next(); got != want {
			t.Errorf("received %q, expected %q", got, want)
		}
	}
}

// TestConfirm empties a source of which no more than half may go: what is left out stays, and
// says so, until it is confirmed.
func TestConfirm(t *testing.T) {
	text := strings.Replace(withStatus(ownerText), "catalog.yaml}", "catalog.yaml, max_withdraw: 50%}", 1)
	many := "services:\n"
	for i := range 12 {
		many += strings.TrimPrefix(oneService(fmt.Sprint("a", i)), "services:\n")
	}
	c := serveConfig(t, text, map[string]string{"catalog.yaml": many})
	c.metrics(map[string]float64{`services`: 12, `source_paused_withdrawals{source="file:catalog.yaml"}`: 0})
	confirm := func(want string) {
		t.Helper()
		expectCtl(t, exitDone, want, "", "confirm", "--at", "http://"+c.status)
	}
	confirm("no withdrawal is paused: there is nothing to confirm\n")
	write(t, filepath.Join(c.dir, "catalog.yaml"), "services: []\n")
	c.metrics(map[string]float64{`services`: 12, `source_paused_withdrawals{source="file:catalog.yaml"}`: 12})
	c.explains("a3.fed.example", "paused: its origin has lost it together with too many others")
	confirm("withdrawn: 12 paused services of file:catalog.yaml\n")
	c.metrics(map[string]float64{`services`: 0, `source_paused_withdrawals{source="file:catalog.yaml"}`: 0})
}

// ack acknowledges the first response of a stream, which gets has received.
func ack(s *stream) {
	s.t.Helper()
	must.Do(s.t, s.Send(&rdpb.BidirectionalStream{Request: wire.Answer("1", "session", nil)}))
}

// TestConfigChange edits the configuration of an owner. Of what it changes allow and exports
// take effect, and the keys of everything else are said to wait for a restart.
func TestConfigChange(t *testing.T) {
	t.Parallel()
	c := serveConfig(t, ownerText, map[string]string{"catalog.yaml": oneService("a")})
	c.complete()
	partner := c.as("partner", "owner.example")
	open := subscribe(t, c.as("consumer", "owner.example"))
	hears := func(want ...string) {
		t.Helper()
		for _, want := range want {
			if got := open.next(); got != want {
				t.Errorf("received %q, expected %q", got, want)
			}
		}
	}
	hears("UPSERT a", "UNKNOWN")

	// A file with mistakes changes nothing, and is reported with all of them.
	write(t, c.file, strings.Replace(twoCatalogs, "allow:", "alow:", 1)+"window: 0\n")
	c.metrics(map[string]float64{`file_broken{file="config"}`: 1})
	c.shows("", `"config":"configuration file `+c.file+": line 1: allow: required; line 5: alow: there is no such key; those that there are: allow, allow_addresses, audit, catalogs, identity, listen, metrics, status, window; line 13: window: ")

	// Another catalog waits for a restart, and with it who may subscribe for the first time.
	write(t, c.file, strings.Replace(twoCatalogs, `["`, `["`+partnerID+`", "`, 1)+"  exports: []\n")
	c.metrics(map[string]float64{`file_broken{file="config"}`: 0})
	c.shows("", `"restart":["allow.ids","catalogs[1].exports","catalogs[1].server_name","catalogs[1].sources[0]"]`)
	if code := subscribe(t, partner).ends(); code != codes.Unauthenticated {
		t.Errorf("the partner gets %v, expected Unauthenticated", code)
	}

	// A window waits by itself.
	exports := "window: 9\n" + strings.Replace(ownerText, `["`, `["`+partnerID+`", "`, 1)
	write(t, c.file, exports+"  exports: [{to: [\""+partnerID+"\"]}]\n")
	hears("DELETE a")
	c.gets(partner, "UPSERT a")
	c.shows("", `"restart":["window"]`)
	write(t, c.file, exports)
	hears("UPSERT a")

	// Who is not named any more has to go, whatever waits.
	write(t, c.file, strings.NewReplacer(pkiConsumerID, "another.example", "owner.pem", "other.pem").Replace(ownerText))
	if code := open.ends(); code != codes.Unauthenticated {
		t.Errorf("the stream of a consumer that is not named any more ended with %v, expected Unauthenticated", code)
	}
	c.shows("", `"restart":["allow.ids","identity"]`)
	write(t, c.file, ownerText)
	c.gets(c.as("consumer", "owner.example"), "UPSERT a")
	if code := c.stop(); code != exitDone {
		t.Errorf("serve ended with exit code %d; standard error:\n%s", code, c.errs)
	}
	for line, want := range map[string]int{
		`"file is not used: fix it" what="configuration file"`: 1, `"file is in order again" what="configuration file"`: 1,
		`"restart to apply" file=` + c.file + " keys=window\n": 1, `"configuration applied"`: 3,
	} {
		if n := strings.Count(c.errs.String(), line); n != want {
			t.Errorf("the log has %d times %q, expected %d:\n%s", n, line, want, c.errs)
		}
	}
}

// TestConfigRefused has configurations with which an owner does not start.
func TestConfigRefused(t *testing.T) {
	t.Chdir(pkiIn(t))
	write(t, "catalog.yaml", oneService("a"))
	for _, tt := range []struct {
		text  string // of owner.yaml; empty for none
		flags []string
		code  int
		want  string
	}{
		{"", nil, 1, "federationctl: configuration file: stat owner.yaml: no such file or directory\n"},
		{strings.Replace(ownerText, "allow:", "allow:\n  file: no.txt", 1), nil, 1, "federationctl: allow file: stat no.txt: no such file or directory; see allow.file in owner.yaml\n"},
		{strings.Replace(ownerText, "127.0.0.1:0", "192.0.2.1:1", 1), nil, 1, "federationctl: listen tcp 192.0.2.1:1: bind: cannot assign requested address; see listen in owner.yaml\n"},
		{ownerText, []string{"--window", "2", "--catalog", "catalog.yaml"}, 2, "federationctl: if any flags in the group [config catalog] are set none of the others can be; [catalog config] were all set\nfederationctl: see 'federationctl serve --help'\n"},
	} {
		os.Remove("owner.yaml")
		if tt.text != "" {
			write(t, "owner.yaml", tt.text)
		}
		expectCtl(t, tt.code, "", tt.want, append([]string{"serve", "--config", "owner.yaml"}, tt.flags...)...)
	}
	expectCtl(t, exitUsage, "", "federationctl: --config: the name of the file is empty\nfederationctl: see 'federationctl serve --help'\n", "serve", "--config", "")
}

// TestConfigOfNobody serves with nobody named: everybody is turned away, which without
// a configuration file would mean that everybody may subscribe.
func TestConfigOfNobody(t *testing.T) {
	c := serveConfig(t, strings.Replace(ownerText, `["`+pkiConsumerID+`"]`, "[]", 1), map[string]string{"catalog.yaml": oneService("a")})
	if code := subscribe(t, c.as("consumer", "owner.example")).ends(); code != codes.Unauthenticated {
		t.Errorf("a consumer gets %v, expected Unauthenticated", code)
	}
	c.stop()
	if !strings.Contains(c.errs.String(), "nobody may subscribe; name consumers in allow") {
		t.Errorf("the log does not say that nobody may subscribe:\n%s", c.errs)
	}
}

// rulesText lets a provider register one service.
const rulesText = `rules:
- name: shop
  providers: ["` + pkiConsumerID + `"]
  services: [shop.fed.example]
  addresses: [peer, 127.0.0.0/8]
`

// registered returns a configuration without catalog file, with a registration that has
// these keys.
func registered(keys string) string {
	return strings.Replace(ownerText, "file: {path: catalog.yaml}", "registration: {rules: rules.yaml"+keys+"}", 1)
}

// TestLintConfig checks configurations, and the catalogs and the rules that they name.
func TestLintConfig(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "catalog.yaml", strings.Replace(oneService("a"), "192.0.2.20", "127.0.0.1", 1))
	write(t, "rules.yaml", rulesText)
	write(t, "broken.yaml", rulesText+"  quotas: 1\n")
	for _, tt := range []struct {
		text, stdout, stderr string
	}{
		{ownerText, "owner.yaml: 1 catalog, fit to be served\n" +
			`catalog.yaml:4: error: service "a": endpoints[0].address: 127.0.0.1: consumers refuse loopback addresses unless their allow_addresses has them` + "\n", "federationctl: problems found: 1; fix them and check again\n"},
		{ownerText + "allow_addresses: [127.0.0.0/8]\n", "owner.yaml: 1 catalog, fit to be served\ncatalog.yaml: 1 service, fit to be published\n", ""},
		{twoCatalogs + "allow_addresses: [127.0.0.0/8]\n", "owner.yaml: 2 catalogs, fit to be served\ncatalog.yaml: 1 service, fit to be published\nb.yaml: warning: it is not checked: stat b.yaml: no such file or directory\n", ""},
		{strings.Replace(ownerText, "catalog.yaml}", "catalog.yaml, max_size: 9}", 1), "owner.yaml: 1 catalog, fit to be served\n" +
			"catalog.yaml: error: catalog.yaml is larger than allowed: it has 128 bytes, the limit is 9; max_size in owner.yaml raises it\n", "federationctl: problems found: 1; fix them and check again\n"},
		{ownerText + "  exports: []\nwindows: 1\nallow_addresses: [127.0.0.0/8]\n", "owner.yaml:11: error: windows: there is no such key; those that there are: allow, allow_addresses, audit, catalogs, identity, listen, metrics, status, window\n", "federationctl: problems found: 1; fix them and check again\n"},
		{ownerText + "  exports: []\nallow_addresses: [127.0.0.0/8]\n", "owner.yaml:10: warning: catalogs[0].exports: is empty: nobody is told anything; leave it out to tell everything to everyone who may subscribe\n" +
			"owner.yaml: 1 catalog, fit to be served\ncatalog.yaml: 1 service, fit to be published\n", ""},
		{registered(""), "owner.yaml: 1 catalog, fit to be served\nrules.yaml: rules, fit to be used\n", ""},
		{strings.Replace(registered(""), "rules.yaml", "broken.yaml", 1), "owner.yaml: 1 catalog, fit to be served\n" +
			"broken.yaml:6: error: rules[0].quotas: there is no such key; those that there are: addresses, name, providers, quota, services, ttl\n", "federationctl: problems found: 1; fix them and check again\n"},
		{rulesText, "owner.yaml: rules, fit to be used\n", ""}, // whatever the file is called
		{"rules: {}\n", "owner.yaml:1: error: rules: must be a list\n", "federationctl: problems found: 1; fix them and check again\n"},
	} {
		write(t, "owner.yaml", tt.text)
		code, stdout, stderr := ctl(t, "check", "--elsewhere", "owner.yaml")
		if diff := cmp.Diff(tt.stdout+tt.stderr, stdout+stderr); diff != "" || (code == exitDone) != (tt.stderr == "") {
			t.Errorf("exit code %d; unexpected output (-want +got):\n%s", code, diff)
		}
	}
}

// TestOwnerDocument parses the configurations in docs/owner.md, and the catalogs without the rest
// of one. The example that it leads to must have every key that there is, but for the other origin
// of the identity, which the last one in there has.
func TestOwnerDocument(t *testing.T) {
	document := must.Get(os.ReadFile("../../docs/owner.md"))(t)
	var configs []config.Config
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(document, -1)
	for _, block := range append(blocks, [][]byte{nil, must.Get(os.ReadFile("../../corefile-examples/every-key/owner.yaml"))(t)}) {
		if config.RecognizeForm(block[1]) != config.FormConfiguration {
			continue
		}
		text, alone := block[1], bytes.HasPrefix(block[1], []byte("catalogs:"))
		if alone {
			text = slices.Concat([]byte("identity: {files: {cert: o.pem, key: o-key.pem, ca: ca.pem}}\nallow: {ids: [c.example]}\n"), text)
		}
		config, problems, warnings := config.Check(text)
		if len(problems)+len(warnings) > 0 {
			t.Errorf("problems %v, warnings %v in\n%s", problems, warnings, text)
		}
		if !alone {
			configs = append(configs, config)
		}
	}
	if len(configs) != 3 || configs[1].Identity.SPIFFE.Socket == "" || configs[1].Identity.SPIFFE.TrustDomains == nil {
		t.Fatalf("docs/owner.md has %d whole configurations, expected 3, of which the second has an agent", len(configs))
	}
	settings := configs[2]
	// What is not set by the example is not shown by it.
	var empty []string
	var look func(path string, v reflect.Value)
	look = func(path string, v reflect.Value) {
		switch {
		case v.Kind() == reflect.Pointer && !v.IsNil():
			look(path, v.Elem())
		case v.Type() == reflect.TypeFor[config.File](), v.Type() == reflect.TypeFor[config.Kubernetes](), v.Type() == reflect.TypeFor[policy.Rule](),
			v.Type() == reflect.TypeFor[kubernetes.Config](), v.Type() == reflect.TypeFor[kubeexport.Rules](), v.Type() == reflect.TypeFor[consul.Config](),
			v.Type() == reflect.TypeFor[config.Registration](), v.Type() == reflect.TypeFor[config.Etcd](), v.Type() == reflect.TypeFor[config.NSM](), v.Type() == reflect.TypeFor[config.Consul](), v.Type() == reflect.TypeFor[config.Relay](), v.Type() == reflect.TypeFor[config.Config]():
			for i := range v.NumField() {
				if f := v.Type().Field(i); f.Anonymous || f.Tag.Get("yaml") != "" || v.Type() == reflect.TypeFor[policy.Rule]() { // others are no keys
					look(path+"."+f.Name, v.Field(i))
				}
			}
		case v.IsZero():
			empty = append(empty, path)
		}
	}
	look("", reflect.ValueOf(settings))
	look("file", reflect.ValueOf(settings.Catalogs[0].Sources[0].File))
	look("kubernetes", reflect.ValueOf(settings.Catalogs[0].Sources[1].Kubernetes))
	look("registration", reflect.ValueOf(settings.Catalogs[0].Sources[2].Registration))
	look("nsm", reflect.ValueOf(settings.Catalogs[0].Sources[3].NSM))
	look("consul", reflect.ValueOf(settings.Catalogs[0].Sources[4].Consul))
	look("relay", reflect.ValueOf(settings.Catalogs[len(settings.Catalogs)-1].Sources[0].Relay))
	look("exports", reflect.ValueOf(settings.Catalogs[0].Exports[0].Rule))
	// NSM.Plain excludes others, and another catalog has it. Services of clusters have no tags.
	others := settings.Catalogs[1].Sources
	if diff := cmp.Diff([]string{"nsm.Plain", "exports.Tags"}, empty); diff != "" || !others[2].NSM.Plain {
		t.Errorf("the example leaves out (-want +got):\n%s", diff)
	}
	if len(settings.Catalogs) != 3 || settings.Catalogs[1].ServerName == "" || settings.Allow.File == "" {
		t.Errorf("the example is too short: %+v", settings)
	}
}
