package test

import (
	"fmt"
	"maps"
	"net"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// outgoing is what the plugin transfer logs of a transfer that has more than the SOA.
var outgoing = regexp.MustCompile(`Outgoing transfer of (\d+) records of zone "fed\.example\." to (\S+) `)

// The addresses from which the zone is asked for: the log tells them apart.
const (
	bySecondary = "127.0.0.1"
	byTest      = "127.0.0.2"
)

// transferZone asks for a zone as a secondary does: for all of it (AXFR), or for
// what has changed since a serial that is not 0 (IXFR).
func transferZone(address, zone string, serial uint32) ([]dns.RR, error) {
	return transferFrom("127.0.0.1", address, zone, serial)
}

// transferFrom is transferZone from an address of this machine.
func transferFrom(source, address, zone string, serial uint32) ([]dns.RR, error) {
	query := new(dns.Msg)
	if query.SetAxfr(zone); serial != 0 {
		query.SetIxfr(zone, serial, "ns.dns."+zone, "hostmaster."+zone)
	}
	dialer := net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
	conn, err := dialer.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	client := &dns.Transfer{Conn: &dns.Conn{Conn: conn}, ReadTimeout: patience}
	envelopes, err := client.In(query, address)
	if err != nil {
		return nil, err
	}
	var all []dns.RR
	for e := range envelopes {
		if e.Error != nil {
			return nil, e.Error
		}
		all = append(all, e.RR...)
	}
	return all, nil
}

// transfers returns how many records each transfer so far had that was asked for from an
// address.
func (d *coreDNS) transfers(t testing.TB, by string) (records []int) {
	t.Helper()
	for _, match := range outgoing.FindAllStringSubmatch(d.log.String(), -1) {
		if match[2] != by {
			continue
		}
		n := must.Get(strconv.Atoi(match[1]))(t)
		records = append(records, n)
	}
	return records
}

// zoneOf returns the records of a transfer of the whole zone, its SOA once.
func zoneOf(t testing.TB, source, address string) map[string]bool {
	t.Helper()
	all := make(map[string]bool)
	eventually(t, patience, func() string {
		rrs, err := transferFrom(source, address, "fed.example.", 0)
		if err != nil {
			return err.Error()
		}
		for _, rr := range rrs {
			all[rr.String()] = true
		}
		return ""
	})
	return all
}

// follower is a secondary of this test: it applies differences and is strict about
// them.
type follower struct {
	serial  uint32
	records map[string]bool
}

// refresh asks for what has changed, and reports whether it was given a difference.
func (f *follower) refresh(t testing.TB, primary string) (incremental bool) {
	t.Helper()
	rrs := must.Get(transferFrom(byTest, primary, "fed.example.", f.serial))(t)
	serial := rrs[0].(*dns.SOA).Serial
	if len(rrs) == 1 {
		if serial != f.serial {
			t.Errorf("nothing but the serial %d for who has %d", serial, f.serial)
		}
		return true
	}
	if was, ok := rrs[1].(*dns.SOA); ok {
		if incremental = true; was.Serial != f.serial {
			t.Fatalf("a difference from %d for who has %d", was.Serial, f.serial)
		}
	}
	if f.serial = serial; !incremental {
		f.records = make(map[string]bool)
		for _, rr := range rrs {
			f.records[rr.String()] = true
		}
		return false
	}
	soas := 0
	for _, rr := range rrs[1 : len(rrs)-1] {
		if _, ok := rr.(*dns.SOA); ok {
			soas++
		}
		if has := f.records[rr.String()]; has != (soas == 1) {
			t.Errorf("in part %d of a difference, and had before: %t: %s", soas, has, rr)
		}
		if soas == 1 {
			delete(f.records, rr.String())
		} else {
			f.records[rr.String()] = true
		}
	}
	return true
}

// TestIncrementalTransfer lets other name servers, kdig and a strict client follow a
// zone by differences (RFC 1995).
func TestIncrementalTransfer(t *testing.T) {
	t.Parallel()
	for name, pkg := range map[string]string{"nsd": "nsd", "knotd": "knot", "kdig": "knot-dnsutils"} {
		program(t, name, pkg)
	}
	const services = 150
	p := newPKI(t)
	o := startOwner(t, p.owner, "")
	for i := range services {
		mustUpsert(t, o, fixtureService(t, fmt.Sprint("s", i), fmt.Sprintf("s%d.fed.example", i), []string{"192.0.2.1:443"}, []string{"v1 HTTPS"}))
	}
	addresses := []string{freeAddress(t), freeAddress(t)}
	corefile := federationBlock(p, "fed.example", "transfer {\n\tto * "+strings.Join(addresses, " ")+"\n}", o.address)
	d := startCoreDNS(t, corefile)
	d.awaitAnswer(t, "nope.fed.example", dns.TypeA, "NXDOMAIN")
	n := 0
	// touch makes the zone have another serial than before, and waits for it.
	touch := func() {
		t.Helper()
		before := mustQuery(t, d.address, "fed.example", dns.TypeSOA).Answer[0].(*dns.SOA).Serial
		n++
		mustUpsert(t, o, fixtureService(t, "moving", "moving.fed.example", []string{fmt.Sprintf("192.0.2.9:%d", 1000+n)}, []string{"v1 HTTPS"}))
		eventually(t, patience, func() string {
			if mustQuery(t, d.address, "fed.example", dns.TypeSOA).Answer[0].(*dns.SOA).Serial == before {
				return "the serial stays"
			}
			return ""
		})
	}
	touch() // the first serial of a process is not kept
	knot := startKnot(t, addresses[1], "fed.example", d.address)
	startNSD(t, addresses[0], "fed.example", d.address)
	var client follower
	asked := 0 // how many transfers the test has had
	// follow waits until the secondaries have what touch has changed last, after which
	// no serial moves, and returns what the difference was for this client.
	follow := func() (incremental bool) {
		t.Helper()
		var serial uint32
		eventually(t, patience, func() string {
			want := mustQuery(t, d.address, "fed.example", dns.TypeSOA)
			for _, address := range addresses {
				got, err := query(address, "fed.example", dns.TypeSOA)
				if err != nil {
					return err.Error()
				}
				if d := cmp.Diff(lines(want.Answer), lines(got.Answer)); d != "" {
					return address + ": " + d
				}
				moving, err := query(address, "moving.fed.example", dns.TypeSRV)
				if err != nil {
					return err.Error()
				}
				if len(moving.Answer) != 1 || int(moving.Answer[0].(*dns.SRV).Port) != 1000+n {
					return fmt.Sprintf("%s: moving is %v", address, moving.Answer)
				}
			}
			serial = want.Answer[0].(*dns.SOA).Serial
			return ""
		})
		incremental = client.refresh(t, d.address)
		if client.serial != serial {
			t.Errorf("transferred serial %d, the answer was %d", client.serial, serial)
		}
		for _, address := range append([]string{d.address}, addresses...) {
			source := bySecondary
			if address == d.address {
				source = byTest
			}
			if got := zoneOf(t, source, address); !maps.Equal(client.records, got) {
				t.Errorf("%s (-ours +theirs):\n%s", address, cmp.Diff(client.records, got))
			}
		}
		// The log line of a transfer comes after it. Those of the secondaries came before ours.
		asked += 2
		eventually(t, patience, func() string {
			if got := len(d.transfers(t, byTest)); got < asked {
				return fmt.Sprintf("%d transfers of the test are logged, want %d", got, asked)
			}
			return ""
		})
		return incremental
	}
	if follow() {
		t.Fatal("the first transfer is a difference")
	}
	whole := len(client.records) + 1
	wholes := func() (n int) {
		for _, records := range d.transfers(t, bySecondary) {
			if records >= whole/2 {
				n++
			}
		}
		return n
	}
	steps := []struct {
		name   string
		change func()
		whole  bool // the secondaries need the whole zone
	}{
		{"a change", func() {}, false},
		{"one more", func() {
			mustUpsert(t, o, fixtureService(t, "new", "new.fed.example", []string{"192.0.2.200:443", "192.0.2.201:443"}, []string{"v1 HTTPS", "v2 TCP"}))
		}, false},
		{"one less", func() { o.Delete("new"); o.Delete("s7") }, false},
		{"a host of the zone", func() {
			mustUpsert(t, o, fixtureService(t, "alias", "alias.fed.example", []string{"moving.fed.example:443"}, []string{"v1 HTTPS"}))
		}, false},
		{"an owner lost and back", func() {
			registry := o.Registry
			o.stop()
			d.awaitStale(t, "s1.fed.example")
			o = serveRegistry(t, p.owner, o.address, registry, 1)
			d.awaitComplete(t, "nope.fed.example")
		}, false},
		{"a reload", func() { d.reload(t, corefile) }, true},
		{"after a reload", func() {}, false},
	}
	for _, step := range steps {
		t.Run(step.name, func(t *testing.T) {
			before := wholes()
			step.change()
			touch()
			if step.whole {
				follow()
				touch() // the first serials of a configuration are not kept
			}
			if incremental := follow(); !step.whole && !incremental {
				t.Error("the whole zone")
			}
			if got := wholes() - before; !step.whole && got != 0 {
				t.Errorf("%d whole zones were transferred", got)
			}
		})
	}
	knot.awaitLog(t, 4, "IXFR, incoming", "finished")
	t.Run("a burst is few notifications", func(t *testing.T) {
		const heard = "notify, incoming"
		before, begin := knot.log.Count(heard), time.Now()
		for range 200 {
			n++
			mustUpsert(t, o, fixtureService(t, "moving", "moving.fed.example", []string{fmt.Sprintf("192.0.2.9:%d", 1000+n)}, []string{"v1 HTTPS"}))
		}
		settledSerial(t, d.address, "fed.example")
		follow()
		if got, most := knot.log.Count(heard)-before, 2+int(time.Since(begin)/time.Second); got == 0 || got > most {
			t.Errorf("%d NOTIFY messages for one burst, want 1 to %d", got, most)
		}
	})
	t.Run("kdig", func(t *testing.T) {
		serial := client.serial
		touch()
		follow()
		host, port, _ := net.SplitHostPort(d.address)
		output, err := exec.Command(program(t, "kdig", "knot-dnsutils"), "@"+host, "-p", port, "+tcp", "fed.example", fmt.Sprintf("IXFR=%d", serial)).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
		if soas := strings.Count(string(output), "hostmaster.fed.example."); soas != 4 || !strings.Contains(string(output), fmt.Sprint(" ", serial, " ")) {
			t.Errorf("%d SOA:\n%s", soas, output)
		}
	})
	t.Run("over UDP", func(t *testing.T) {
		m := new(dns.Msg)
		m.SetIxfr("fed.example.", client.serial, "ns.dns.fed.example.", "hostmaster.fed.example.")
		reply, err := exchangeRaw("udp", d.address, m)
		if err != nil || reply.Rcode != dns.RcodeRefused {
			t.Errorf("%v %v", reply, err)
		}
	})
	if t.Failed() {
		t.Logf("records by transfer of the secondaries: %v", d.transfers(t, bySecondary))
	}
}
