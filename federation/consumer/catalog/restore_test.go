package catalog_test

import (
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/wire/packed"
	"github.com/hamlet-federation/coredns-federation/federation/wire/resume"
)

// TestRestoreInParts checks that services of a restoration are published at once, and that
// the catalog is known at its end only, if all are there. Otherwise the owner is told that
// nothing is held, nothing is kept in a file, and another restoration begins anew.
func TestRestoreInParts(t *testing.T) {
	part := func(names ...string) (list []packed.Service) {
		for _, name := range names {
			list = append(list, packed.Of(service(t, name, nil)))
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
		"opened":   {func(c *catalog.Catalog) { c.Opened(epoch) }, 3, false},
		"again": {func(c *catalog.Catalog) {
			c.EndRestore(false)
			c.BeginRestore(3, epoch, epoch)
			c.RestoreMore(part("a"))
			c.EndRestore(true)
		}, 1, true},
		"expired meanwhile": {func(c *catalog.Catalog) {
			c.Advance(epoch.Add(2 * time.Hour))
			c.RestoreMore(part("d"))
			c.EndRestore(true)
		}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := catalog.New(catalog.Rules{Retention: time.Hour, MaxServices: 3})
			if !c.BeginRestore(3, epoch, epoch) {
				t.Fatal("there is no restoration")
			}
			c.RestoreMore(part("a", "b"))
			c.RestoreMore(part("c", "toomany"))
			if s := c.Summary(); s.Services != 3 || s.Stale != 3 || s.Known || len(c.Changes()) != 3 {
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
			for _, change := range c.Changes() {
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
			if c.Opened(epoch); len(c.Resumable()) > 0 != (tt.known && tt.left > 0) {
				t.Errorf("the owner is told that %d services are held", len(c.Resumable()))
			}
			c.RestoreMore(part("late"))
			if s := c.Summary(); s.Services != tt.left {
				t.Error("a service is restored after the end")
			}
			if c.BeginRestore(3, epoch, epoch) {
				t.Error("there is a restoration after a stream")
			}
			c.Marked()
			if err := c.Apply(federation.Event{Operation: federation.End}, epoch); err != nil || !c.Summary().Known || c.Summary().Services > 0 {
				t.Errorf("when a stream has ended its catalog: %v, %+v", err, c.Summary())
			}
		})
	}
}

// TestDeletionAfterRestore goes on with restored services, whose IDs nobody knows. A deletion
// by an ID may be about any of them: it is refused, and the whole catalog is wanted.
func TestDeletionAfterRestore(t *testing.T) {
	c := catalog.New(catalog.Rules{Retention: time.Hour})
	c.Restore([]packed.Service{packed.Of(service(t, "a", nil)), packed.Of(service(t, "b", nil))}, epoch, epoch)
	apply := func(ev federation.Event) error { return c.Apply(ev, epoch) }
	deletion := federation.Event{Operation: federation.Delete, Name: "id-of-a", ID: "id-of-a"}
	held := c.Resumable()
	c.Opened(epoch)
	c.Marked()
	c.Resumed(resume.Selection{})
	c.Adopt(held)
	if err := apply(federation.Event{Operation: federation.End}); err != nil || c.Wanting() {
		t.Fatalf("a complete catalog: error is %v, and more is wanted: %v", err, c.Wanting())
	}
	if err := apply(deletion); err == nil || !c.Wanting() {
		t.Errorf("a deletion by an ID that may be that of a restored service: error is %v, expected a refusal, and that the catalog is wanted", err)
	}
	if err := apply(federation.Event{Operation: federation.Delete, Name: "b", ID: "b"}); err != nil {
		t.Error(err)
	}
	c.Opened(epoch)
	c.Marked()
	if err := apply(federation.Event{Operation: federation.End}); err != nil || c.Wanting() || c.Summary().Services > 0 {
		t.Errorf("the whole catalog: error is %v, and the status %+v", err, c.Summary())
	}
	if err := apply(deletion); err != nil {
		t.Errorf("a deletion by an ID that no service has: %v", err)
	}
}
