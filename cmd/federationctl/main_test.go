package main

import (
	"bufio"
	"bytes"
	"context"
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
	code = runCommandLine(ctx, args, &out, &errs)
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
		code <- runCommandLine(ctx, args, writer, r.errs)
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

// runServe starts an owner with a catalog file and the certificates in dir. It returns
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
		{[]string{"serve", "--help"}, 0, "Publish the services of a catalog file", ""},
		{[]string{"--version"}, 0, "federationctl ", ""},
		{[]string{"publish"}, 2, "", "federationctl: unknown command \"publish\" for \"federationctl\"\nfederationctl: see 'federationctl --help'\n"},
		{[]string{"--nope"}, 2, "", "federationctl: unknown flag: --nope\nfederationctl: see 'federationctl --help'\n"},
		{[]string{"serve"}, 2, "", "federationctl: at least one of the flags in the group [config catalog] is required\nfederationctl: see 'federationctl serve --help'\n"},
		{slices.Concat([]string{"serve", "--catalog", "c.yaml", "more"}, owner), 2, "", "federationctl: serve takes no argument, not \"more\"; name the catalog with --catalog\nfederationctl: see 'federationctl serve --help'\n"},
		{slices.Concat([]string{"serve", "--catalog", "c.yaml", "--window", "0"}, owner), 2, "", "federationctl: --window: 0 is not in 1 to 1024\nfederationctl: see 'federationctl serve --help'\n"},
		{slices.Concat([]string{"serve", "--catalog", "c.yaml", "--allow-any", "--allow-id", "a.example"}, owner), 2, "", "federationctl: if any flags in the group [allow-any allow-id] are set none of the others can be; [allow-any allow-id] were all set\nfederationctl: see 'federationctl serve --help'\n"},
		{slices.Concat([]string{"serve", "--catalog", "c.yaml", "--allow-id", "http://a"}, owner), 2, "", "federationctl: --allow-id: identity \"http://a\": only the scheme spiffe:// is an identity\nfederationctl: see 'federationctl serve --help'\n"},
		{slices.Concat([]string{"serve", "--catalog", "c.yaml", "--allow-addresses", "10"}, owner), 2, "", "federationctl: --allow-addresses: \"10\" is not a CIDR such as 127.0.0.0/8 or fe80::/10\nfederationctl: see 'federationctl serve --help'\n"},
		{slices.Concat([]string{"serve", "--allow-any", "--catalog", "c.yaml"}, owner), 1, "", "federationctl: catalog file: stat c.yaml: no such file or directory\n"},
		{[]string{"check"}, 2, "", "federationctl: name the FILE to check, or several\nfederationctl: see 'federationctl check --help'\n"},
		{[]string{"pki"}, 2, "", "federationctl: pki takes one DIR, not 0 arguments\nfederationctl: see 'federationctl pki --help'\n"},
		{[]string{"pki", "new", "--host", "a b"}, 2, "", "federationctl: --host: address is neither an IP address nor a host name: label has a character other than a-z, 0-9, '-' and '_'\nfederationctl: see 'federationctl pki --help'\n"},
		{[]string{"pki", "ca.pem/new"}, 1, "", "federationctl: mkdir ca.pem: not a directory; choose another directory\n"},
		{slices.Concat([]string{"watch"}, owner), 2, "", "federationctl: watch takes one ADDRESS, not 0 arguments\nfederationctl: see 'federationctl watch --help'\n"},
		{[]string{"watch", "owner:1"}, 2, "", "federationctl: at least one of the flags in the group [cert spiffe] is required\nfederationctl: see 'federationctl watch --help'\n"},
		{[]string{"serve", "--spiffe", "unix:///a"}, 2, "", "federationctl: at least one of the flags in the group [config catalog] is required\nfederationctl: see 'federationctl serve --help'\n"},
		{[]string{"serve", "--catalog", "c.yaml", "--cert", "owner.pem", "--ca", "ca.pem"}, 2, "", "federationctl: if any flags in the group [cert key ca] are set they must all be set; missing [key]\nfederationctl: see 'federationctl serve --help'\n"},
		{[]string{"serve", "--catalog", "c.yaml", "--cert", "owner.pem", "--key", "owner-key.pem", "--ca", "ca.pem", "--trust-domain", "a.example"}, 2, "", "federationctl: if any flags in the group [trust-domain ca] are set none of the others can be; [ca trust-domain] were all set\nfederationctl: see 'federationctl serve --help'\n"},
		{slices.Concat([]string{"serve", "--catalog", "c.yaml", "--spiffe", "unix:///a"}, owner), 2, "", "federationctl: if any flags in the group [spiffe ca] are set none of the others can be; [ca spiffe] were all set\nfederationctl: see 'federationctl serve --help'\n"},
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

func TestCheckOfCatalogs(t *testing.T) {
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
bad.yaml:5: error: service "a\x1b": endpoints[0].address: 127.0.0.1: consumers refuse loopback addresses unless their allow_addresses has them
bad.yaml:7: error: service "b": fqdn: required
bad.yaml:7: error: service "b": endpoints: at least one is required
none.yaml: error: stat none.yaml: no such file or directory
bad.json:1: error: services must be a list; an empty one is []
`, "federationctl: problems found: 6; fix them and check again\n"},
		{[]string{"--allow-addresses", "127.0.0.0/8", "bad.yaml"}, 1, `bad.yaml:4: error: service "a\x1b": there is no field "tgas"
bad.yaml:7: error: service "b": fqdn: required
bad.yaml:7: error: service "b": endpoints: at least one is required
`, "federationctl: problems found: 3; fix them and check again\n"},
	} {
		expectCtl(t, tt.code, tt.stdout, tt.stderr, append([]string{"check"}, tt.args...)...)
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

func TestWatchFails(t *testing.T) {
	dir := pkiIn(t)
	_, closed := runServe(t, dir, write(t, filepath.Join(dir, "catalog.yaml"), catalogText), "--allow-id", pkiOwnerID)
	for address, want := range map[string]string{
		"127.0.0.1:1": "connection refused; start the owner; if it runs, compare the address that it listens on",
		closed:        "have the owner allow an identity of this consumer's certificate",
	} {
		code, stdout, stderr := ctl(t, append([]string{"watch", "--once", address}, files(dir, "consumer")...)...)
		if code != exitFailed || stdout != "" || !strings.HasPrefix(stderr, "federationctl: owner ") || !strings.Contains(stderr, want) {
			t.Errorf("exit code %d, standard output %q, standard error %q, expected %q", code, stdout, stderr, want)
		}
	}
}

func TestWatchNamesWhatItRefuses(t *testing.T) {
	dir := pkiIn(t)
	file := write(t, filepath.Join(dir, "catalog.yaml"), strings.Replace(catalogText, "192.0.2.20", "127.0.0.1", 1))
	_, address := runServe(t, dir, file, "--allow-addresses", "127.0.0.0/8")
	args := append([]string{"watch", "--once", address}, files(dir, "consumer")...)

	code, stdout, stderr := ctl(t, args...)
	want := `federationctl: refused: service "api": endpoints[0].address: 127.0.0.1: consumers refuse loopback addresses unless their allow_addresses has them` + "\n"
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
