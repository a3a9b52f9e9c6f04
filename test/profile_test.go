package test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
)

var profileTo = flag.String("profile-to", "", "file that BenchmarkE2EProfile writes a CPU profile of CoreDNS to")

// profileSeconds is how long each of the two server blocks is profiled.
const profileSeconds = 30

// BenchmarkE2EProfile writes a CPU profile of CoreDNS: while an owner updates its
// services, dnsperf asks for every kind of answer, first from a server block with
// no other plugin, and then from one with errors and prometheus in front.
func BenchmarkE2EProfile(b *testing.B) {
	if *profileTo == "" {
		b.Skip("run make profile")
	}
	if _, err := exec.LookPath("dnsperf"); err != nil {
		b.Fatal("dnsperf is not installed; on Debian: apt-get install dnsperf")
	}
	kinds := profiles()
	all := make([]*federation.Service, *e2eServices)
	for i := range all {
		all[i] = kinds[i%len(kinds)].service(b, i)
	}
	r := &race{Registry: filled(b, all), p: &kinds[len(kinds)-1]}
	keys, dir, pprof := newPKI(b), b.TempDir(), freeAddress(b)
	block := fmt.Sprintf("federation {\nowner %s\n%s\nmax_services %d\n}",
		serveRegistry(b, keys.owner, "", r.Registry, 1).address, keys.tls(), len(all)+1)
	servers := []string{freeAddress(b), freeAddress(b)}
	var corefile bytes.Buffer
	for i, plugins := range []string{"pprof " + pprof, "errors\nprometheus " + freeAddress(b)} {
		_, port, _ := net.SplitHostPort(servers[i])
		fmt.Fprintf(&corefile, "%s:%s {\nbind 127.0.0.1\n%s\n%s\n}\n", benchOrigin, port, plugins, block)
	}
	name := filepath.Join(dir, "Corefile")
	if err := os.WriteFile(name, corefile.Bytes(), 0o600); err != nil {
		b.Fatal(err)
	}
	startProcess(b, exec.Command(coreDNSBinary, "-conf", name))
	for _, server := range servers {
		eventually(b, syncPatience, func() string {
			reply, err := query(server, benchFQDN(len(all)-1), dns.TypeA) // the owner sends the services in order
			if err != nil {
				return err.Error()
			}
			if len(reply.Answer) == 0 {
				return summary(reply)
			}
			return ""
		})
	}

	queries := filepath.Join(dir, "queries")
	w := create(b, queries)
	for _, i := range order(len(all)) {
		for _, query := range []struct{ labels, qtype string }{
			{"", "A"}, {"", "A"}, {"v1.", "A"}, {"", "AAAA"}, {"_http._tcp.", "SRV"}, {"", "TXT"}, {"", "MX"}, {"no-", "A"},
		} {
			fmt.Fprintf(w, "%s%s %s\n", query.labels, benchFQDN(i), query.qtype)
		}
	}
	if err := w.Flush(); err != nil {
		b.Fatal(err)
	}
	defer r.updating(b, e2eUpdates)()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		url := fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", pprof, len(servers)*profileSeconds)
		if err := download(b.Context(), url, *profileTo); err != nil {
			b.Error(err)
		}
	})
	for _, server := range servers {
		host, port, _ := net.SplitHostPort(server)
		output, err := exec.Command("dnsperf",
			"-s", host, "-p", port, "-d", queries, "-l", strconv.Itoa(profileSeconds), "-c", "8", "-q", "100").CombinedOutput()
		if err != nil {
			b.Fatalf("dnsperf: %v\n%s", err, output)
		}
		b.Logf("%s queries a second", dnsperfRate.FindSubmatch(output)[1])
	}
}

// download writes the content of the URL to a file.
func download(ctx context.Context, url, file string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", url, response.Status, content)
	}
	return os.WriteFile(file, content, 0o600)
}
