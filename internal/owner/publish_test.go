package owner

import (
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestLargestMessage publishes a service whose resource, with 2 KiB for the rest of
// the message, is as large as a message may be, and one byte larger.
func TestLargestMessage(t *testing.T) {
	for over, want := range []string{"upsert a 1", "end"} {
		synctest.Test(t, func(t *testing.T) {
			s := service("a", 1)
			resource := must.Get(wire.NewEncoded(s))(t).Resource()
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
