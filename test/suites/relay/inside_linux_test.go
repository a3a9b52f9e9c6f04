package relay

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// The ends of the cable between the host of the test and that of the owner (RFC 2544 keeps these
// addresses for tests).
const (
	outsideAddress = "198.18.77.1"
	insideAddress  = "198.18.77.2"
)

// TestPublishToFromInside has the owner on a host of its own, in a network namespace, where it
// listens for nobody outside. Its services resolve behind a relay that it dials, and the bounds are
// those of relays when it is killed, and when the cable is pulled.
func TestPublishToFromInside(t *testing.T) {
	long(t)
	if os.Getuid() != 0 {
		t.Skip("needs root, for network namespaces")
	}
	t.Parallel()
	ip := func(args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	namespace := fmt.Sprint("inside-", os.Getpid())
	ip("netns", "add", namespace)
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", namespace).Run() })
	cable := fmt.Sprint("out", os.Getpid())
	ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", namespace)
	ip("address", "add", outsideAddress+"/30", "dev", cable)
	ip("link", "set", cable, "up")
	ip("-n", namespace, "address", "add", insideAddress+"/30", "dev", "eth0")
	ip("-n", namespace, "link", "set", "eth0", "up")
	ip("-n", namespace, "link", "set", "lo", "up")

	p := newWorld(t)
	const web = "web." + zone
	p.Put(t, "inner.yaml", services(map[string]string{"web": "192.0.2.1"}))
	_, port, err := net.SplitHostPort(loopback.Address(t))
	must.Do(t, err)
	address := net.JoinHostPort(outsideAddress, port)
	outer := place.Owner{
		Address: address, TLS: p.Files("relay"), Allow: []string{coreDNSID},
		More: fmt.Sprintf("catalogs:\n- relay: {accept: [%q]}\n", ownerID),
	}
	relay := p.start(t, "relay", "federationctl", address, "serve", "--config", p.Put(t, "relay.yaml", outer.Config()))
	relay.gate = realserver.StartGate(t, address)
	inner := place.Owner{
		Address: "127.0.0.1:8008", TLS: p.Files("owner"), Allow: []string{relayID},
		More: fmt.Sprintf("publish_to: [{addresses: [%q], owner_ids: [%q]}]\ncatalogs: [{sources: [{file: {path: inner.yaml}}]}]\n", address, relayID),
	}
	owner := &realserver.Process{
		Name: "owner", Path: must.Get(exec.LookPath("ip"))(t), Dir: p.Dir,
		Args: []string{"netns", "exec", namespace, place.Built(t, "federationctl"), "serve", "--config", p.Put(t, "owner.yaml", inner.Config())},
	}
	owner.StartFor(t)
	behind := p.coreDNS(t, "behind", relay, relayID, zone, time.Hour)
	behind.within(t, time.Minute, web, "192.0.2.1")

	if conn, err := net.DialTimeout("tcp", insideAddress+":8008", time.Second); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("the owner can be reached from outside: %v, %v", conn, err)
	}

	owner.Kill()
	behind.answers(t, web, "stale", answer.stale)
	must.Do(t, owner.Start(t.Context()))
	behind.within(t, 2*time.Minute, web, "192.0.2.1")

	pulled := time.Now()
	ip("link", "set", cable, "down")
	ip("-n", namespace, "link", "set", "eth0", "down")
	p.Put(t, "inner.yaml", services(map[string]string{"web": "192.0.2.2"}))
	for a, err := behind.ask(t.Context(), web); err != nil || !a.stale(); a, err = behind.ask(t.Context(), web) {
		if time.Since(pulled) > 2*noticed {
			t.Fatalf("%v after the cable is pulled the answer is %v, %v", time.Since(pulled), a, err)
		}
		passes(t, tick)
	}
	t.Logf("stale %v after the cable is pulled", time.Since(pulled).Round(time.Second))
	ip("link", "set", cable, "up")
	ip("-n", namespace, "link", "set", "eth0", "up")
	plugged := time.Now()
	behind.within(t, 2*time.Minute, web, "192.0.2.2")
	t.Logf("well %v after it is back", time.Since(plugged).Round(time.Second))
}
