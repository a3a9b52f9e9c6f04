package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/snapshot"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// away is the identity for an owner that is not there.
type away struct{}

func (away) Credentials(string) credentials.TransportCredentials { return insecure.NewCredentials() }
func (away) Changed() <-chan struct{}                            { return nil }

func (away) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// deaf is an Observer that keeps nothing.
type deaf struct{ Observer }

func (deaf) Ended(string, string) {}
func (deaf) PersistFailed(string) {}

// keptCatalog writes a file with so many small services.
func keptCatalog(b *testing.B, key string, size int) string {
	b.Helper()
	s := &snapshot.Snapshot{Owner: key, LastUp: time.Now()}
	for i := range size {
		fqdn := must.Get(federation.ParseFQDN(fmt.Sprintf("s%d.team%d.fed.example", i, i%100)))(b)
		address := must.Get(federation.ParseAddress(fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)))(b)
		s.Services = append(s.Services, packed.PackService(&federation.Service{
			Name: fmt.Sprint("service-", i), Description: "one of many", FQDN: fqdn,
			Endpoints: []federation.Endpoint{{Address: address, Port: 8080}},
			Instances: []federation.Instance{{ID: "v1", Protocol: federation.HTTPS}},
		}))
	}
	file := filepath.Join(b.TempDir(), "catalog")
	must.Do(b, snapshot.Save(file, s))
	return file
}

// BenchmarkRestore is the time from the start of an owner until its whole catalog,
// which a file has, is published, and until the first of its names is. Beside it,
// ms-wait is how long other owners wait for the writer.
func BenchmarkRestore(b *testing.B) {
	for _, size := range []int{100_000, 1_000_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			var file string
			var first time.Duration
			var waits []time.Duration
			for range b.N {
				b.StopTimer()
				a, block, owners := writer(b, "owner")
				a.config.Observer = deaf{}
				o := owners[0]
				if file == "" {
					file = keptCatalog(b, o.id, size)
				}
				must.Do(b, o.mirror.Resubscribe(consumer.Subscription{
					Addresses: block.config.Owners[0].Subscription.Addresses, Identity: away{}, File: file,
					Dial: func(context.Context, string) (net.Conn, error) { return nil, errors.New("away") },
				}, catalog.Rules{}))
				empty := block.Zone()
				b.StartTimer()
				start := time.Now()
				o.configureMirror()
				<-block.changed
				for block.Zone() == empty {
					<-block.changed
				}
				first += time.Since(start)
				for pace := time.NewTicker(time.Millisecond); !o.mirror.Status().Known; <-pace.C {
					asked := time.Now()
					a.changeZones(func() {})
					waits = append(waits, time.Since(asked))
				}
				b.StopTimer()
				_ = os.Rename(file, file+".kept") // so that the last save does not take the place of it
				o.cancel()
				<-o.done
				must.Do(b, os.Rename(file+".kept", file))
				b.StartTimer()
			}
			waits = append(waits, 0) // of a catalog that was there at once
			slices.Sort(waits)
			milliseconds := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*size), "ns/service")
			b.ReportMetric(milliseconds(first)/float64(b.N), "ms-first")
			b.ReportMetric(milliseconds(waits[len(waits)*99/100]), "ms-wait-p99")
			b.ReportMetric(milliseconds(waits[len(waits)-1]), "ms-wait-max")
		})
	}
}
