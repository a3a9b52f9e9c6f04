package main

import (
	"path/filepath"
	"testing"
)

func TestCheckCommand(t *testing.T) {
	dir := t.TempDir()
	good := write(t, filepath.Join(dir, "good"), "fed.example {\nfederation {\nowner owner.example:8008\ntls a b c\n}\n}\n")
	outside := write(t, filepath.Join(dir, "outside"), "fed.example {\nfederation x.example {\nowner owner.example:8008\ntls a b c\n}\n}\n")
	wrong := write(t, filepath.Join(dir, "wrong"), "fed.example {\nfederation {\nowner owner\ntsl a b c\n}\n}\n")
	shared := write(t, filepath.Join(dir, "shared"), "fed.example {\nfederation {\nowner a:1\ntls a b c\nshare *\nmin 2\n}\nfederation {\nowner b:1\ntls a b c\nshare web.fed.example\nmin 3\n}\n}\n")
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
		if code, stdout, stderr := ctl(t, "check", tt.file); code != tt.code || stdout != tt.stdout || stderr != tt.stderr {
			t.Errorf("check %s: exit code %d, standard output:\n%s\nstandard error:\n%s\nexpected %d, and:\n%s\n%s", tt.file, code, stdout, stderr, tt.code, tt.stdout, tt.stderr)
		}
	}
}
