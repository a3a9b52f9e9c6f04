package test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestStatusReload has one CoreDNS through reloads that keep, move and end its status, and
// through some that fail.
func TestStatusReload(t *testing.T) {
	p := newPKI(t)
	o := startOwner(t, p.owner, "", simpleService(t, "web", "web.fed.example", "192.0.2.1"))
	a, b, taken := freeAddress(t), freeAddress(t), listen(t, freeAddress(t))
	t.Cleanup(func() { taken.Close() })
	block := func(properties string) string { return federationBlock(p, "fed.example", "", o.address+" "+properties) }
	d := startCoreDNS(t, block("status "+a))
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
	serves := func(address string) {
		t.Helper()
		eventually(t, patience, func() string { // an answer is there before the catalog is complete
			s := statusOf[status.Status](t, address, "/v1/status")
			if !s.Ready || len(s.Owners) != 1 || s.Owners[0].State != "synced" || len(s.Zones) != 1 || s.Zones[0].Name != "fed.example." ||
				s.Zones[0].Serial == 0 || len(s.Zones[0].Owners) != 1 {
				return fmt.Sprintf("the status is %+v", s)
			}
			return ""
		})
	}
	ended := func(address string) {
		t.Helper()
		if c, err := net.Dial("tcp", address); err == nil {
			c.Close()
			t.Errorf("%s is still listened on", address)
		}
	}
	serves(a)

	// A connection that waits for its answer outlives a reload with the same status. The
	// server waits five seconds for a request, which a reload may take on a busy machine.
	d.write(t, block("ttl 31\n\t\tstatus "+a))
	eventually(t, patience, func() string {
		waiting, err := net.Dial("tcp", a)
		must.Do(t, err)
		defer waiting.Close()
		begun := time.Now()
		d.reload(t)
		_, err = fmt.Fprintf(waiting, "GET /v1/status HTTP/1.0\r\nHost: localhost\r\n\r\n")
		line := make([]byte, len("HTTP/1.0 200"))
		if err == nil {
			_, err = io.ReadFull(waiting, line)
		}
		if err == nil && string(line) == "HTTP/1.0 200" {
			return ""
		}
		if took := time.Since(begun); took < 4*time.Second {
			t.Fatalf("after a reload: %q %v", line, err)
		}
		return "no reload was short enough"
	})
	serves(a)
	if n := d.log.Count("status is served"); n != 1 {
		t.Errorf("the status was opened %d times", n)
	}

	// What fails changes nothing.
	for _, failing := range []struct{ corefile, says string }{
		{block("status " + taken.Addr().String()), "address already in use"},
		{block("status "+b) + "bogus.example:PORT {\n\tfile /nowhere/else {\n\t\tbogus\n\t}\n}\n", "bogus"},
		{
			block("status "+b) + strings.Replace(block("status "+a+"\n\t\ttls_servername localhost"), "fed.example", "more.example", 1),
			"a process has one status",
		},
	} {
		before := d.log.Count(failing.says)
		d.write(t, failing.corefile)
		d.reload(t)
		if d.log.Count(failing.says) == before {
			t.Errorf("the log does not say %q", failing.says)
		}
		serves(a)
		ended(b)
	}

	// Another address, the same address with mutual TLS, and none.
	d.write(t, block("status "+b))
	d.reload(t)
	serves(b)
	ended(a)
	server := p.issue(t, "status", mtls.Leaf{Name: "status", DNSNames: []string{"localhost"}})
	d.write(t, block(fmt.Sprintf("status %s %s %s %s", b, server.Cert, server.Key, server.CA)))
	d.reload(t)
	if code, err := fetchTLS(b, p.consumer); err != nil || code != http.StatusOK {
		t.Errorf("with a certificate: %d %v", code, err)
	}
	if code, err := fetchTLS(b, mtls.Files{CA: p.consumer.CA}); err == nil {
		t.Errorf("without a certificate: %d", code)
	}
	if code, _, err := get("http://" + b + "/v1/status"); err == nil && code == http.StatusOK {
		t.Error("the status is served in plain text to whoever asks")
	}
	d.write(t, block(""))
	d.reload(t)
	ended(b)
	if got := summary(mustQuery(t, d.address, "web.fed.example", dns.TypeA)); got != "NOERROR 192.0.2.1" {
		t.Errorf("answer is %s", got)
	}
}

// TestStatusPortTaken has a CoreDNS that cannot start, as its status has no port.
func TestStatusPortTaken(t *testing.T) {
	p := newPKI(t)
	taken := listen(t, freeAddress(t))
	t.Cleanup(func() { taken.Close() })
	d := &coreDNS{address: freeAddress(t), corefile: t.TempDir() + "/Corefile"}
	d.write(t, federationBlock(p, "fed.example", "", freeAddress(t)+" status "+taken.Addr().String()))
	out, err := coreDNSCommand(d.corefile).CombinedOutput()
	want := []string{"plugin/federation", "Corefile:", "Error: status:", taken.Addr().String(), "address already in use"}
	if err == nil || !containsAll(string(out), want) {
		t.Errorf("CoreDNS ended with %v and said\n%s\nwant an error with %q", err, out, want)
	}
}

// fetchTLS asks for the status at localhost with the certificate of files, if they have one.
func fetchTLS(address string, files mtls.Files) (int, error) {
	roots := x509.NewCertPool()
	pem, err := os.ReadFile(files.CA)
	if err != nil {
		return 0, err
	}
	roots.AppendCertsFromPEM(pem)
	config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: "localhost"}
	if files.Cert != "" {
		certificate, err := tls.LoadX509KeyPair(files.Cert, files.Key)
		if err != nil {
			return 0, err
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	client := http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "https://"+address+"/v1/status", nil)
	if err != nil {
		return 0, err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	return response.StatusCode, nil
}

// checked runs 'federationctl status --check' on a process, and returns what it prints and its
// exit code.
func checked(t testing.TB, reported string) (text string, code int) {
	t.Helper()
	out, err := exec.Command(must.Get(federationctl())(t), "status", "--check", "--at", reported).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(out), exit.ExitCode()
	}
	must.Do(t, err)
	return string(out), 0
}

// TestStatusNothingAccepted has a zone with a typo, for which every service of the owner is
// refused: that is to be acted on, and the reason stands in all that shows a status.
func TestStatusNothingAccepted(t *testing.T) {
	p := newPKI(t)
	o := startOwner(t, p.owner, "", simpleService(t, "web", "web.fed.example", "192.0.2.1"), simpleService(t, "api", "api.fed.example", "192.0.2.2"))
	reported := freeAddress(t)
	startCoreDNS(t, federationBlock(p, "fde.example", "", o.address+" status "+reported))
	const reason, remedy = ".fed.example.\" is outside the zones given to this owner (fde.example.)", "add its zone to the federation block"
	eventually(t, patience, func() string {
		if text, code := checked(t, reported); code != 2 || !strings.HasPrefix(text, "FEDERATION CRITICAL - Act on 1 of 1 owner: 1 refused.") || !strings.Contains(text, reason) {
			return fmt.Sprintf("the check ends with %d:\n%s", code, text)
		}
		return ""
	})
	table := string(must.Get(exec.Command(must.Get(federationctl())(t), "status", "--at", reported).Output())(t))
	_, page, err := get("http://" + reported + "/")
	must.Do(t, err)
	s := statusOf[status.Status](t, reported, "/v1/status")
	if unwrapped := strings.Join(strings.Fields(table), " "); !containsAll(unwrapped, []string{"act " + o.address + " synced", "(2). The newest: service", reason, remedy}) {
		t.Errorf("the table is\n%s", table)
	}
	if !containsAll(html.UnescapeString(page), []string{reason, remedy}) {
		t.Errorf("the page does not say why")
	}
	if u := s.Owners[0]; u.NotAdmitted != 2 || len(u.Refusals) != 2 || !strings.HasSuffix(u.Refusals[0].Rule, reason) {
		t.Errorf("the status is %+v", u)
	}
}

// TestStatusUnsaved has a file of persist whose folder has become something else: the catalog
// cannot be written, which is said with the reason and what to do, until it can.
func TestStatusUnsaved(t *testing.T) {
	p := newPKIFor(t, 30*24*time.Hour)
	o := startOwner(t, p.owner, "", simpleService(t, "web", "web.fed.example", "192.0.2.1"))
	folder, reported := filepath.Join(t.TempDir(), "state"), freeAddress(t)
	must.Do(t, os.Mkdir(folder, 0o700))
	d := startCoreDNS(t, federationBlock(p, "fed.example", "", o.address+" persist "+folder+"/catalog\n\t\tstatus "+reported))
	says := func(code int, beginning string) {
		t.Helper()
		eventually(t, patience, func() string {
			if text, got := checked(t, reported); got != code || !strings.HasPrefix(text, beginning) {
				return fmt.Sprintf("the check ends with %d:\n%s", got, text)
			}
			return ""
		})
	}
	saved := func() string { _, err := os.Stat(folder + "/catalog"); return fmt.Sprint(err) }
	says(0, "FEDERATION OK - 1 owner synced")
	eventually(t, patience, func() string { return strings.TrimPrefix(saved(), "<nil>") })
	must.Do(t, errors.Join(os.Rename(folder, folder+".away"), os.WriteFile(folder, nil, 0o600)))
	mustUpsert(t, o, simpleService(t, "web", "web.fed.example", "192.0.2.2"))
	says(1, "FEDERATION WARNING - Look at 1 of 1 owner: 1 unsaved.")
	d.awaitLog(t, 1, "[ERROR]", "catalog cannot be saved", "not a directory")
	text, _ := checked(t, reported)
	table := string(must.Get(exec.Command(must.Get(federationctl())(t), "status", "--at", reported).Output())(t))
	_, page, err := get("http://" + reported + "/")
	must.Do(t, err)
	const remedy = "let this process write to the folder"
	for what, shown := range map[string]string{
		"check": text + remedy, "table": strings.Join(strings.Fields(table), " "), "page": html.UnescapeString(page),
		"JSON": statusOf[status.Status](t, reported, "/v1/status").Owners[0].Unsaved + remedy,
	} {
		if !containsAll(shown, []string{folder + "/catalog: ", "not a directory", remedy}) {
			t.Errorf("the %s does not say why:\n%s", what, shown)
		}
	}
	must.Do(t, errors.Join(os.Remove(folder), os.Rename(folder+".away", folder)))
	mustUpsert(t, o, simpleService(t, "web", "web.fed.example", "192.0.2.3")) // or it takes a minute
	says(0, "FEDERATION OK - 1 owner synced")
}
