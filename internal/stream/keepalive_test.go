package stream

import (
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/hamlet-federation/coredns-federation/test/kit/network/simulation"
)

// An owner that allows a ping only every five minutes, which is gRPC's default,
// is no failing owner: the interval doubles until it suits, and each time the
// stream is back after the minimum delay.
func TestTooManyPings(t *testing.T) {
	simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
		sim.serve(ownerAddress, silent, grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{}))
		sim.run(sim.config())
		time.Sleep(6 * time.Hour)

		opened, lost := sim.Records("opened"), sim.Records("lost")
		if len(lost) != 4 || len(opened) != 5 {
			t.Fatalf("opened %v, lost %v", opened, lost)
		}
		for i := range lost {
			if delay := opened[i+1].At - lost[i].At; delay != minDelay {
				t.Errorf("delay %d is %v, want %v", i, delay, minDelay)
			}
		}
		lines := sim.Logged.Lines()
		if len(lines) != 4 {
			t.Errorf("logged:\n%s", strings.Join(lines, ""))
		}
		for i, want := range []string{"keepalive=1m0s", "keepalive=2m0s", "keepalive=4m0s", "keepalive=8m0s"} {
			if i < len(lines) && !strings.Contains(lines[i], want) {
				t.Errorf("line %d is %s, want %s", i, lines[i], want)
			}
		}
	})
}

// An owner that complains of pings however few there are gets the ordinary
// treatment in the end.
func TestTooManyPingsForEver(t *testing.T) {
	simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
		const frames = "\x00\x00\x00\x04\x00\x00\x00\x00\x00" + // SETTINGS
			"\x00\x00\x16\x07\x00\x00\x00\x00\x00\x7f\xff\xff\xff\x00\x00\x00\x0btoo_many_pings" // GOAWAY, ENHANCE_YOUR_CALM
		sim.secure()
		sim.accept(ownerAddress, func(conn net.Conn) {
			conn, _, err := sim.owner.Server().ServerHandshake(conn)
			if err != nil {
				return
			}
			defer conn.Close()
			buffer := make([]byte, 4096)
			if _, err := conn.Write([]byte(frames[:9])); err != nil {
				return
			}
			for range 3 { // preface, acknowledgement, headers: the stream is open
				if _, err := conn.Read(buffer); err != nil {
					return
				}
			}
			_, _ = conn.Write([]byte(frames[9:]))
		})
		sim.run(sim.config())
		time.Sleep(10 * time.Minute)
		lines := strings.Join(sim.Logged.Lines(), "")
		if n := strings.Count(lines, "interval is doubled"); n != 8 || !strings.Contains(lines, "keepalive=2h0m0s") {
			t.Errorf("logged %d times:\n%s", n, lines)
		}
		if n := len(sim.Records("dialed")); n < 15 || n > 60 {
			t.Errorf("%d attempts in ten minutes", n)
		}
	})
}
