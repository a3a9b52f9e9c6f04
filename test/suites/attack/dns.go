package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
)

// server is CoreDNS under attack.
type server struct {
	*process
	address string
}

// serveDNS starts CoreDNS with the Corefile, in which PORT stands for its port and
// TLS for the properties tls and owner_id, and waits until it answers. With some
// errors it also returns the server, so that its log can be read.
func (a *arena) serveDNS(ctx context.Context, corefile string) (*server, error) {
	address, err := loopback.FreeAddress()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(address)
	corefile = strings.NewReplacer("PORT", port, "TLS",
		fmt.Sprintf("tls %s %s %s\n        owner_id %s", a.consumer.Cert, a.consumer.Key, a.consumer.CA, ownerID)).Replace(corefile)
	path, err := a.write("Corefile", corefile)
	if err != nil {
		return nil, err
	}
	p, err := a.start(ctx, "", "coredns", "-conf", path)
	if err != nil {
		return nil, err
	}
	s := &server{p, address}
	if _, err := until(ctx, time.Minute, func() bool { return s.ask("up.invalid.", dns.TypeA) != nil || !p.running() }); err != nil {
		return s, fmt.Errorf("CoreDNS does not answer: %w", err)
	}
	if !p.running() {
		return s, fmt.Errorf("CoreDNS has ended")
	}
	return s, nil
}

// ask sends one query over UDP. It returns nil where there is no reply in time.
func (s *server) ask(name string, qtype uint16) *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	m.SetEdns0(1232, false)
	client := dns.Client{Timeout: 3 * time.Second}
	reply, _, err := client.Exchange(m, s.address)
	if err != nil {
		return nil
	}
	return reply
}

// says reports whether the name has that A record.
func (s *server) says(name, address string) bool {
	m := s.ask(name, dns.TypeA)
	return m != nil && slices.ContainsFunc(m.Answer, func(rr dns.RR) bool {
		a, ok := rr.(*dns.A)
		return ok && a.A.String() == address
	})
}

// survey asks for the A records of a name in the given interval until ctx ends. It
// counts the replies by rcode; "none" is no reply.
func (s *server) survey(ctx context.Context, name string, every time.Duration) map[string]int {
	counts := make(map[string]int)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return counts
		case <-tick.C:
		}
		code := "none"
		if m := s.ask(name, dns.TypeA); m != nil {
			code = dns.RcodeToString[m.Rcode]
		}
		counts[code]++
	}
}

// rate returns how many queries a second are answered, for eight clients that each
// wait for a reply before they send the next query.
func (s *server) rate(ctx context.Context, name string, qtype uint16, d time.Duration) float64 {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	answered := 0 // guarded by mu
	for range 8 {
		wg.Go(func() {
			conn, err := dns.Dial("udp", s.address)
			if err != nil {
				return
			}
			defer conn.Close()
			m := new(dns.Msg)
			m.SetQuestion(name, qtype)
			m.SetEdns0(1232, false)
			n := 0
			for ctx.Err() == nil {
				_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
				if conn.WriteMsg(m) != nil {
					break
				}
				buf := make([]byte, dns.MaxMsgSize)
				if _, err := conn.Read(buf); err == nil {
					n++
				}
			}
			mu.Lock()
			defer mu.Unlock()
			answered += n
		})
	}
	wg.Wait()
	return float64(answered) / d.Seconds()
}

// percentile returns the p-th percentile of durations, which it sorts; 0 of none.
func percentile(all []time.Duration, p int) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[(len(all)-1)*p/100]
}
