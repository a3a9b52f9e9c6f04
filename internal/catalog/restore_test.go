package catalog_test

import (
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

// TestRestoreInParts checks that services of a restoration are published at once, and that
// the catalog is known at its end only, if all are there. Otherwise nothing is kept in a
// file, and another restoration begins anew. The owner is told in any case what is held.
func TestRestoreInParts(t *testing.T) {
	part := func(names ...string) (list []packed.Service) {
		for _, name := range names {
			list = append(list, packed.PackService(service(t, name, nil)))
		}
		return list
	}
	for name, tt := range map[string]struct {
		end   func(c *catalog.Catalog)
		left  int
		known bool
	}{
		"complete": {func(c *catalog.Catalog) { c.EndRestore(true) }, 3, true},
		"damaged":  {func(c *catalog.Catalog) { c.EndRestore(false) }, 3, false},
		"opened":   {func(c *catalog.Catalog) { c.OpenStream(epoch) }, 3, false},
		"again": {func(c *catalog.Catalog) {
			c.EndRestore(false)
			c.BeginRestore(epoch, epoch)
			c.RestoreMore(part("a"))
			c.EndRestore(true)
		}, 1, true},
		"expired meanwhile": {func(c *catalog.Catalog) {
			c.AdvanceTo(epoch.Add(2 * time.Hour))
			c.RestoreMore(part("d"))
			c.EndRestore(true)
		}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := catalog.New(catalog.Rules{Retention: time.Hour, MaxCatalog: 2100})
			if !c.BeginRestore(epoch, epoch) {
				t.Fatal("there is no restoration")
			}
			c.RestoreMore(part("a", "b"))
			c.RestoreMore(part("c", "toomany"))
			if s := c.Summary(); s.Services != 3 || s.Stale != 3 || s.Known || len(c.TakeChanges()) != 3 {
				t.Errorf("before the end the catalog is %+v", s)
			}
			if _, _, ok := c.Snapshot(epoch); ok {
				t.Error("a part of the catalog is worth keeping")
			}
			tt.end(c)
			if s := c.Summary(); s.Services != tt.left || s.Known != tt.known {
				t.Errorf("in the end the catalog is %+v", s)
			}
			gone := 0
			for _, change := range c.TakeChanges() {
				if change.Packed.IsZero() {
					gone++
				} else {
					gone--
				}
			}
			if gone != 3-tt.left {
				t.Errorf("%d services go", gone)
			}
			if _, _, ok := c.Snapshot(epoch); ok != (tt.known && tt.left > 0) && name != "expired meanwhile" {
				t.Errorf("the catalog is worth keeping: %t", ok)
			}
			if c.OpenStream(epoch); len(c.ResumableServices()) != tt.left {
				t.Errorf("the owner is told that %d services are held", len(c.ResumableServices()))
			}
			c.RestoreMore(part("late"))
			if s := c.Summary(); s.Services != tt.left {
				t.Error("a service is restored after the end")
			}
			if c.BeginRestore(epoch, epoch) {
				t.Error("there is a restoration after a stream")
			}
			c.ExpectEndMarker()
			if err := c.ApplyEvent(wire.Event{Operation: wire.End}, epoch); err != nil || !c.Summary().Known || c.Summary().Services > 0 {
				t.Errorf("when a stream has ended its catalog: %v, %+v", err, c.Summary())
			}
		})
	}
}
