package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

const (
	followed  = 100_000 // services that arrive
	bareRole  = "bare"
	bareReady = "all of the catalog is here"
	bareDone  = "the last service is here"
)

// BenchmarkE2EFollow is the CPU time that CoreDNS takes for a service that arrives, beside that
// of a process which receives and acknowledges the same messages and does nothing else.
func BenchmarkE2EFollow(b *testing.B) {
	for _, window := range []int{1, 256} {
		b.Run(fmt.Sprintf("services=%d/window=%d", *e2eServices, window), func(b *testing.B) {
			p := &profiles()[0]
			keys := newPKI(b)
			owner := serveRegistry(b, keys.owner, "", filled(b, p.catalog(b, *e2eServices)), window)
			last := p.service(b, *e2eServices+followed-1)

			bare := exec.Command(os.Args[0], owner.address, keys.consumer.Cert, keys.consumer.Key, keys.consumer.CA, last.Name)
			bare.Env = append(os.Environ(), roleVariable+"="+bareRole)
			floor := startProcess(b, bare)

			address, corefile := freeAddress(b), filepath.Join(b.TempDir(), "corefile")
			_, port, _ := strings.Cut(address, ":")
			writeFile(b, corefile, fmt.Sprintf("%s:%s {\nbind 127.0.0.1\nfederation {\nowner %s\n%s\n}\n}\n",
				benchOrigin, port, owner.address, keys.tls()))
			server := startProcess(b, exec.Command(coreDNSBinary, "-conf", corefile))
			eventually(b, syncPatience, func() string { return floor.unlogged(1, bareReady) + server.unlogged(1, "owner is synced") })

			used := func(p *process) time.Duration { return cpuTime(b, p.cmd.Process.Pid) }
			ours, least := -used(server), -used(floor)
			for i := range followed {
				mustUpsert(b, owner, p.service(b, *e2eServices+i))
			}
			eventually(b, syncPatience, func() string {
				reply, err := query(address, last.FQDN.String(), dns.TypeA)
				if err != nil || len(reply.Answer) == 0 {
					return "CoreDNS has not the last service"
				}
				return floor.unlogged(1, bareDone)
			})
			ours, least = ours+used(server), least+used(floor)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(ours.Microseconds())/followed, "us/service")
			b.ReportMetric(float64(least.Microseconds())/followed, "floor-us/service")
			b.ReportMetric(ours.Seconds()/least.Seconds(), "ratio")
		})
	}
}

// runBare is a consumer that acknowledges what it receives, until the service of that name comes.
func runBare(address, cert, key, ca, last string) error {
	source, err := mtls.Load(mtls.Files{Cert: cert, Key: key, CA: ca}, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(source.Client("127.0.0.1", nil)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: time.Minute}))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stream, err := rdpb.NewDiscoveryServiceClient(conn).EstablishStream(context.Background())
	if err != nil {
		return err
	}
	request := wire.Subscribe("bare")
	for {
		if err := stream.Send(&rdpb.BidirectionalStream{Request: request}); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		r := m.GetResponse()
		request = wire.Ack(r.GetNonce(), "bare")
		switch {
		case r.GetOperation() == rdpb.StreamResponse_UNKNOWN:
			fmt.Fprintln(os.Stdout, bareReady)
		case strings.Contains(string(r.GetResource().GetValue()), last):
			fmt.Fprintln(os.Stdout, bareDone)
		}
	}
}
