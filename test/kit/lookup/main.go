// Command lookup asks a DNS server and prints the answers, so that nobody needs dig
// to try this project out. With -free it checks instead whether addresses are free.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/miekg/dns"
)

const (
	timeout  = 2 * time.Second        // of one query
	interval = 100 * time.Millisecond // between two queries
)

const usage = `usage: lookup [-server HOST:PORT] [-wait DURATION] [-edns] NAME TYPE...
       lookup -free HOST:PORT...
`

func main() {
	server := flag.String("server", "127.0.0.1:1053", "`HOST:PORT` to ask")
	wait := flag.Duration("wait", 0, "repeat the query for up to this `DURATION`, until there is an answer")
	edns := flag.Bool("edns", false, "send EDNS, so that the server can say why it has no answer")
	free := flag.Bool("free", false, "send no query, but fail when one of the addresses is in use, over TCP or UDP")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() < 1 || flag.NArg() < 2 && !*free {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	var err error
	if *free {
		err = checkFree(ctx, flag.Args())
	} else {
		err = lookup(ctx, *server, *wait, *edns, dns.Fqdn(flag.Arg(0)), flag.Args()[1:])
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lookup:", err)
		os.Exit(1)
	}
}

// checkFree returns an error for each address that is not free over TCP and UDP.
func checkFree(ctx context.Context, addresses []string) error {
	var config net.ListenConfig
	var errs []error
	for _, address := range addresses {
		listener, err := config.Listen(ctx, "tcp", address)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		conn, err := config.ListenPacket(ctx, "udp", address)
		if err == nil {
			err = conn.Close()
		}
		errs = append(errs, err, listener.Close())
	}
	return errors.Join(errs...)
}

// lookup asks for each of the types of a name and prints the replies. It returns an
// error for each type without an answer.
func lookup(ctx context.Context, server string, wait time.Duration, edns bool, name string, types []string) error {
	var errs []error
	for _, text := range types {
		qtype, ok := dns.StringToType[strings.ToUpper(text)]
		if !ok {
			return fmt.Errorf("%q is not a record type, such as A or SRV", text)
		}
		question := new(dns.Msg).SetQuestion(name, qtype)
		if edns {
			question.SetEdns0(dns.DefaultMsgSize, false)
		}
		reply, err := retry(ctx, server, wait, question)
		if err != nil {
			return err
		}
		show(reply)
		if len(reply.Answer) == 0 {
			errs = append(errs, fmt.Errorf("%s has no %s: %s", name, text, dns.RcodeToString[reply.Rcode]))
		}
	}
	return errors.Join(errs...)
}

// retry asks until there is an answer or the time is up, and returns the last reply.
func retry(ctx context.Context, server string, wait time.Duration, question *dns.Msg) (*dns.Msg, error) {
	deadline := time.Now().Add(wait)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		reply, err := exchange(ctx, server, question)
		if err == nil && len(reply.Answer) > 0 || !time.Now().Before(deadline) {
			return reply, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-ticker.C:
		}
	}
}

// exchange asks over UDP, and again over TCP when the reply was truncated.
func exchange(ctx context.Context, server string, question *dns.Msg) (*dns.Msg, error) {
	reply, _, err := (&dns.Client{Timeout: timeout}).ExchangeContext(ctx, question, server)
	if err == nil && reply.Truncated {
		reply, _, err = (&dns.Client{Net: "tcp", Timeout: timeout}).ExchangeContext(ctx, question, server)
	}
	return reply, err
}

// show prints the question, the code, the records and the extended errors of a
// reply.
func show(reply *dns.Msg) {
	question := reply.Question[0]
	fmt.Printf("\n; %s %s: %s\n", question.Name, dns.TypeToString[question.Qtype], dns.RcodeToString[reply.Rcode])
	for _, section := range [][]dns.RR{reply.Answer, reply.Ns, reply.Extra} {
		for _, rr := range section {
			if opt, ok := rr.(*dns.OPT); ok {
				showErrors(opt)
				continue
			}
			fmt.Println(rr)
		}
	}
}

// showErrors prints the extended errors of RFC 8914.
func showErrors(opt *dns.OPT) {
	for _, option := range opt.Option {
		if ede, ok := option.(*dns.EDNS0_EDE); ok {
			fmt.Println("; EDE", ede)
		}
	}
}
