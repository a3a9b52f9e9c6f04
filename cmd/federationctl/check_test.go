package main

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckCommand(t *testing.T) {
	dir := t.TempDir()
	outside := write(t, filepath.Join(dir, "outside"), "fed.example {\nfederation x.example {\nowner owner.example:8008\ntls a b c\n}\n}\n")
	shared := write(t, filepath.Join(dir, "shared"), "fed.example {\nfederation {\nowner a:1\ntls a b c\nshare *\nmin 2\n}\nfederation {\nowner b:1\ntls a b c\nshare web.fed.example\nmin 3\n}\n}\n")
	keys := pkiIn(t)
	files := func(cert string) string {
		return "fed.example {\nroot " + keys + "\nfederation {\nowner owner.example:8008\ntls " + cert + " consumer-key.pem ca.pem\nstatus :9154 consumer.pem consumer-key.pem " + cert + "\n}\n}\n"
	}
	usable := write(t, filepath.Join(dir, "usable"), files("consumer.pem"))
	missing := write(t, filepath.Join(dir, "missing"), files("none.pem"))
	none := filepath.Join(keys, "none.pem")
	for _, tt := range []struct {
		file           string
		code           int
		stdout, stderr string
		flags          []string
	}{
		{usable, exitDone, usable + ": a Corefile without mistakes\n", "", nil},
		{
			missing, exitFailed, missing + ":5: error: tls: certificate: stat " + none + ": no such file or directory\n" +
				missing + ":6: error: status: CA bundle: stat " + none + ": no such file or directory\n",
			"federationctl: problems found: 2; fix them and check again\n", nil,
		},
		{missing, exitDone, missing + ": a Corefile without mistakes\n", "", []string{"--elsewhere"}},
		{
			outside, exitDone, outside + ":2: warning: zones: x.example. is not within its server block, fed.example.; queries for names outside of that do not arrive here\n" +
				outside + ": a Corefile without mistakes\n", "",
			[]string{"--elsewhere"},
		},
		{
			shared, exitFailed,
			shared + ":12: error: min: is 3 here and 2 at " + shared + ":6, in blocks that share web.fed.example\n",
			"federationctl: problems found: 1; fix them and check again\n",
			[]string{"--elsewhere"},
		},
		{filepath.Join(dir, "none"), exitFailed, filepath.Join(dir, "none") + ": error: stat " + filepath.Join(dir, "none") + ": no such file or directory\n", "federationctl: problems found: 1; fix them and check again\n", nil},
	} {
		expectCtl(t, tt.code, tt.stdout, tt.stderr, append([]string{"check", tt.file}, tt.flags...)...)
	}
}

// TestIsCorefile recognizes Corefiles by their names, and by how they begin.
func TestIsCorefile(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       bool
	}{
		{"a/Corefile", "", true},
		{"Corefile.new", "services: []", true},
		{"-", ".:53 {\n}\n", true},
		{"-", "\n# of one owner\n\n  # of another\nfed.example, a.example {  # here\r\n}", true},
		{"-", "(consumer) {\n tls a b c\n}\n", true},
		{"-", ". {", true},
		{"-", "", false},
		{"-", "# nothing", false},
		{"-", "services:\n- name: {\n", false},
		{"-", "services: {\n}\n", false},
		{"-", "{\n\"services\": []}", false},
		{"-", "\"services\": {\n", false},
		{"-", "[a {\n]", false},
		{"Corefiles", "rules: []\n", false},
	} {
		if got := isCorefile(tt.name, []byte(tt.text)); got != tt.want {
			t.Errorf("%s, %q: %v, expected %v", tt.name, tt.text, got, tt.want)
		}
	}
}

// TestCheckOfCertificates has files of certificates in a configuration that cannot be used.
func TestCheckOfCertificates(t *testing.T) {
	t.Chdir(partiesIn(t))
	write(t, "catalog.yaml", oneService("a"))
	good := "owner.yaml: 1 catalog, fit to be served\ncatalog.yaml: 1 service, fit to be published\n"
	etcd := strings.Replace(registered(", store: {etcd: {endpoints: [\"https://127.0.0.1:1\"], tls: {ca: none.pem}}}"), "rules.yaml", "catalog.yaml", 1)
	relay := ownerText + "- server_name: b\n  relay: {addresses: [\"a:1\"]}\n"
	for _, tt := range []struct {
		text string
		args []string
		want string // "": none
	}{
		{ownerText, nil, ""},
		{strings.Replace(ownerText, "ca.pem", "none.pem", 1), nil, "owner.yaml: error: identity.files: CA bundle: stat none.pem: no such file or directory\n"},
		{strings.Replace(ownerText, "owner-key.pem", "consumer-key.pem", 1), nil, "owner.yaml: error: identity.files: key consumer-key.pem of certificate owner.pem: tls: private key does not match public key\n"},
		{strings.Replace(ownerText, "ca.pem", "none.pem", 1), []string{"--elsewhere"}, ""},
		{ownerText + "status: {listen: \":9156\", cert: owner.pem, key: owner-key.pem, ca: catalog.yaml}\n", nil, "owner.yaml: error: status: CA bundle catalog.yaml: holds no PEM certificate\n"},
		{etcd, nil, "owner.yaml: error: source registration:registration: CA bundle: stat none.pem: no such file or directory\n"},
		{relay, nil, "owner.yaml: 2 catalogs, fit to be served\n"},
		{strings.NewReplacer("owner.pem", "server.pem", "owner-key", "server-key").Replace(relay), nil, "server.pem: warning: the certificate is not valid for clients (clientAuth), so the owner that relay:a:1 follows refuses it;"},
	} {
		write(t, "owner.yaml", tt.text)
		code, stdout, stderr := ctl(t, append(append([]string{"check"}, tt.args...), "owner.yaml")...)
		if (code == exitFailed) != strings.Contains(tt.want, "error") || strings.Contains(stdout, "warning") != strings.Contains(tt.want, "warning") || !strings.Contains(stdout, tt.want) || tt.want == "" && stdout != good {
			t.Errorf("check %v: exit code %d, output:\n%s%s\nexpected %q", tt.args, code, stdout, stderr, tt.want)
		}
	}
}
