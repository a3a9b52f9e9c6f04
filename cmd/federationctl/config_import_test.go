package main

import (
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
