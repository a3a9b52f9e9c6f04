package relay_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/source"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// told is a source that says what a test says.
type told chan source.Part

// Run implements source.Source.
func (p told) Run(ctx context.Context, part source.Part) {
	p <- part
	<-ctx.Done()
}

// TestRestartWithoutASource has an owner come back without one of its sources. What that had stays
// with a consumer, stale, while the other source goes on, and even when it is an hour away. When it
// has said what it has, nothing stays that is gone. A consumer that comes meanwhile is told
// what there is.
func TestRestartWithoutASource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		start := func() (file, cluster source.Part, stop func()) {
			published, sources := registry.New(), [2]told{make(told), make(told)}
			c := source.NewCatalog(source.Config{
				Registry: published, Logger: slog.New(slog.DiscardHandler),
				Sources: []source.Entry{{Name: "file", Source: sources[0]}, {Name: "cluster", Source: sources[1], Lifetime: 10 * time.Minute}},
			})
			end := must.Run(t, c.Run)
			unserve := w.publish(originAddress, published)
			return <-sources[0], <-sources[1], func() { unserve(); end() }
		}
		replace := func(part source.Part, has ...*federation.Service) {
			var all []*wire.Encoded
			for _, s := range has {
				all = append(all, must.Get(wire.NewEncoded(s))(t))
			}
			part.Replace(all)
		}
		file, cluster, stop := start()
		replace(file, services.At("a.example", "192.0.2.1"), services.At("b.example", "192.0.2.1"))
		replace(cluster, services.At("c.example", "192.0.2.1"), services.At("d.example", "192.0.2.1"))
		old := w.consumer(originAddress)
		await(t, "consumer", old.shown, "synced: a=192.0.2.1 b=192.0.2.1 c=192.0.2.1 d=192.0.2.1")
		stop()
		time.Sleep(time.Second)

		file, cluster, stop = start()
		defer stop()
		replace(file, services.At("a.example", "192.0.2.2"))
		cluster.Away(context.DeadlineExceeded)
		fresh := w.consumer(originAddress)
		await(t, "new consumer", fresh.shown, "syncing: a=192.0.2.2")
		await(t, "consumer", old.shown, "syncing: a=192.0.2.2 b=192.0.2.1 c=192.0.2.1 d=192.0.2.1")
		time.Sleep(30 * time.Minute)
		await(t, "consumer, half an hour later", old.shown, "syncing: a=192.0.2.2 b=192.0.2.1 c=192.0.2.1 d=192.0.2.1")
		replace(cluster, services.At("c.example", "192.0.2.1"))
		for who, c := range map[string]*follower{"consumer": old, "new consumer": fresh} {
			await(t, who, c.shown, "synced: a=192.0.2.2 c=192.0.2.1")
		}
	})
}
