package register

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// local are rules under which programs on this machine may register.
const local = `rules:
- name: local
  providers: ["spiffe://fed.example/ns/fleet/sa/*"]
  services: ["*.reg.fed.example"]
  addresses: [127.0.0.0/8]
`

// drained is the service of the programs that are restarted.
const drained = "drained." + zone

// client uses the service as programs do: it asks, keeps the answer for its TTL, and connects
// to all that is in it.
type client struct {
	server string // of DNS
	http   http.Client

	ports   []uint16
	expires time.Time
}

// slip is how much earlier than it must a client asks anew: on a busy machine it may connect
// as much later than it has looked.
const slip = 200 * time.Millisecond

// use uses the service once, and returns how many requests it has made.
func (c *client) use(ctx context.Context) (requests int, err error) {
	if begun := time.Now(); !begun.Before(c.expires) {
		query := new(dns.Msg).SetQuestion("_http._tcp."+drained+".", dns.TypeSRV)
		answer, _, err := new(dns.Client).ExchangeContext(ctx, query, c.server)
		if err != nil {
			return 0, err
		}
		c.ports = nil
		for _, rr := range answer.Answer {
			if srv, ok := rr.(*dns.SRV); ok {
				c.ports = append(c.ports, srv.Port)
				c.expires = begun.Add(time.Duration(srv.Hdr.Ttl)*time.Second - slip)
			}
		}
		if len(c.ports) == 0 {
			return 0, fmt.Errorf("nothing is answered: %v", answer)
		}
	}
	for _, port := range c.ports {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))), http.NoBody)
		if err != nil {
			return requests, err
		}
		response, err := c.http.Do(request)
		if err != nil {
			return requests, err
		}
		requests++
		response.Body.Close()
	}
	return requests, nil
}

// load is what clients do all the while.
type load struct {
	mu       sync.Mutex
	requests int
	failures []error
}

// start has clients use the service until stop is called.
func (l *load) start(t *testing.T, server string) (stop func()) {
	t.Helper()
	const clients, each = 4, 50 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for range clients {
		running.Go(func() {
			c := client{server: server, http: http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
			ticker := time.NewTicker(each)
			defer ticker.Stop()
			for {
				n, err := c.use(ctx)
				if ctx.Err() != nil {
					return
				}
				l.mu.Lock()
				l.requests += n
				if err != nil {
					l.failures = append(l.failures, err)
				}
				l.mu.Unlock()
				select {
				case <-ticker.C:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(stop)
	return stop
}

// failed returns the requests that were made, and why those failed that did.
func (l *load) failed() (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.requests, errors.Join(l.failures...)
}

// TestRollingRestart restarts ten programs, one after the other, while clients use them. With
// receipts no request fails. Without a wait some do.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	hello := t.TempDir() + "/hello"
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", hello, "./hello").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Run("receipts", func(t *testing.T) {
		t.Parallel()
		requests, err := rollingRestart(t, hello, "receipts,max=30s", func(*load) bool { return false })
		if err != nil || requests < 1000 {
			t.Errorf("%d requests: %v", requests, err)
		}
	})
	t.Run("no wait", func(t *testing.T) {
		t.Parallel()
		gone := func(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) } // what is cut off is another failure
		requests, err := rollingRestart(t, hello, "0s", func(l *load) bool { _, err := l.failed(); return gone(err) })
		if !gone(err) {
			t.Errorf("of %d requests none found its program gone: %v", requests, err)
		}
	})
}

// rollingRestart restarts the programs, until enough is seen. It returns how many requests were made, and
// those that failed.
func rollingRestart(t *testing.T, hello, drain string, enough func(*load) bool) (requests int, err error) {
	const programs = 10
	w := start(t, options{rules: local, ttl: time.Second, loopback: true})
	var all []*realserver.Process
	for i := range programs {
		address := loopback.Address(t)
		tls := w.Files("fleet")
		all = append(all, w.Run(t, fmt.Sprintf("program-%d", i+1), place.Built(t, "federationctl"), address,
			"register", "--server", w.owners[0].address, "--owner-id", ownerID, "--cert", tls.Cert, "--key", tls.Key, "--ca", tls.CA,
			"--service", drained, "--node", "http://"+address, "--check", "tcp://"+address, "--check-interval", "100ms",
			"--drain", drain, "--", "timeout", "10m", hello, "-listen", address)) // so that none outlives a test that is killed for long
	}
	registered(t, w, programs)
	var l load
	stop := l.start(t, w.dns.Address)
	for _, program := range all {
		begun := time.Now()
		must.Do(t, program.Stop())
		if drain != "0s" && program.Logged("no client has "+drained+" any more") != 1 {
			t.Errorf("after %v register says\n%s", time.Since(begun), program.Tail())
		}
		if enough(&l) {
			break
		}
		must.Do(t, program.Start(t.Context()))
		registered(t, w, programs)
	}
	stop()
	for _, program := range all {
		program.Signal(syscall.SIGTERM) // or the end of the test waits for one after the other
	}
	return l.failed()
}

// registered waits until CoreDNS answers so many nodes.
func registered(t *testing.T, w *world, nodes int) {
	t.Helper()
	eventually(t, func() string {
		answer, err := w.dns.Ask(t.Context(), "_http._tcp."+drained, dns.TypeSRV)
		if err != nil {
			return err.Error()
		}
		if len(answer.Answer) != nodes {
			return fmt.Sprintf("%d of %d nodes are answered", len(answer.Answer), nodes)
		}
		return ""
	})
}
