package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
)

// ctl runs a command in this process to its end, which patience bounds. It returns the
// exit code and what the command wrote.
func ctl(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out, errs bytes.Buffer
	code = run(ctx, args, &out, &errs)
	return code, out.String(), errs.String()
}

// expectCtl runs a command to its end, and compares what comes of it.
func expectCtl(t *testing.T, wantCode int, wantStdout, wantStderr string, args ...string) {
	t.Helper()
	code, stdout, stderr := ctl(t, args...)
	if diff := cmp.Diff([]string{wantStdout, wantStderr}, []string{stdout, stderr}); code != wantCode || diff != "" {
		t.Errorf("%q: exit code %d, expected %d; unexpected standard output and error (-want +got):\n%s", args, code, wantCode, diff)
	}
}

// running is a command in this process that runs until it is stopped.
type running struct {
	t     *testing.T
	lines *bufio.Scanner  // of its standard output
	errs  *testlog.Buffer // its standard error
	stop  func() int      // ends its context, waits for its end, and returns the exit code
}

// background starts a command, which runs until the test ends or stop is called.
func background(t *testing.T, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	r := &running{t: t, lines: bufio.NewScanner(reader), errs: &testlog.Buffer{}}
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, args, writer, r.errs)
		writer.Close()
	}()
	r.stop = sync.OnceValue(func() int {
		cancel()
		reader.Close() // further writes fail, so that the command ends
		return <-code
	})
	t.Cleanup(func() { r.stop() })
	return r
}

// line returns the next line of the standard output.
func (r *running) line() string {
	r.t.Helper()
	if !r.lines.Scan() {
		r.t.Fatalf("the command wrote no more lines; exit code %d, standard error:\n%s", r.stop(), r.errs)
	}
	return r.lines.Text()
}

// pkiIn returns a new directory with the certificates that pki makes.
func pkiIn(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if code, _, stderr := ctl(t, "pki", dir); code != 0 {
		t.Fatalf("pki failed: %s", stderr)
	}
	return dir
}

// files returns the flags for the certificates of a party in dir.
func files(dir, party string) []string {
	return []string{
		"--cert", filepath.Join(dir, party+".pem"), "--key", filepath.Join(dir, party+"-key.pem"), "--ca", filepath.Join(dir, "ca.pem"),
	}
}

// write replaces a file and returns its path.
func write(t *testing.T, path, text string) string {
	t.Helper()
	must.Do(t, os.WriteFile(path+".new", []byte(text), 0o600))
	must.Do(t, os.Rename(path+".new", path))
	return path
}

const catalogText = `services:
- name: shop
  fqdn: shop.fed.example
  endpoints:
  - {address: 192.0.2.10, port: 443, labels: [stable]}
  - {address: "2001:db8::10", port: 443}
  - {address: gw.example.net, port: 8443, labels: [canary]}
  instances:
  - {id: v1, protocol: HTTPS, endpointSelector: [stable]}
  - {id: "v 2", protocol: GRPC}
- name: api
  fqdn: api.fed.example
  endpoints: [{address: 192.0.2.20, port: 80}]
  instances: [{id: v1, protocol: HTTP}]
`

// staying returns the flags of an owner that goes and comes back: nobody takes its port
// while it is away.
func staying(t *testing.T) []string {
	t.Helper()
	address := must.Get(loopback.FreeAddress())(t)
	return []string{"--listen", address}
}

// serve starts an owner with a catalog file and the certificates in dir. It returns
// the command and the address of the owner.
func runServe(t *testing.T, dir, file string, flags ...string) (*running, string) {
	t.Helper()
	args := slices.Concat([]string{"serve", "--listen", "127.0.0.1:0", "--catalog", file}, files(dir, "owner"), admitting(flags))
	r := background(t, args...)
	line := r.line()
	what, address, ok := strings.Cut(line, " on ")
	if !ok || !strings.HasPrefix(what, "serving ") {
		t.Fatalf("serve begins with %q", line)
	}
	return r, address
}

// admitting returns flags of serve that say who may subscribe: everybody, unless they say so.
func admitting(flags []string) []string {
	if slices.Contains(flags, "--allow-id") || slices.Contains(flags, "--allow-file") {
		return flags
	}
	return append([]string{"--allow-any"}, flags...)
}

func TestUsage(t *testing.T) {
	t.Chdir(pkiIn(t))
	owner := files("", "owner")
	for _, tt := range []struct {
		args   []string
		code   int
		stdout string // how it begins
		stderr string
	}{
		{[]string{}, 0, "Publish services to federated platforms", ""},
		{[]string{"--help"}, 0, "Publish services to federated platforms", ""},
		{[]string{"serve", "--help"}, 0, "Publish services: of a catalog file", ""},
		{[]string{"--version"}, 0, "federationctl ", ""},
		{[]string{"publish"}, 2, "", "federationctl: unknown command \"publish\" for \"federationctl\"\nfederationctl: see 'federationctl --help'\n"},
		{[]string{"--nope"}, 2, "", "federationctl: unknown flag: --nope\nfederationctl: see 'federationctl --help'\n"},
		{[]string{"serve"}, 2, "", "federationctl: required flag(s) \"ca\", \"catalog\", \"cert\", \"key\" not set\nfederationctl: see 'federationctl serve --help'\n"},
		{slices.Concat([]string{"serve", "--catalog", "c.yaml", "more"}, owner), 2, "", "federationctl: serve takes no argument, not \"more\"; name the catalog with --catalog\nfederationctl: see 'federationctl serve --help'\n"},
		{slices.Concat([]string{"serve", "--catalog", "c.yaml", "--window", "0"}, owner), 2, "", "federationctl: --window: 0 is not in 1 to 1024\nfederationctl: see 'federationctl serve --help'\n"},
		{slices.Concat([]string{"serve", "--catalog", "c.yaml"}, owner), 2, "", "federationctl: nobody may subscribe yet: name consumers with --allow-id ID or --allow-file FILE, or add --allow-any\nfederationctl: see 'federationctl serve --help'\n"},
		{slices.Concat([]string{"serve", "--catalog", "c.yaml", "--allow-any", "--allow-id", "a.example"}, owner), 2, "", "federationctl: --allow-any lets every consumer in, so --allow-id and --allow-file cannot be used with it\nfederationctl: see 'federationctl serve --help'\n"},
		{slices.Concat([]string{"serve", "--catalog", "c.yaml", "--allow-id", "http://a"}, owner), 2, "", "federationctl: --allow-id: identity \"http://a\": only the scheme spiffe:// is an identity\nfederationctl: see 'federationctl serve --help'\n"},
		{slices.Concat([]string{"serve", "--catalog", "c.yaml", "--allow-addresses", "10"}, owner), 2, "", "federationctl: --allow-addresses: \"10\" is not a CIDR such as 127.0.0.0/8\nfederationctl: see 'federationctl serve --help'\n"},
		{slices.Concat([]string{"serve", "--allow-any", "--catalog", "c.yaml"}, owner), 1, "", "federationctl: catalog file: stat c.yaml: no such file or directory\n"},
		{slices.Concat([]string{"serve", "--allow-any", "--catalog", "ca.pem"}, owner), 1, "", "federationctl: catalog file ca.pem: line 1: the file must hold a mapping with the one key services; an empty catalog is 'services: []'; find all mistakes with 'federationctl lint ca.pem'\n"},
		{[]string{"lint"}, 2, "", "federationctl: name the catalog FILE to check, or several\nfederationctl: see 'federationctl lint --help'\n"},
		{[]string{"pki"}, 2, "", "federationctl: pki takes one DIR, not 0\nfederationctl: see 'federationctl pki --help'\n"},
		{[]string{"pki", "new", "--host", "a b"}, 2, "", "federationctl: --host: address is neither an IP address nor a host name: label has a character other than a-z, 0-9, '-' and '_'\nfederationctl: see 'federationctl pki --help'\n"},
		{[]string{"pki", "."}, 1, "", "federationctl: ca.pem is there already, and nothing was written; remove it, or choose another name or directory\n"},
		{[]string{"pki", "ca.pem/new"}, 1, "", "federationctl: mkdir ca.pem: not a directory; choose another directory\n"},
		{slices.Concat([]string{"watch"}, owner), 2, "", "federationctl: watch takes one ADDRESS, not 0\nfederationctl: see 'federationctl watch --help'\n"},
		{slices.Concat([]string{"watch", "owner/"}, owner), 2, "", "federationctl: ADDRESS \"owner/\" is none such as owner.example, owner.example:8008 or https://owner.example:8008\nfederationctl: see 'federationctl watch --help'\n"},
		{slices.Concat([]string{"watch", "http://owner:1"}, owner), 2, "", "federationctl: ADDRESS \"http://owner:1\" is none such as owner.example, owner.example:8008 or https://owner.example:8008\nfederationctl: see 'federationctl watch --help'\n"},
		{[]string{"watch", "owner:1"}, 2, "", "federationctl: required flag(s) \"ca\", \"cert\", \"key\" not set\nfederationctl: see 'federationctl watch --help'\n"},
		{[]string{"serve", "--spiffe", "unix:///a"}, 2, "", "federationctl: required flag(s) \"catalog\" not set\nfederationctl: see 'federationctl serve --help'\n"},
		{[]string{"serve", "--catalog", "c.yaml", "--spiffe", "unix:///a", "--cert", "owner.pem", "--ca", "ca.pem"}, 2, "", "federationctl: --cert, --ca cannot be used with --spiffe: the agent has it all\nfederationctl: see 'federationctl serve --help'\n"},
		{[]string{"serve", "--catalog", "c.yaml", "--cert", "owner.pem", "--key", "owner-key.pem", "--ca", "ca.pem", "--trust-domain", "a.example"}, 2, "", "federationctl: --trust-domain is for --spiffe: with files, --ca says who is accepted\nfederationctl: see 'federationctl serve --help'\n"},
		{[]string{"serve", "--catalog", "c.yaml", "--spiffe", ""}, 2, "", "federationctl: --spiffe: the socket is empty\nfederationctl: see 'federationctl serve --help'\n"},
		{[]string{"serve", "--catalog", "c.yaml", "--spiffe", "unix:///a", "--allow-id", "a.example"}, 2, "", "federationctl: --allow-id: a.example is no SPIFFE ID, and with --spiffe nothing else is an identity\nfederationctl: see 'federationctl serve --help'\n"},
		{[]string{"serve", "--allow-any", "--catalog", "c.yaml", "--spiffe", "unix://a/b"}, 1, "", "federationctl: SPIFFE socket \"unix://a/b\": the path is not absolute: write unix:///path; check --spiffe and --trust-domain\n"},
		{[]string{"watch", "owner:1", "--spiffe", "unix:///a"}, 2, "", "federationctl: --spiffe needs --owner-id: the host of ADDRESS is no SPIFFE ID\nfederationctl: see 'federationctl watch --help'\n"},
		{[]string{"watch", "owner:1", "--spiffe", "unix:///a", "--owner-id", "a.example"}, 2, "", "federationctl: --owner-id: a.example is no SPIFFE ID, and with --spiffe nothing else is an identity\nfederationctl: see 'federationctl watch --help'\n"},
		{[]string{"watch", "owner:1", "--spiffe", "unix:///a", "--owner-id", "spiffe://a/b", "--trust-domain", "A"}, 1, "", "federationctl: trust domain \"A\": trust domain characters are limited to lowercase letters, numbers, dots, dashes, and underscores; check --spiffe and --trust-domain\n"},
		{slices.Concat([]string{"watch", "owner:1", "-o", "xml"}, owner), 2, "", "federationctl: -o: \"xml\" is not one of table, json\nfederationctl: see 'federationctl watch --help'\n"},
		{slices.Concat([]string{"watch", "owner:1", "--api", "v2"}, owner), 2, "", "federationctl: --api: \"v2\" is not v1alpha2 or v1alpha1\nfederationctl: see 'federationctl watch --help'\n"},
		{slices.Concat([]string{"watch", "owner:1", "--owner-id", "*"}, owner), 2, "", "federationctl: --owner-id: identity \"*\": label has a character other than a-z, 0-9, '-' and '_'\nfederationctl: see 'federationctl watch --help'\n"},
	} {
		code, stdout, stderr := ctl(t, tt.args...)
		if code != tt.code || !strings.HasPrefix(stdout, tt.stdout) || tt.stdout == "" && stdout != "" {
			t.Errorf("%q: exit code %d, expected %d; standard output %q", tt.args, code, tt.code, stdout)
		}
		if diff := cmp.Diff(tt.stderr, stderr); diff != "" {
			t.Errorf("%q: unexpected standard error (-want +got):\n%s", tt.args, diff)
		}
	}
}

func TestPKI(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "run")
	code, stdout, stderr := ctl(t, "pki", dir, "--host", "Owner.example.", "--host", "192.0.2.1")
	if code != 0 || stderr != "" {
		t.Fatalf("exit code %d, standard error %q", code, stderr)
	}
	want := `wrote to DIR:
  ca.pem, ca-key.pem
  owner.pem, owner-key.pem        spiffe://federation.example/owner
  consumer.pem, consumer-key.pem  spiffe://federation.example/consumer
Next, publish a catalog:
  federationctl serve --catalog catalog.yaml --cert DIR/owner.pem --key DIR/owner-key.pem --ca DIR/ca.pem --allow-id spiffe://federation.example/consumer
and, in another terminal, look at it:
  federationctl watch localhost:8008 --cert DIR/consumer.pem --key DIR/consumer-key.pem --ca DIR/ca.pem
`
	if diff := cmp.Diff(want, strings.ReplaceAll(stdout, dir, "DIR")); diff != "" {
		t.Errorf("unexpected output (-want +got):\n%s", diff)
	}
	entries := must.Get(os.ReadDir(dir))(t)
	var names []string
	for _, e := range entries {
		info := must.Get(e.Info())(t)
		names = append(names, fmt.Sprintf("%s %v", e.Name(), info.Mode()))
	}
	wantNames := []string{
		"ca-key.pem -rw-------", "ca.pem -rw-r--r--", "consumer-key.pem -rw-------", "consumer.pem -rw-r--r--", "owner-key.pem -rw-------", "owner.pem -rw-r--r--",
	}
	if diff := cmp.Diff(wantNames, names); diff != "" {
		t.Errorf("unexpected files (-want +got):\n%s", diff)
	}
	for _, party := range []string{"owner", "consumer"} {
		if _, err := mtls.Load(filesOf(dir, party), nil); err != nil {
			t.Errorf("%s: %v", party, err)
		}
	}
	data := must.Get(os.ReadFile(filepath.Join(dir, "owner.pem")))(t)
	block, _ := pem.Decode(data)
	certificate := must.Get(x509.ParseCertificate(block.Bytes))(t)
	names = append([]string{certificate.URIs[0].String()}, certificate.DNSNames...)
	for _, ip := range certificate.IPAddresses {
		names = append(names, ip.String())
	}
	if diff := cmp.Diff([]string{pkiOwnerID, "localhost", "owner.example", "127.0.0.1", "::1", "192.0.2.1"}, names); diff != "" {
		t.Errorf("unexpected names of the owner (-want +got):\n%s", diff)
	}

	// One file that exists is enough.
	must.Do(t, os.Remove(filepath.Join(dir, "ca.pem")))
	must.Do(t, os.Remove(filepath.Join(dir, "ca-key.pem")))
	code, _, stderr = ctl(t, "pki", dir)
	if code != 1 || !strings.Contains(stderr, "owner-key.pem is there already, and nothing was written") {
		t.Errorf("exit code %d, standard error %q", code, stderr)
	}
	if _, err := os.Stat(filepath.Join(dir, "ca.pem")); err == nil {
		t.Error("ca.pem was written, although another file exists")
	}
}

func TestLint(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "good.yaml", strings.ReplaceAll(catalogText, "v 2", "v2"))
	write(t, "doubtful.yaml", strings.Split(catalogText, "- name: api")[0])
	write(t, "bad.yaml", "services:\n- name: \"a\\e\"\n  fqdn: a.example\n  tgas: []\n  endpoints: [{address: 127.0.0.1, port: 80}]\n  instances: [{id: i1, protocol: TCP}]\n- name: b\n")
	write(t, "bad.json", `{"services": {}}`)
	for _, tt := range []struct {
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{[]string{"good.yaml"}, 0, "good.yaml: 2 services, fit to be published\n", ""},
		{[]string{"doubtful.yaml", "good.yaml"}, 0, `doubtful.yaml:10: warning: service "shop": instances[1].id: "v 2" will have no DNS name of its own: label has a character other than a-z, 0-9, '-' and '_'
doubtful.yaml: 1 service, fit to be published
good.yaml: 2 services, fit to be published
`, ""},
		{[]string{"bad.yaml", "none.yaml", "bad.json"}, 1, `bad.yaml:4: error: service "a\x1b": there is no field "tgas"
bad.yaml:5: error: service "a\x1b": endpoints[0].address: loopback address 127.0.0.1, which allow_addresses of the consumer does not open
bad.yaml:7: error: service "b": fqdn: required
bad.yaml:7: error: service "b": endpoints: at least one is required
bad.yaml:7: error: service "b": instances: at least one is required
none.yaml: error: stat none.yaml: no such file or directory
bad.json:1: error: services must be a list; an empty one is []
`, "federationctl: problems found: 7; fix them and check again\n"},
		{[]string{"--allow-addresses", "127.0.0.0/8", "bad.yaml"}, 1, `bad.yaml:4: error: service "a\x1b": there is no field "tgas"
bad.yaml:7: error: service "b": fqdn: required
bad.yaml:7: error: service "b": endpoints: at least one is required
bad.yaml:7: error: service "b": instances: at least one is required
`, "federationctl: problems found: 4; fix them and check again\n"},
	} {
		expectCtl(t, tt.code, tt.stdout, tt.stderr, append([]string{"lint"}, tt.args...)...)
	}
}

const wantTable = `upsert  api                   api.fed.example                   v1/HTTP                       192.0.2.20:80
upsert  shop                  shop.fed.example                  v1/HTTPS,"v 2"/GRPC           192.0.2.10:443,[2001:db8::10]:443,gw.example.net:8443
end     (the catalog is complete)
`

const wantJSON = `{"op":"upsert","name":"api","service":{"name":"api","fqdn":"api.fed.example","endpoints":[{"address":"192.0.2.20","port":80}],"instances":[{"id":"v1","protocol":"HTTP"}]}}
{"op":"upsert","name":"shop","service":{"name":"shop","fqdn":"shop.fed.example","endpoints":[{"address":"192.0.2.10","port":443,"labels":["stable"]},{"address":"2001:db8::10","port":443},{"address":"gw.example.net","port":8443,"labels":["canary"]}],"instances":[{"id":"v1","protocol":"HTTPS","endpointSelector":["stable"]},{"id":"v 2","protocol":"GRPC"}]}}
{"op":"end"}
`

func TestServeAndWatchOnce(t *testing.T) {
	dir := pkiIn(t)
	owner, address := runServe(t, dir, write(t, filepath.Join(dir, "catalog.yaml"), catalogText), "--window", "8", "--allow-id", pkiConsumerID)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		target string
		flags  []string
		want   string
	}{
		{address, nil, wantTable},
		{"https://" + address, []string{"-o", "table"}, wantTable},
		{"https://localhost:" + port + "/", []string{"-o", "json", "--api", "v1alpha2"}, wantJSON},
		{address, []string{"-o", "json", "--owner-id", "owner.example", "--owner-id", pkiOwnerID}, wantJSON},
	} {
		expectCtl(t, 0, tt.want, "", slices.Concat([]string{"watch", "--once", tt.target}, files(dir, "consumer"), tt.flags)...)
	}
	if code := owner.stop(); code != 0 {
		t.Errorf("serve ended with exit code %d, expected 0; standard error:\n%s", code, owner.errs)
	}
}

func TestWatchFollows(t *testing.T) {
	t.Parallel()
	dir := pkiIn(t)
	file := write(t, filepath.Join(dir, "catalog.yaml"), "services: []\n")
	owner, address := runServe(t, dir, file, staying(t)...)
	watch := background(t, slices.Concat([]string{"watch", "-o", "json", address}, files(dir, "consumer"))...)
	var got []string
	for _, text := range []string{"", catalogText, "services: []\n"} {
		if text != "" {
			write(t, file, text)
			got = append(got, watch.line())
		}
		got = append(got, watch.line())
	}
	end := `{"op":"end"}`
	lines := strings.Split(wantJSON, "\n")
	if diff := cmp.Diff([]string{end, lines[0], lines[1], `{"op":"delete","name":"api"}`, `{"op":"delete","name":"shop"}`}, got); diff != "" {
		t.Errorf("unexpected output (-want +got):\n%s", diff)
	}

	// The owner goes and comes back: the watch goes on.
	owner.stop()
	write(t, file, catalogText)
	again := background(t, slices.Concat([]string{"serve", "--listen", address, "--catalog", file, "--allow-any"}, files(dir, "owner"))...)
	again.line()
	if line := watch.line(); line != lines[0] {
		t.Errorf("after the owner is back the line is %q, expected %q", line, lines[0])
	}
	if code := watch.stop(); code != 0 {
		t.Errorf("watch ended with exit code %d, expected 0", code)
	}
}

func TestWatchFails(t *testing.T) {
	dir, foreign := pkiIn(t), pkiIn(t)
	file := write(t, filepath.Join(dir, "catalog.yaml"), catalogText)
	_, address := runServe(t, dir, file)
	_, closed := runServe(t, dir, file, "--allow-id", pkiOwnerID)
	listener := must.Get(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	plain := listener.Addr().String()
	var answers sync.WaitGroup
	defer answers.Wait()
	defer listener.Close()
	answers.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "220 mail.example.org ESMTP\r\n")
			conn.Close()
		}
	})
	nobody := must.Get(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	nobody.Close()
	consumer := files(dir, "consumer")
	stranger := slices.Concat(files(foreign, "consumer")[:4], consumer[4:])
	parties := partiesIn(t)
	_, other := runServe(t, parties, file)
	for _, tt := range []struct {
		name string
		args []string
		want []string // in the standard error
	}{
		{"unreachable", append([]string{"--once", nobody.Addr().String()}, consumer...), []string{"connection refused; start the owner; if it runs, compare where it listens"}},
		{"no TLS", append([]string{plain}, consumer...), []string{"correct the address, unless something else answers for the owner just now"}},
		{"not allowed", append([]string{closed}, consumer...), []string{"Unauthenticated: ", "have the owner admit the certificate of this consumer"}},
		{"other owner", append([]string{address, "--owner-id", "spiffe://other.example/owner"}, consumer...), []string{"correct owner_id, or the address"}},
		{"other authority", append([]string{address}, files(foreign, "consumer")...), []string{"; add the CA of the owner to "}},
		{"own authority", append([]string{address}, stranger...), []string{"have the owner add the CA that has signed "}},
		{"no client certificate", append([]string{strings.Replace(other, "127.0.0.1", "localhost", 1)}, files(parties, "server")...), []string{"see in the status of the owner, at turned away"}},
	} {
		code, stdout, stderr := ctl(t, append([]string{"watch"}, tt.args...)...)
		if code != 1 || stdout != "" {
			t.Errorf("%s: exit code %d, expected 1; standard output %q", tt.name, code, stdout)
		}
		for _, want := range tt.want {
			if !strings.HasPrefix(stderr, "federationctl: owner ") || !strings.Contains(stderr, want) {
				t.Errorf("%s: standard error is %q, expected it to contain %q", tt.name, stderr, want)
			}
		}
	}
}

func TestWatchNamesWhatItRefuses(t *testing.T) {
	dir := pkiIn(t)
	file := write(t, filepath.Join(dir, "catalog.yaml"), strings.Replace(catalogText, "192.0.2.20", "127.0.0.1", 1))
	_, address := runServe(t, dir, file, "--allow-addresses", "127.0.0.0/8")
	args := append([]string{"watch", "--once", address}, files(dir, "consumer")...)

	code, stdout, stderr := ctl(t, args...)
	want := `federationctl: refused: service "api": endpoints[0].address: loopback address 127.0.0.1, which allow_addresses of the consumer does not open` + "\n"
	if code != 0 || stderr != want || strings.Contains(stdout, "api") {
		t.Errorf("exit code %d, standard error %q, expected %q; standard output:\n%s", code, stderr, want, stdout)
	}
	code, stdout, stderr = ctl(t, append(args, "--allow-addresses", "127.0.0.1/32")...)
	if code != 0 || stderr != "" || !strings.Contains(stdout, "127.0.0.1:80") {
		t.Errorf("exit code %d, standard error %q; standard output:\n%s", code, stderr, stdout)
	}
}

// TestServeProcess ends the real binary with signals while a consumer is connected.
func TestServeProcess(t *testing.T) {
	binary := realBinary(t)
	dir := pkiIn(t)
	file := write(t, filepath.Join(dir, "catalog.yaml"), catalogText)
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		command := exec.CommandContext(t.Context(), binary, slices.Concat([]string{"serve", "--listen", "127.0.0.1:0", "--catalog", file, "--allow-any"}, files(dir, "owner"))...)
		var stderr bytes.Buffer
		command.Stderr = &stderr
		output := startWithOutput(t, command)
		if !output.Scan() {
			t.Fatalf("%v: no line on standard output\n%s", signal, &stderr)
		}
		address := strings.TrimPrefix(output.Text(), "serving 2 services on ")
		watch := background(t, append([]string{"watch", address}, files(dir, "consumer")...)...)
		for watch.line() != "end     (the catalog is complete)" { //nolint:revive // line does the work
		}
		must.Do(t, command.Process.Signal(signal))
		if err := command.Wait(); err != nil {
			t.Errorf("%v: serve ended with %v, expected exit code 0\n%s", signal, err, &stderr)
		}
		watch.stop()
	}
}
