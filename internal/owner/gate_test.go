package owner

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/gate"
	"github.com/hamlet-federation/coredns-federation/internal/loglimit"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestIdleConnections connects without a handshake, and with one but without a stream.
// All of these connections are closed after a while, those over a limit at once, and
// few log lines are written about them.
func TestIdleConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, func(c *Config) {
			c.Gate = gate.New(gate.Config{Limits: gate.Limits{Connections: 40}, Logger: c.Logger})
		})
		dial := func() net.Conn {
			t.Helper()
			conn := must.Get(f.listener.DialContext(t.Context()))(t)
			t.Cleanup(func() { conn.Close() })
			return conn
		}
		// With a certificate, and without a stream; the second answers nothing.
		polite := f.dial(t, consumerID)
		polite.Connect()
		c, _, err := f.credentials(t, mtls.Leaf{Name: "test", URIs: []string{consumerID}}).ClientHandshake(context.Background(), "owner", dial())
		if err != nil {
			t.Fatal(err)
		}
		if _, err = io.WriteString(c, http2.ClientPreface); err == nil {
			err = http2.NewFramer(c, nil).WriteSettings()
		}
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, c) }()
		synctest.Wait()
		if n := f.server.Stats().Connections; n != 2 {
			t.Fatalf("%d connections are open, expected 2", n)
		}

		for range 300 {
			dial()
		}
		synctest.Wait()
		if s := f.server.Stats(); s.Connections != 12 || s.TurnedAway["handshakes_per_address"] != 290 {
			t.Errorf("%d connections are open and %v were turned away, expected 12 and 290", s.Connections, s.TurnedAway)
		}
		time.Sleep(time.Second)
		upsert(t, f.registry, service("a", 1))
		if got := subscribe(t, f.dial(t, strangerID)).next(); got != "upsert a 1" {
			t.Errorf("a consumer beside them received %q, expected upsert a 1", got)
		}
		time.Sleep(gate.HandshakeTimeout)
		if n := f.server.Stats().Connections; n != 3 {
			t.Errorf("%d connections are open after the time for a handshake, expected 3", n)
		}
		time.Sleep(gate.MaxIdle)
		if n := f.server.Stats().Connections; n != 1 {
			t.Errorf("%d connections are open after the time for a stream, expected that of the consumer", n)
		}
		if n := f.logged.Count(`"connection turned away`); n != loglimit.PerMinute+1 {
			t.Errorf("%d log lines tell of it, expected %d:\n%s", n, loglimit.PerMinute+1, f.logged)
		}
	})
}
