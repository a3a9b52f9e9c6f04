package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// importText is a configuration of an importer.
const importText = `identity:
  files: {cert: consumer.pem, key: consumer-key.pem, ca: ca.pem}
owners:
- addresses: ["owner.example:8008"]
persist: catalogs
`

// kubeconfigText leads to an API server.
const kubeconfigText = `apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: test, namespace: fed}}]
clusters: [{name: test, cluster: {server: "SERVER"}}]
users: [{name: test, user: {token: secret}}]
`

// writeImport writes the configuration of an importer into a directory with certificates, with more keys at
// its end. The importer takes api.fed.example of the owner at an address, and its API server answers that it
// cannot answer now.
func writeImport(t *testing.T, dir, address, more string) (file, server string) {
	t.Helper()
	away := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	t.Cleanup(away.Close)
	write(t, filepath.Join(dir, "kubeconfig"), strings.Replace(kubeconfigText, "SERVER", away.URL, 1))
	_, port, _ := strings.Cut(address, ":")
	text := strings.Replace(importText, "owner.example:8008\"]", "localhost:"+port+"\"]\n  import_names: [api.fed.example]", 1)
	return write(t, filepath.Join(dir, "import.yaml"), strings.Replace(text, "persist: catalogs\n", "kubernetes: {kubeconfig: kubeconfig}\n", 1)+more), away.URL
}

// TestImport imports from an owner while the API server is away: what it says of itself, to systemd as well.
func TestImport(t *testing.T) {
	dir, told := pkiIn(t), notifySocket(t)
	_, address := runServe(t, dir, write(t, filepath.Join(dir, "catalog.yaml"), catalogText))
	told() // by the owner
	file, server := writeImport(t, dir, address, "metrics: \"127.0.0.1:0\"\nstatus: \"127.0.0.1:0\"\n")
	r := background(t, "import", "--log-format", "json", file)
	if line, want := r.line(), "importing "+file+" into "+server; line != want {
		t.Errorf("the first line is %q, expected %q", line, want)
	}
	web, ok := strings.CutPrefix(r.line(), "metrics on ")
	at, found := strings.CutPrefix(r.line(), "status on ")
	if state := told(); !ok || !found || state != "READY=1" {
		t.Errorf("metrics on %q, status on %q, systemd was told %q", web, at, state)
	}
	c := configured{running: r, web: strings.TrimSuffix(web, "metrics")}
	c.shows("metrics", `federation_import_owner_state{owner="localhost:`+address[strings.LastIndexByte(address, ':')+1:]+`",state="synced"} 1`)
	c.shows("metrics", "\nfederation_import_leads 0\n")
	c.shows("healthz", "ok\n")
	c.shows("readyz", "not ready\nthe API server\n")
	if _, stdout, _ := ctl(t, "status", "--at", "http://"+at); !strings.Contains(stdout, server) {
		t.Errorf("status does not name the API server %s:\n%s", server, stdout)
	}
	if code, state := r.stop(), told(); code != exitDone || state != "STOPPING=1" || !strings.Contains(r.errs.String(), `"msg":"the importer stops; the objects stay"`) {
		t.Errorf("exit code %d, systemd was told %q, the log is\n%s", code, state, r.errs)
	}
}

// TestImportEndsEarly ends a dry run whose owner is not reached.
func TestImportEndsEarly(t *testing.T) {
	dir := pkiIn(t)
	file, _ := writeImport(t, dir, "localhost:1", "")
	r := background(t, "import", "--dry-run", file)
	eventually(t, func() string {
		if text := r.errs.String(); !strings.Contains(text, "not connected to owner") {
			return "the log is " + text
		}
		return ""
	})
	if code := r.stop(); code != exitFailed || !strings.HasSuffix(r.errs.String(), "federationctl: the catalogs of these owners are not complete: localhost:1; 'federationctl watch' shows why\n") {
		t.Errorf("exit code %d, standard error\n%s", code, r.errs)
	}
}

// TestImportRefused has files that cannot be used: each error names the key.
func TestImportRefused(t *testing.T) {
	dir := pkiIn(t)
	t.Chdir(dir)
	writeImport(t, dir, "localhost:1", "")
	text := string(must.Get(os.ReadFile("import.yaml"))(t))
	for _, tt := range []struct{ old, new, want string }{
		{"owners:", "owner:", "configuration file import.yaml: line 1: owners: required; line 3: owner: there is no such key; " +
			"those that there are: identity, kubernetes, metrics, owners, persist, status; 'federationctl check import.yaml' shows each mistake in a line"},
		{"owners:", "metrics: 192.0.2.1:80\nowners:", "see metrics in import.yaml"},
		{"owners:", "status: localhost:none\nowners:", "'federationctl check import.yaml' shows each mistake in a line"},
		{"kubeconfig: kubeconfig", "kubeconfig: none", "none: no such file or directory; see kubernetes in import.yaml"},
		{"owners:", "persist: none\nowners:", "none: no such file or directory; see persist in import.yaml"},
	} {
		write(t, "import.yaml", strings.Replace(text, tt.old, tt.new, 1))
		if code, stdout, stderr := ctl(t, "import", "import.yaml"); code != exitFailed || stdout != "" || !strings.Contains(stderr, tt.want) {
			t.Errorf("with %s: exit code %d, output %q, and not %q:\n%s", tt.new, code, stdout, tt.want, stderr)
		}
	}
	expectCtl(t, exitFailed, "", "federationctl: stat gone.yaml: no such file or directory\n", "import", "gone.yaml")
}

// TestImportDocument parses the configurations in docs/import.md, and the example that it leads to, which
// has every key that there is.
func TestImportDocument(t *testing.T) {
	document := must.Get(os.ReadFile("../../docs/import.md"))(t)
	example := must.Get(os.ReadFile("../../corefile-examples/every-key/import.yaml"))(t)
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(document, -1)
	for _, block := range append(blocks, [][]byte{nil, example}) {
		if config.RecognizeForm(block[1]) != config.FormImport {
			continue
		}
		if _, problems, warnings := config.CheckImport(block[1]); len(problems)+len(warnings) > 0 {
			t.Errorf("problems %v, warnings %v in\n%s", problems, warnings, block[1])
		}
	}
	for _, s := range config.ImportSchema().Settings("import.yaml") {
		if key := s.Paths[0][strings.LastIndexByte(s.Paths[0], '.')+1:]; !strings.Contains(string(example), key+":") {
			t.Errorf("the example has no %s", key)
		}
	}
}

// TestCheckImport checks the configuration of an importer, with the files that it names.
func TestCheckImport(t *testing.T) {
	t.Chdir(partiesIn(t))
	write(t, "catalog.yaml", oneService("a"))
	for _, tt := range []struct {
		text   string
		args   []string
		stdout string
		wrong  bool
	}{
		{importText, nil, "import.yaml: 1 owner, fit to be imported\n", false},
		{importText + "kubernetes: {as: mcs}\nmetric: a\n", nil, "import.yaml:6: error: kubernetes.cluster: required with 'as: mcs'\n" +
			"import.yaml:7: error: metric: there is no such key; those that there are: identity, kubernetes, metrics, owners, persist, status\n", true},
		{strings.Replace(importText, "owner.example", "192.0.2.1", 1), nil, "import.yaml:4: warning: owners[0].addresses: has an IP address, for which the certificate of the owner must be valid; " +
			"few are: name the owner in owner_ids, or its host in tls_servername\nimport.yaml: 1 owner, fit to be imported\n", false},
		{strings.Replace(importText, "ca.pem", "none.pem", 1), nil, "import.yaml: 1 owner, fit to be imported\nimport.yaml: error: identity.files: CA bundle: stat none.pem: no such file or directory\n", true},
		{strings.Replace(importText, "ca.pem", "none.pem", 1), []string{"--elsewhere"}, "import.yaml: 1 owner, fit to be imported\n", false},
		{strings.NewReplacer("consumer.pem", "server.pem", "consumer-key", "server-key").Replace(importText), nil, "import.yaml: 1 owner, fit to be imported\n" +
			"server.pem: error: the certificate is not valid for clients (clientAuth), so owners refuse it; have it issued for clients\n", true},
		{strings.Replace(importText, "catalogs", "catalog.yaml", 1), nil, "import.yaml: 1 owner, fit to be imported\nimport.yaml: error: persist: catalog.yaml is a file; name a folder\n", true},
		{importText + "status: {listen: \":9157\", cert: consumer.pem, key: owner-key.pem, ca: ca.pem}\n", nil, "import.yaml: 1 owner, fit to be imported\n" +
			"import.yaml: error: status: key owner-key.pem of certificate consumer.pem: tls: private key does not match public key\n", true},
	} {
		write(t, "import.yaml", tt.text)
		code, stdout, _ := ctl(t, append(append([]string{"check"}, tt.args...), "import.yaml")...)
		if stdout != tt.stdout || (code == exitFailed) != tt.wrong {
			t.Errorf("exit code %d, output\n%swant\n%s", code, stdout, tt.stdout)
		}
	}
}

// TestCheckImportElsewhere finds the files of a configuration in its own folder.
func TestCheckImportElsewhere(t *testing.T) {
	file := write(t, filepath.Join(partiesIn(t), "import.yaml"), importText)
	expectCtl(t, exitDone, file+": 1 owner, fit to be imported\n", "", "check", file)
}
