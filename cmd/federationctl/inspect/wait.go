package inspect

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
)

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
