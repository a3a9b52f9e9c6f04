package owner

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// invalid returns a service that is not valid.
func invalid(name string) *federation.Service {
	s := service(name, 1)
	s.Description = "\xff"
	return s
}

// TestUpsertRefusesInvalidServices upserts services that are not valid. The catalog
// and the streams of consumers stay as they were.
func TestUpsertRefusesInvalidServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		upsert(t, f.registry, expressible("a", 1))
		conn := f.dial(t, consumerID)
		c, c1 := subscribe(t, conn), subscribe1(t, conn)
		c.nextN(2)
		c1.nextN(2)

		nowhere := expressible("a", 1) // has SANs and no instances
		nowhere.Instances = nil
		for text, s := range map[string]*federation.Service{
			`service "a": description: not valid UTF-8: "\xff"`: invalid("a"),
			`service "a": instances: at least one is required`:  nowhere,
			`service: required`: nil,
			`service "new": description: not valid UTF-8: "\xff"`: invalid("new"),
			`name: required`: {},
			`service "\xff": name: not valid UTF-8: "\xff"`:       {Name: "\xff"},
			`service "big": tags[0]: 513 bytes, the limit is 512`: {Name: "big", Tags: []string{strings.Repeat("x", federation.MaxTagBytes+1)}},
			`service "no.endpoints": fqdn: required`:              {Name: "no.endpoints"},
		} {
			changed, err := f.registry.Upsert(s)
			if _, ok := errors.AsType[*federation.InvalidError](err); !ok || err.Error() != text || changed {
				t.Errorf("changed %v with the error %v, expected %s", changed, err, text)
			}
			if d, err := f.registry.Set([]*federation.Service{expressible("z", 1), s}); err == nil || err.Error() != text || d != (registry.Difference{}) {
				t.Errorf("difference %+v with the error %v, expected %s", d, err, text)
			}
		}
		upsert(t, f.registry, expressible("b", 1)) // the next message: nothing was sent in between
		if got := c.next(); got != "upsert b 1" {
			t.Errorf("received %q, expected upsert b 1", got)
		}
		if diff := cmp.Diff([]string{"CREATE b 1"}, c1.nextN(1)); diff != "" {
			t.Errorf("v1alpha1 (-want +got):\n%s", diff)
		}
	})
}

// TestServiceOfV1Alpha1 publishes a service with instances of v1alpha1, which have no ID.
// Consumers of v1alpha2 get it with the IDs of its protocols.
func TestServiceOfV1Alpha1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		unnamed := expressible("b", 1)
		unnamed.Instances = []federation.Instance{{Protocol: federation.HTTPS, Unnamed: true}}
		set(t, f.registry, []*federation.Service{expressible("a", 1), unnamed})
		conn := f.dial(t, consumerID)
		c, c1 := subscribe(t, conn), subscribe1(t, conn)
		if diff := cmp.Diff([]string{"upsert a 1", "upsert b 1", "end"}, c.nextN(3)); diff != "" {
			t.Errorf("v1alpha2 (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"CREATE a 1", "CREATE b 1", "UNKNOWN"}, c1.nextN(3)); diff != "" {
			t.Errorf("v1alpha1 (-want +got):\n%s", diff)
		}
		if in := f.registry.Lookup("b").Service().Instances; len(in) != 1 || in[0].ID != "https" {
			t.Errorf("the instances are %+v", in)
		}
	})
}

// TestLargestMessage publishes a service whose resource, with 2 KiB for the rest of
// the message, is as large as a message may be, and one byte larger.
func TestLargestMessage(t *testing.T) {
	for over, want := range []string{"upsert a 1", "end"} {
		synctest.Test(t, func(t *testing.T) {
			s := service("a", 1)
			resource := must.Get(wire.EncodeResource(federation.Event{Operation: federation.Upsert, Name: s.Name, Service: s}))(t)
			f := start(t, func(c *Config) { c.MaxMessage = len(resource.GetValue()) + 2048 - over })
			upsert(t, f.registry, s)
			if got := subscribe(t, f.dial(t, consumerID)).next(); got != want {
				t.Errorf("with %d bytes too many the first message is %q, expected %q", over, got, want)
			}
		})
	}
}

// TestServiceThatIsTooLargeIsWithheld publishes a service that is too large for
// consumers of either version. They get its neighbours.
func TestServiceThatIsTooLargeIsWithheld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, func(c *Config) { c.MaxMessage = 32 << 10 })
		vast := func(version int) *federation.Service { // 40 kB
			s := large("b", version)
			s.SANs = []string{"spiffe://owner.example/b"}
			return s
		}
		set(t, f.registry, []*federation.Service{expressible("a", 1), vast(1), expressible("c", 1)})
		conn := f.dial(t, consumerID)
		c, c1 := subscribe(t, conn), subscribe1(t, conn)
		expect := func(v1alpha2, v1alpha1 []string) {
			t.Helper()
			if diff := cmp.Diff(v1alpha2, c.nextN(len(v1alpha2))); diff != "" {
				t.Errorf("v1alpha2 (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(v1alpha1, c1.nextN(len(v1alpha1))); diff != "" {
				t.Errorf("v1alpha1 (-want +got):\n%s", diff)
			}
			synctest.Wait()
		}
		expect([]string{"upsert a 1", "upsert c 1", "end"}, []string{"CREATE a 1", "CREATE c 1", "UNKNOWN"})
		upsert(t, f.registry, expressible("b", 2))
		expect([]string{"upsert b 2"}, []string{"CREATE b 2"})
		upsert(t, f.registry, vast(3))
		expect([]string{"delete b"}, []string{"DELETE b"})
		f.registry.Delete("b")
		upsert(t, f.registry, expressible("d", 1))
		expect([]string{"upsert d 1"}, []string{"CREATE d 1"})
		if n := f.logged.Count("service=b error=\"it takes "); n != 4 {
			t.Errorf("%d log lines tell of the service, expected one for each version, each time that it comes:\n%s", n, f.logged)
		}
	})
}
