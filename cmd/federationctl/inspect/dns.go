package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/federation/wire/packed"
)

// How DNS is asked.
const (
	queriesAtOnce = 16
	maxRate       = 1_000_000 // a second
	attempts      = 4         // of one query over UDP
	payload       = 1232      // octets of an answer over UDP, as DNS Flag Day 2020 has it
	namesAtOnce   = 256       // that are asked for before their differences are written
)

// DNS is a server that is asked for what a catalog has.
type DNS struct {
	address string
	timeout time.Duration
	every   time.Duration
}

// NewDNS returns the server at an address, a host with or without a port. It waits so long
// for each answer, and asks no more often than so many times a second.
func NewDNS(address string, timeout time.Duration, rate int) (*DNS, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		host, port = strings.TrimSuffix(strings.TrimPrefix(address, "["), "]"), "53"
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil || host == "" || strings.ContainsAny(host, " /") {
		return nil, fmt.Errorf("%q is not a server such as 192.0.2.53 or localhost:1053", address)
	}
	switch {
	case timeout <= 0:
		return nil, fmt.Errorf("a timeout of %v leaves no time for an answer", timeout)
	case rate < 1:
		return nil, fmt.Errorf("%d queries a second are too few", rate)
	case rate > maxRate:
		return nil, fmt.Errorf("%d queries a second are too many, %d are the most", rate, maxRate)
	}
	return &DNS{net.JoinHostPort(host, port), timeout, time.Second / time.Duration(rate)}, nil
}

// Compared is what a comparison with DNS was about.
type Compared struct {
	Names   int // of services and instances
	Left    int // services that cannot be published in DNS, and are left out
	Hosts   int // sets of addresses of which those behind hosts are not compared
	Differs bool
}

// types are the types of the records that are compared.
var types = []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeTXT}

// Compare asks the server for the records of every service and every instance of the
// catalog, and writes what differs, in the order of the names: - is a record that DNS
// should have, + one that it should not, and ! an answer that is an error. The TTL does not
// count, and neither do addresses behind endpoints that are host names. It fails when the
// server does not answer. said is called with how many names are done, of how many.
func (d *DNS) Compare(ctx context.Context, w io.Writer, catalog *Catalog, said func(done, names int)) (Compared, error) {
	root, err := federation.ParseOrigin(".")
	if err != nil {
		return Compared{}, fmt.Errorf("the root: %w", err)
	}
	config := zone.Config{Owners: []zone.Owner{{ID: "catalog", Origins: []federation.FQDN{root}, TTL: 1, NegativeTTL: 1}}}
	builder := zone.NewBuilder(config, nil)
	builder.SetStatus(0, zone.Status{Live: 1, Known: true})
	var result Compared
	for _, encoded := range catalog.services {
		service := encoded.Service()
		if _, invalid := config.Admit(0, service.FQDN); invalid != nil {
			result.Left++
			continue
		}
		builder.Put(builder.Prepare(0, packed.Of(service), service), packed.Service{}, 1, 0)
	}
	now := time.Now()
	published := builder.Publish(now)
	names := namesOf(published, now)
	result.Names = len(names)

	ticker := time.NewTicker(d.every)
	defer ticker.Stop()
	done := 0
	for batch := range slices.Chunk(names, namesAtOnce) {
		said(done, len(names))
		done += len(batch)
		expected := make([]question, 0, len(batch)*len(types))
		for _, name := range batch {
			for _, qtype := range types {
				expected = append(expected, expect(published, name, qtype, now))
			}
		}
		if err := d.ask(ctx, ticker.C, expected); err != nil {
			return result, err
		}
		for i := range expected {
			q := &expected[i]
			if q.partial {
				result.Hosts++
			}
			if text := q.differences(); text != "" {
				result.Differs = true
				if _, err := io.WriteString(w, text); err != nil {
					return result, err //nolint:wrapcheck // of the caller's own writer
				}
			}
		}
	}
	return result, nil
}

// namesOf returns the names of the services and instances of a zone, in canonical order.
func namesOf(z *zone.Zone, now time.Time) []string {
	var all []domain.Ordered
	for name := range z.Sample(".", now) {
		r := z.Lookup(name, dns.TypeTXT, now)
		switch r.Match().Role {
		case domain.Service, domain.Instance, domain.Apex:
			all = append(all, domain.Order(name))
		default: // what follows from these
		}
	}
	domain.Sort(all)
	names := make([]string, len(all))
	for i := range all {
		names[i] = all[i].Name
	}
	return slices.Compact(names)
}

// question is one question with what should be answered and what is.
type question struct {
	name    string
	qtype   uint16
	want    []string // data of records
	partial bool     // hosts may add further addresses
	got     []string
	trouble string // an answer that is an error
}

// expect returns what the zone answers.
func expect(z *zone.Zone, name string, qtype uint16, now time.Time) question {
	q := question{name: name, qtype: qtype}
	r := z.Lookup(name, qtype, now)
	_, follows := r.Followed()
	q.partial = follows && (qtype == dns.TypeA || qtype == dns.TypeAAAA)
	if r.Kind == zone.Success || r.Kind == zone.Indirect {
		q.want = rdata(reply.Answer(nil, &r, name, 0), qtype)
	}
	return q
}

// rdata returns the data of the records of a type, each once, in order.
func rdata(rrs []dns.RR, qtype uint16) []string {
	var data []string
	for _, rr := range rrs {
		if header := rr.Header(); header.Rrtype == qtype {
			data = append(data, strings.TrimPrefix(rr.String(), header.String()))
		}
	}
	slices.Sort(data)
	return slices.Compact(data)
}

// differences returns what differs, a record a line.
func (q *question) differences() string {
	var b strings.Builder
	line := func(mark, what string) {
		fmt.Fprintf(&b, "%s %s %s %s\n", mark, short(q.name), dns.TypeToString[q.qtype], federation.Printable(what))
	}
	if q.trouble != "" {
		line("!", q.trouble)
		return b.String()
	}
	for _, data := range q.want {
		if _, found := slices.BinarySearch(q.got, data); !found {
			line("-", data)
		}
	}
	for _, data := range q.got {
		if _, found := slices.BinarySearch(q.want, data); !found && !q.partial {
			line("+", data)
		}
	}
	return b.String()
}

// ask fills in what the server answers, one question at each tick. It returns the first
// error, of a server that does not answer.
func (d *DNS) ask(ctx context.Context, tick <-chan time.Time, questions []question) error {
	asking, working := errgroup.WithContext(ctx)
	asking.SetLimit(queriesAtOnce)
	for i := range questions {
		select {
		case <-working.Done():
		case <-tick:
		}
		if working.Err() != nil {
			break
		}
		asking.Go(func() error { return d.query(working, &questions[i]) })
	}
	if err := asking.Wait(); err != nil {
		return err //nolint:wrapcheck // it names the server
	}
	return ctx.Err() //nolint:wrapcheck // who has canceled it knows why
}

// query asks one question, again where an answer is lost, and over TCP where it does not
// fit.
func (d *DNS) query(ctx context.Context, q *question) error {
	message := new(dns.Msg).SetQuestion(q.name, q.qtype)
	message.SetEdns0(payload, false)
	network, transport := "udp", "udp"
	var last error
	for range attempts {
		client := dns.Client{Net: network, Timeout: d.timeout}
		answer, _, err := client.ExchangeContext(ctx, message, d.address)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx) //nolint:wrapcheck // the first error, or why the command ends
		case err != nil:
			last, transport = err, network
		case len(answer.Question) != 1 || answer.Question[0].Qtype != q.qtype || !strings.EqualFold(answer.Question[0].Name, q.name):
			last, transport = errors.New("the answer is to another question"), network
		case answer.Truncated && network == "udp":
			network = "tcp"
		default:
			q.take(answer)
			return nil
		}
	}
	last = cmp.Or(last, errors.New("truncated"))
	return fmt.Errorf("server %s does not answer %s %s over %s: %s", d.address, short(q.name), dns.TypeToString[q.qtype], transport, federation.Printable(last.Error()))
}

// take notes what is answered.
func (q *question) take(answer *dns.Msg) {
	if answer.Rcode != dns.RcodeSuccess && answer.Rcode != dns.RcodeNameError {
		q.trouble = cmp.Or(dns.RcodeToString[answer.Rcode], fmt.Sprintf("RCODE%d", answer.Rcode))
		if option := answer.IsEdns0(); option != nil {
			for _, o := range option.Option {
				if e, ok := o.(*dns.EDNS0_EDE); ok {
					q.trouble += ", " + e.String()
				}
			}
		}
		return
	}
	var own []dns.RR
	for _, rr := range answer.Answer {
		if strings.EqualFold(rr.Header().Name, q.name) {
			own = append(own, rr)
		}
	}
	q.got = rdata(own, q.qtype)
}
