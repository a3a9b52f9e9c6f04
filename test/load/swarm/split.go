package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
)

// sampled is after how many allocated bytes one is looked at.
const sampled = 512

// parts are whose the memory is, by the innermost function that names one of them.
var parts = []struct{ function, part string }{
	{"transport.newBufWriter", "gRPC: write buffer"},
	{"transport.bufferedReader", "gRPC: read buffer"},
	{"hpack", "gRPC: HPACK"},
	{"x509", "TLS: certificates"},
	{"crypto/tls.(*Conn).readRecord", "TLS: buffer of records"},
	{"crypto/tls", "TLS: connection"},
	{"crypto/", "TLS: ciphers"},
	{"federation/mtls", "ours: mtls"},
	{"federation/owner/gate", "ours: gate"},
	{"federation/owner", "ours: owner"},
	{"federation/wire", "ours: owner"},
	{"context", "contexts"},
	{"google.golang.org/grpc/internal/transport", "gRPC: transport"},
	{"google.golang.org/grpc", "gRPC: the rest"},
	{"net.", "sockets"},
}

// ownerProcess serves a catalog until stdin has a line with the number of consumers, and
// then prints what of its memory is whose.
func ownerProcess(ctx context.Context, p plan, out io.Writer) error {
	runtime.MemProfileRate = sampled
	file := func(name string) string { return filepath.Join(p.dir, name) }
	source, err := mtls.Load(mtls.Files{Cert: file("owner.pem"), Key: file("owner-key.pem"), CA: file("ca.pem")}, nil)
	if err != nil {
		return err
	}
	registry := registry.New()
	services, err := services(p.services)
	if err != nil {
		return err
	}
	if _, err := registry.Set(services); err != nil {
		return err
	}
	server, err := owner.New(owner.Config{Registry: registry, Credentials: source.Server(), Window: p.window, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", p.owner)
	if err != nil {
		return err
	}
	before := heap()
	stacks := sample("/memory/classes/heap/stacks:bytes")
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()
	var consumers int
	if _, err := fmt.Fscanln(bufio.NewReader(os.Stdin), &consumers); err != nil {
		return err
	}
	after := heap()
	each := func(n int64) float64 { return float64(n) / float64(consumers) / 1e3 }
	var total int64
	for _, part := range slices.Sorted(maps.Keys(after)) {
		n := after[part] - before[part]
		total += n
		fmt.Fprintf(out, "  %-24s %7.2f kB\n", part, each(n))
	}
	n := sample("/memory/classes/heap/stacks:bytes") - stacks
	fmt.Fprintf(out, "  %-24s %7.2f kB, %.1f goroutines\n", "stacks", each(n), float64(runtime.NumGoroutine())/float64(consumers))
	fmt.Fprintf(out, "  %-24s %7.2f kB\n\n", "together", each(total+n))
	cancel()
	return <-served
}

func services(n int) ([]*federation.Service, error) {
	address, err := federation.ParseAddress("192.0.2.1")
	if err != nil {
		return nil, err
	}
	all := make([]*federation.Service, n)
	for i := range all {
		name := fmt.Sprintf("s%05d", i)
		fqdn, err := federation.ParseFQDN(name + ".fed.example")
		if err != nil {
			return nil, err
		}
		all[i] = &federation.Service{
			Name: name, FQDN: fqdn, Endpoints: []federation.Endpoint{{Address: address, Port: 443}},
			Instances: []federation.Instance{{ID: "a", Protocol: federation.HTTPS}},
		}
	}
	return all, nil
}

// sample returns the value of a metric of the runtime.
func sample(name string) int64 {
	samples := []metrics.Sample{{Name: name}}
	metrics.Read(samples)
	return int64(samples[0].Value.Uint64())
}

// heap returns what is in use, by part.
func heap() map[string]int64 {
	debug.FreeOSMemory()
	runtime.GC() // the profile is that of the collection before the last one
	n, _ := runtime.MemProfile(nil, false)
	records := make([]runtime.MemProfileRecord, n+1000)
	n, _ = runtime.MemProfile(records, false)
	used := make(map[string]int64)
	for _, r := range records[:n] {
		used[partOf(r)] += unsampled(r)
	}
	return used
}

// unsampled estimates how many bytes a record stands for: an object of s bytes is looked
// at with the probability 1-exp(-s/rate).
func unsampled(r runtime.MemProfileRecord) int64 {
	if r.InUseObjects() == 0 {
		return 0
	}
	size := float64(r.InUseBytes()) / float64(r.InUseObjects())
	return int64(float64(r.InUseBytes()) / -math.Expm1(-size/sampled))
}

func partOf(r runtime.MemProfileRecord) string {
	frames := runtime.CallersFrames(r.Stack())
	for {
		frame, more := frames.Next()
		for _, p := range parts {
			if strings.Contains(frame.Function, p.function) {
				return p.part
			}
		}
		if !more {
			return "others"
		}
	}
}
