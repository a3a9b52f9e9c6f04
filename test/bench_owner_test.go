package test

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

const (
	federationctlBinary = "../bin/federationctl"
	ownerPatience       = 4 * time.Minute // for a start or an edit
)

var ownerServices = flag.Int("owner-services", 100_000, "size of the catalog file of BenchmarkE2EOwner")

// BenchmarkE2EOwner starts federationctl serve with a catalog file, and then edits one
// service in the middle of it. It measures how long each takes, the memory of the
// process at its peak and when it is over.
func BenchmarkE2EOwner(b *testing.B) {
	if _, err := os.Stat(federationctlBinary); err != nil {
		b.Skipf("%v: run make build", err)
	}
	keys := newPKI(b)
	path := filepath.Join(b.TempDir(), "catalog.yaml")
	writeOwnerCatalog(b, path, "192.0.2.1")
	info := must.Get(os.Stat(path))(b)
	b.Logf("%d services in %d bytes", *ownerServices, info.Size())
	for b.Loop() {
		begin := time.Now()
		serve := startProcess(b, exec.Command(federationctlBinary, "serve", "--listen", "127.0.0.1:0", "--catalog", path,
			"--cert", keys.owner.Cert, "--key", keys.owner.Key, "--ca", keys.owner.CA, "--allow-any"))
		applied := func(n int) time.Duration {
			eventually(b, ownerPatience, func() string { return serve.unlogged(n, "catalog applied") })
			return time.Since(begin)
		}
		report := func(what string, took time.Duration) {
			b.ReportMetric(took.Seconds(), what+"-s")
			b.ReportMetric(memoryOf(b, serve, "VmHWM"), what+"-peak-MB")
			b.ReportMetric(memoryOf(b, serve, "VmRSS"), what+"-MB")
		}
		report("start", applied(1))
		writeOwnerCatalog(b, path+".new", "192.0.2.2")
		begin = time.Now()
		must.Do(b, os.Rename(path+".new", path))
		report("edit", applied(2))
		serve.end(b, syscall.SIGTERM)
	}
	b.ReportMetric(0, "ns/op") // start and edit say it
}

// writeOwnerCatalog writes a catalog in YAML. Middle is the address of the service in
// the middle.
func writeOwnerCatalog(b *testing.B, path, middle string) {
	b.Helper()
	file := must.Get(os.Create(path))(b)
	w := bufio.NewWriter(file)
	fmt.Fprintln(w, "services:")
	for i := range *ownerServices {
		address := "192.0.2.1"
		if i == *ownerServices/2 {
			address = middle
		}
		fmt.Fprintf(w, "- name: shop%d\n  fqdn: shop%[1]d.fed.example\n  endpoints: [{address: %s, port: 80}]\n  instances: [{id: i1, protocol: TCP}]\n",
			i, address)
	}
	must.Do(b, w.Flush())
	must.Do(b, file.Close())
}

// memoryOf returns a value of the status of a process, in MB.
func memoryOf(b *testing.B, p *process, key string) float64 {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		b.Skipf("no memory of a process here: %v", err)
	}
	for line := range bytes.Lines(status) {
		fields := bytes.Fields(line)
		if len(fields) == 3 && string(fields[0]) == key+":" { // Name: 123 kB
			kilobytes := must.Get(strconv.ParseFloat(string(fields[1]), 64))(b)
			return kilobytes * 1024 / 1e6
		}
	}
	b.Fatalf("no %s in %s", key, status)
	return 0
}
