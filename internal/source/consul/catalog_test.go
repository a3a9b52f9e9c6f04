package consul

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// steadySource is another source of the catalog, which is always there.
type steadySource struct{}

func (steadySource) Run(ctx context.Context, part source.Part) {
	part.Replace(nil)
	<-ctx.Done()
}

// TestAwayInCatalog has each way in which Consul can be away, before its first state is known and after, alone
// and beside another source. What was published stays for the lifetime, and no longer. Alone, the
// catalog is unavailable after that; beside another source the services are withdrawn. When Consul is
// back, everything is.
func TestAwayInCatalog(t *testing.T) {
	const lifetime, count = 2 * time.Hour, 20
	for what, away := range map[string]func(*fakeConsul){
		"500":        func(f *fakeConsul) { f.status = 500 },
		"429":        func(f *fakeConsul) { f.status = 429 },
		"no token":   func(f *fakeConsul) { f.status, f.body = 403, "ACL not found" },
		"no leader":  func(f *fakeConsul) { f.header = map[string]string{"X-Consul-Knownleader": "false"} },
		"stale":      func(f *fakeConsul) { f.header = map[string]string{"X-Consul-Lastcontact": "60000"} },
		"filtered":   func(f *fakeConsul) { f.filtered = true },
		"unreadable": func(f *fakeConsul) { f.unreadable = true },
		"stalled":    func(f *fakeConsul) { f.stalled = true },
	} {
		for _, known := range []bool{false, true} {
			for _, beside := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, known: %t, beside: %t", what, known, beside), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						f := newFakeConsul(t)
						for i := range count {
							f.put(fmt.Sprintf("s%d", i), one)
						}
						if !known {
							f.set(func() { away(f) })
						}
						src := New(Config{Zone: services.FQDN("consul.example")})
						src.dial = f.dial
						entries := []source.Entry{{Name: "consul", Source: src, Lifetime: lifetime, MaxWithdraw: 50, WithdrawAfter: time.Hour}}
						if beside {
							entries = append(entries, source.Entry{Name: "steady", Source: steadySource{}})
						}
						catalog := source.NewCatalog(source.Config{Registry: registry.New(), Logger: slog.New(slog.DiscardHandler), Sources: entries})
						ctx, cancel := context.WithCancel(t.Context())
						var running sync.WaitGroup
						defer running.Wait()
						defer f.set(func() { f.stalled = false })
						defer cancel()
						running.Go(func() { _ = catalog.Run(ctx) })
						check := func(after time.Duration, wantAway, wantLapsed, wantAvailable bool, wantServices int) {
							t.Helper()
							time.Sleep(after)
							synctest.Wait()
							s := catalog.Status()
							c := s.Sources[0]
							if (c.Away != "") != wantAway || c.Lapsed != wantLapsed || (s.Unavailable == "") != wantAvailable || c.Services != wantServices || c.Paused > 0 {
								t.Errorf("status is %+v", s)
							}
						}
						if known {
							check(time.Minute, false, false, true, count)
							f.set(func() {
								away(f)
								f.index++
								f.list = f.index
								for name := range f.services {
									f.indexes[name] = f.index
								}
							})
							check(time.Hour, true, false, true, count)
							check(2*time.Hour, true, beside, beside, count)
						} else {
							check(3*time.Hour, true, false, beside, 0)
						}
						f.set(func() {
							f.status, f.body, f.header, f.filtered, f.unreadable, f.stalled = 0, "", nil, false, false, false
						})
						check(5*time.Minute, false, false, true, count)
					})
				})
			}
		}
	}
}
