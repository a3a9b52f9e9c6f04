package owner

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/loglimit"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// refuseAll refuses the whole catalog, for a reason that may differ each time.
func refuseAll(c *client, reason func(int) string) {
	c.tb.Helper()
	for i := 0; ; i++ {
		response, text := c.receive()
		if text == "end" {
			c.request(wire.Answer(response.GetNonce(), "session", nil))
			return
		}
		invalid := &federation.InvalidError{Service: response.GetResourceId(), Field: "fqdn", Reason: federation.ReasonOutOfZone, Rule: reason(i)}
		c.request(wire.Answer(response.GetNonce(), "session", invalid))
	}
}

// TestConsumersCannotFloodTheLog makes the owner log, over and over. Within a minute it
// writes few lines of each kind for a consumer, and then one with the number of the
// others. The lines of another consumer are counted by themselves.
func TestConsumersCannotFloodTheLog(t *testing.T) {
	const services = 2 * loglimit.PerMinute
	for _, tt := range []struct {
		name  string
		flood func(c *client)
		times int
		kinds []string // of lines that are many
	}{
		{"refuse", func(c *client) { refuseAll(c, func(i int) string { return fmt.Sprint("not ours ", i) }) }, 1, []string{"consumer refuses a service"}},
		{"publish and close", func(c *client) { c.publish("", nil); c.say() }, services, []string{
			"consumer subscribed", "consumer publishes services", "consumer gone",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, nil)
				if tt.times == 1 {
					set(t, f.registry, catalogOf(services))
				}
				conn := f.dial(t, consumerID)
				for range tt.times {
					c := subscribe(t, conn)
					if tt.times > 1 {
						c.nextN(1)
					}
					tt.flood(c)
					must.Do(t, c.stream.CloseSend())
					if got := c.status(); got.Code() != codes.OK {
						t.Fatal(got)
					}
				}
				other := subscribe(t, f.dial(t, strangerID))
				if tt.times == 1 {
					refuseAll(other, func(int) string { return "nor ours" })
				}
				time.Sleep(2 * time.Minute)
				for _, kind := range tt.kinds {
					of := func(consumer string) (lines, counts int) {
						for line := range strings.Lines(f.logged.String()) {
							switch {
							case !strings.Contains(line, "consumer="+consumer) || !strings.Contains(line, kind):
							case strings.Contains(line, "more lines like this were left out"):
								counts++
							default:
								lines++
							}
						}
						return lines, counts
					}
					if lines, counts := of(consumerID); lines != loglimit.PerMinute || counts != 1 {
						t.Errorf("%q: %d lines and %d counts of what was left out, expected %d and 1", kind, lines, counts, loglimit.PerMinute)
					}
					if lines, _ := of(strangerID); lines == 0 && kind != "consumer gone" && kind != "consumer publishes services" {
						t.Errorf("%q: no line of the other consumer", kind)
					}
				}
				if n := f.logged.Count(""); n > 10*loglimit.PerMinute {
					t.Errorf("%d lines are logged:\n%s", n, f.logged)
				}
			})
		})
	}
}
