package main

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckCommand(t *testing.T) {
	dir := t.TempDir()
	good := write(t, filepath.Join(dir, "good"), "fed.example {\nfederation {\nowner owner.example:8008\ntls a b c\n}\n}\n")
	outside := write(t, filepath.Join(dir, "outside"), "fed.example {\nfederation x.example {\nowner owner.example:8008\ntls a b c\n}\n}\n")
	wrong := write(t, filepath.Join(dir, "wrong"), "fed.example {\nfederation {\nowner owner\ntsl a b c\n}\n}\n")
	shared := write(t, filepath.Join(dir, "shared"), "fed.example {\nfederation {\nowner a:1\ntls a b c\nshare *\nmin 2\n}\nfederation {\nowner b:1\ntls a b c\nshare web.fed.example\nmin 3\n}\n}\n")
	keys := pkiIn(t)
	files := func(cert string) string {
		return "fed.example {\nroot " + keys + "\nfederation {\nowner owner.example:8008\ntls " + cert + " consumer-key.pem ca.pem\nstatus :9154 consumer.pem consumer-key.pem " + cert + "\n}\n}\n"
	}
	usable := write(t, filepath.Join(dir, "usable"), files("consumer.pem"))
	missing := write(t, filepath.Join(dir, "missing"), files("none.pem"))
	none := filepath.Join(keys, "none.pem")
	for _, tt := range []struct {
		file, flag     string
		code           int
		stdout, stderr string
	}{
		{usable, "", exitDone, "", ""},
		{
			missing, "", exitFailed, missing + ":5: error: tls: certificate: stat " + none + ": no such file or directory\n" +
				missing + ":6: error: status: CA bundle: stat " + none + ": no such file or directory\n",
			"federationctl: 2 mistakes in the Corefile; mend and check again\n",
		},
		{missing, "--elsewhere", exitDone, "", ""},
	} {
		args := []string{"check", tt.file}
		if tt.flag != "" {
			args = append(args, tt.flag)
		}
		if code, stdout, stderr := ctl(t, args...); code != tt.code || stdout != tt.stdout || stderr != tt.stderr {
			t.Errorf("%v: exit code %d, standard output:\n%s\nstandard error:\n%s\nexpected %d, and:\n%s\n%s", args, code, stdout, stderr, tt.code, tt.stdout, tt.stderr)
		}
	}
	for _, tt := range []struct {
		file   string
		code   int
		stdout string
		stderr string
	}{
		{good, exitDone, "", ""},
		{outside, exitDone, outside + ":2: warning: zones: x.example. is not within its server block, fed.example.; queries for names outside of that do not arrive here\n", ""},
		{
			wrong, exitFailed, wrong + ":2: error: tls: is missing, and so is spiffe; there is no unsecured mode: tls takes the files CERT KEY CA, and spiffe takes SOCKET [TRUST_DOMAIN...]\n" +
				wrong + ":3: error: owner: \"owner\" is not HOST:PORT or https://HOST:PORT\n" +
				wrong + ":4: error: tsl: is not a property of federation; did you mean tls?\n",
			"federationctl: 3 mistakes in the Corefile; mend and check again\n",
		},
		{
			shared, exitFailed, shared + ":12: error: min: is 3 here and 2 at " + shared + ":6, in blocks that share web.fed.example\n",
			"federationctl: 1 mistake in the Corefile; mend and check again\n",
		},
		{filepath.Join(dir, "none"), exitFailed, "", "federationctl: open " + filepath.Join(dir, "none") + ": no such file or directory\n"},
	} {
		if code, stdout, stderr := ctl(t, "check", "--elsewhere", tt.file); code != tt.code || stdout != tt.stdout || stderr != tt.stderr {
			t.Errorf("check %s: exit code %d, standard output:\n%s\nstandard error:\n%s\nexpected %d, and:\n%s\n%s", tt.file, code, stdout, stderr, tt.code, tt.stdout, tt.stderr)
		}
	}
}

// TestLintOfCertificates has files of certificates in a configuration that cannot be used.
func TestLintOfCertificates(t *testing.T) {
	t.Chdir(pkiIn(t))
	write(t, "catalog.yaml", oneService("a"))
	text := ownerText + "allow_addresses: [127.0.0.0/8]\n"
	good := "owner.yaml: 1 catalog, fit to be served\ncatalog.yaml: 1 service, fit to be published\n"
	etcd := strings.Replace(registered(", store: {etcd: {endpoints: [\"https://127.0.0.1:1\"], tls: {ca: none.pem}}}"), "rules.yaml", "catalog.yaml", 1)
	for _, tt := range []struct {
		text string
		args []string
		want string // "": none
	}{
		{text, nil, ""},
		{strings.Replace(text, "ca.pem", "none.pem", 1), nil, "owner.yaml: error: identity.files: CA bundle: stat none.pem: no such file or directory\n"},
		{strings.Replace(text, "owner-key.pem", "consumer-key.pem", 1), nil, "owner.yaml: error: identity.files: key consumer-key.pem of certificate owner.pem: tls: private key does not match public key\n"},
		{strings.Replace(text, "ca.pem", "none.pem", 1), []string{"--elsewhere"}, ""},
		{text + "status: {listen: \":9156\", cert: owner.pem, key: owner-key.pem, ca: catalog.yaml}\n", nil, "owner.yaml: error: status: CA bundle catalog.yaml: holds no PEM certificate\n"},
		{etcd, nil, "owner.yaml: error: source registration:registration: CA bundle: stat none.pem: no such file or directory\n"},
	} {
		write(t, "owner.yaml", tt.text)
		code, stdout, stderr := ctl(t, append(append([]string{"lint"}, tt.args...), "owner.yaml")...)
		if (code == exitDone) != (tt.want == "") || !strings.Contains(stdout, tt.want) || tt.want == "" && stdout != good {
			t.Errorf("lint %v: exit code %d, output:\n%s%s\nexpected %q", tt.args, code, stdout, stderr, tt.want)
		}
	}
}
