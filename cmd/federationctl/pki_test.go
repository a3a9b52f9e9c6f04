package main

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestPKIIssue makes an authority and certificates of it, and looks at what they hold.
func TestPKIIssue(t *testing.T) {
	t.Chdir(t.TempDir())
	code, stdout, stderr := ctl(t, "pki", "init", "ca")
	if want := "wrote ca/ca.pem for peers, and ca/ca-key.pem, which stays here\nnext: federationctl pki issue ca NAME --id spiffe://...\n"; code != 0 || stdout != want || stderr != "" {
		t.Fatalf("init: exit code %d, standard output %q, standard error %q; expected %q", code, stdout, stderr, want)
	}
	for name, tc := range map[string]struct {
		flags []string
		want  []string // the names
		usage []x509.ExtKeyUsage
	}{
		"dns": {[]string{"--id", "spiffe://dns.example/coredns", "--client"}, []string{"spiffe://dns.example/coredns"}, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
		"owner.1": {
			[]string{"--id", "spiffe://owner.example/hamlet", "--dns", "Owner.example.", "--dns", "192.0.2.1", "--server"},
			[]string{"spiffe://owner.example/hamlet", "owner.example", "192.0.2.1"},
			[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		},
		"relay": {
			[]string{"--dns", "relay.example"},
			[]string{"relay.example"},
			[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		},
	} {
		code, stdout, stderr := ctl(t, append([]string{"pki", "issue", "ca", name}, tc.flags...)...)
		if want := "wrote ca/" + name + ".pem and ca/" + name + "-key.pem, signed by ca/ca.pem\n"; code != 0 || stdout != want || stderr != "" {
			t.Errorf("%s: exit code %d, standard output %q, standard error %q; expected %q", name, code, stdout, stderr, want)
			continue
		}
		certificate, names := issued(t, "ca", name)
		if diff := cmp.Diff(tc.want, names); diff != "" {
			t.Errorf("%s: names (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(tc.usage, certificate.ExtKeyUsage); diff != "" {
			t.Errorf("%s: usage (-want +got):\n%s", name, diff)
		}
	}

	// What pki DIR makes can be added to as well.
	for _, args := range [][]string{{"pki", "new/run", "--host", "Owner.example.", "--host", "192.0.2.1"}, {"pki", "issue", "new/run", "more", "--dns", "more.example"}} {
		if code, _, stderr := ctl(t, args...); code != 0 {
			t.Errorf("%v: exit code %d, %s", args, code, stderr)
		}
	}
	_, names := issued(t, "new/run", "owner")
	if diff := cmp.Diff([]string{pkiOwnerID, "localhost", "owner.example", "127.0.0.1", "::1", "192.0.2.1"}, names); diff != "" {
		t.Errorf("unexpected names of the owner (-want +got):\n%s", diff)
	}
}

// issued returns a certificate that was issued, which can be used, and its names.
func issued(t *testing.T, dir, name string) (certificate *x509.Certificate, names []string) {
	t.Helper()
	files := filesOf(dir, name)
	if _, err := mtls.Load(files, nil); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	if mode := must.Get(os.Stat(files.Key))(t).Mode(); mode != 0o600 {
		t.Errorf("%s: the key has mode %v", name, mode)
	}
	block, _ := pem.Decode(must.Get(os.ReadFile(files.Cert))(t))
	certificate = must.Get(x509.ParseCertificate(block.Bytes))(t)
	for _, uri := range certificate.URIs {
		names = append(names, uri.String())
	}
	names = append(names, certificate.DNSNames...)
	for _, ip := range certificate.IPAddresses {
		names = append(names, ip.String())
	}
	return certificate, names
}

// TestPKIOverwritesNothing runs each command where one of its files exists.
func TestPKIOverwritesNothing(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, args := range [][]string{{"pki", "init", "ca"}, {"pki", "issue", "ca", "a", "--dns", "a.example"}} {
		if code, _, stderr := ctl(t, args...); code != 0 {
			t.Fatalf("%v: exit code %d, %s", args, code, stderr)
		}
	}
	contents := func() map[string]string {
		all := make(map[string]string)
		for _, entry := range must.Get(os.ReadDir("ca"))(t) {
			all[entry.Name()] = string(must.Get(os.ReadFile(filepath.Join("ca", entry.Name())))(t))
		}
		return all
	}
	write(t, "ca/owner.pem", "mine")
	before := contents()
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"pki", "init", "ca"}, exitFailed, "ca/ca.pem is there already, and nothing was written"},
		{[]string{"pki", "ca"}, exitFailed, "is there already, and nothing was written"},
		{[]string{"pki", "issue", "ca", "a", "--dns", "b.example"}, exitFailed, "ca/a-key.pem is there already, and nothing was written"},
		{[]string{"pki", "issue", "ca", "owner", "--dns", "b.example"}, exitFailed, "ca/owner.pem is there already, and nothing was written"},
		{[]string{"pki", "issue", "ca", "ca", "--dns", "b.example"}, exitFailed, "ca/ca-key.pem is there already, and nothing was written"},
		{[]string{"pki", "issue", "ca", "../b", "--dns", "b.example"}, exitUsage, `NAME "../b" is not a name of files`},
		{[]string{"pki", "issue", "ca", "b"}, exitUsage, "the certificate has no identity; add --id spiffe://... or --dns NAME"},
		{[]string{"pki", "issue", "ca", "b", "--id", "b.example"}, exitUsage, "--id: b.example is no SPIFFE ID, such as spiffe://dns.example/coredns; use --dns for a DNS name"},
		{[]string{"pki", "issue", "none", "b", "--dns", "b.example"}, exitFailed, "there is no authority in none, ca.pem and ca-key.pem; make one with 'federationctl pki init'"},
	} {
		code, stdout, stderr := ctl(t, tc.args...)
		if code != tc.code || stdout != "" || !strings.Contains(stderr, tc.want) {
			t.Errorf("%v: exit code %d, standard output %q, standard error %q; expected %d and %q", tc.args, code, stdout, stderr, tc.code, tc.want)
		}
	}
	if diff := cmp.Diff(before, contents()); diff != "" {
		t.Errorf("files have changed:\n%s", diff)
	}
}
