package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// How DNS is asked.
const (
	maxRate  = 1_000_000 // a second
	attempts = 4         // of one query over UDP
	payload  = 1232      // octets of an answer over UDP, as DNS Flag Day 2020 has it
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

// question is one question with what is answered.
type question struct {
	name    string
	qtype   uint16
	got     []string // data of records
	trouble string   // an answer that is an error
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

// short returns a name without its final dot.
func short(name string) string { return plain(strings.TrimSuffix(name, ".")) }

// NewQuestion returns the name and the type to ask for, as people write them: the final dot of
// the name may be missing, and the type is A where it is empty.
func NewQuestion(name, qtype string) (string, uint16, error) {
	number, known := dns.StringToType[strings.ToUpper(cmp.Or(qtype, "A"))]
	if !known {
		return "", 0, fmt.Errorf("%q is not a type of records, such as A, AAAA, SRV or TXT", qtype)
	}
	if _, ok := dns.IsDomainName(name); !ok || name == "" {
		return "", 0, fmt.Errorf("%q is not a name", name)
	}
	return dns.Fqdn(strings.ToLower(name)), number, nil
}

// Wait asks the server at each interval until it has records of the name and the type, which it
// returns, or, with gone, until it says that there are none. Said is called with what the server
// says instead, when that changes. It fails when ctx ends, with its cause.
func (d *DNS) Wait(ctx context.Context, name string, qtype uint16, gone bool, said func(string)) ([]string, error) {
	ticker := time.NewTicker(d.every)
	defer ticker.Stop()
	last := ""
	for {
		q := question{name: name, qtype: qtype}
		var now string
		switch err := d.query(ctx, &q); {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx) //nolint:wrapcheck // the caller has set it
		case err != nil:
			now = err.Error()
		case q.trouble != "":
			now = federation.Printable(q.trouble)
		case gone == (len(q.got) == 0):
			return q.got, nil
		case gone:
			now = strings.Join(q.got, ", ")
		default:
			now = "no records"
		}
		if now != last {
			last = now
			said(now)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx) //nolint:wrapcheck // the caller has set it
		}
	}
}
