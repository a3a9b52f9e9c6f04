package test

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// The peers in this file are written from 'Receipts' in docs/protocol.md, and are, like those
// of interop_test.go, of another implementation.

// report returns a report of a consumer.
func (d *dialect) report(session, nonce, text string) []byte {
	value := msg(3, str(1, "type.googleapis.com/google.protobuf.StringValue"), msg(2, str(1, text)))
	fields := [][]byte{str(1, d.url())}
	if nonce != "" {
		fields = append(fields, str(2, nonce))
	}
	return d.request(session, append(fields, msg(3, str(2, "settled"), value))...)
}

// readReport returns what a request of a consumer reports: that it is none is an error.
func (d *dialect) readReport(t testing.TB, message []byte) (text string) {
	t.Helper()
	request := d.unwrap(t, 1, message)
	said := read(t, request[3])
	detail := read(t, said[3])
	if said[1] != "" || said[2] != "settled" || detail[1] != "type.googleapis.com/google.protobuf.StringValue" {
		t.Fatalf("%q is not a report", message)
	}
	return read(t, detail[2])[1]
}

// receiptConsumer is a consumer that tells receipts.
type receiptConsumer struct {
	*rawStream

	d      *dialect
	client grpc.ClientStream
	taken  bool // whether the owner takes reports
}

const receiptSession = "of the consumer with receipts"

// follow subscribes a consumer, which acknowledges the catalog of one service.
func (d *dialect) follow(t testing.TB, conn *grpc.ClientConn, receipts string) *receiptConsumer {
	t.Helper()
	stream, client := d.subscribe(t, conn, "federation-receipts", receipts)
	c := &receiptConsumer{rawStream: stream, d: d, client: client}
	c.send(t, d.request(receiptSession, str(1, d.url())))
	for range 2 { // the service, and the end of the catalog
		c.answer(t, c.next(t))
	}
	header := must.Get(client.Header())(t)
	c.taken = strings.Join(header.Get("federation-receipts"), ",") == "taken"
	return c
}

// next returns the nonce of the next response.
func (c *receiptConsumer) next(t testing.TB) string {
	t.Helper()
	return c.d.unwrap(t, 2, c.receive(t))[1]
}

// answer answers a response: without fields of a status it is an ACK.
func (c *receiptConsumer) answer(t testing.TB, nonce string, status ...[]byte) {
	t.Helper()
	c.send(t, c.d.request(receiptSession, str(1, c.d.url()), str(2, nonce), msg(3, status...)))
}

// end closes the side of the consumer, and waits for the end of the stream.
func (c *receiptConsumer) end(t testing.TB) {
	t.Helper()
	must.Do(t, c.client.CloseSend())
	defer time.AfterFunc(patience, c.abort).Stop()
	var rest []byte
	if err := c.client.RecvMsg(&rest); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ends with %v, want EOF", err)
	}
}

// asking is an inquiry of an owner into a service that is gone.
type asking struct{ *owner.Inquiry }

func (o *realOwner) gone(name string) asking {
	return asking{o.server.Inquire(owner.Question{Matches: func(s *wire.Encoded) bool { return s.Name() == name }})}
}

// becomes waits until what is said of the one consumer begins with the text, which begins with
// settled, waiting or unknown. The owner has no file: of those before it it says unknown.
func (a asking) becomes(t testing.TB, want string) status.Outstanding {
	t.Helper()
	var of status.Outstanding
	eventually(t, patience, func() string {
		s := a.Look()
		got := "settled"
		for _, of = range s.Missing {
			if of.Consumer == "" {
				continue
			}
			got = "waiting: " + of.Reason
			if of.Unknown {
				got = "unknown: " + of.Reason
			}
			break
		}
		if s.Published > 0 || s.Consumers > 2 || !strings.HasPrefix(got, want) {
			return fmt.Sprintf("it is not %s: %+v", want, s)
		}
		return ""
	})
	return of
}

// TestForeignReceipts has a consumer of another implementation tell our owner what it may hold,
// and asks the owner when a service is gone that it withdraws.
func TestForeignReceipts(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	begin := func(t *testing.T, d *dialect, receipts string) (*realOwner, *receiptConsumer, asking) {
		t.Helper()
		o := startOwner(t, p.owner, "", resumable(t, "web", "192.0.2.1"))
		return o, d.follow(t, dialForeign(t, p.consumer, o.address), receipts), o.gone("web")
	}
	for i := range dialects {
		d := &dialects[i]
		t.Run(d.version+"/acknowledged", func(t *testing.T) {
			t.Parallel()
			o, c, asked := begin(t, d, "hold=3600; ttl=1; holder=A1; later=words")
			if c.taken != (d.version == "v1alpha2") {
				t.Errorf("the owner takes reports: %v", c.taken)
			}
			asked.Look()
			o.Delete("web")
			nonce := c.next(t)
			asked.becomes(t, "waiting: it has yet to acknowledge")
			before := time.Now()
			c.answer(t, nonce)
			asked.becomes(t, "settled")
			if took := time.Since(before); took < time.Second {
				t.Errorf("it is settled after %v, with a TTL of 1 s", took)
			}
		})
		t.Run(d.version+"/refused", func(t *testing.T) {
			t.Parallel()
			o, c, asked := begin(t, d, "holder=A1; ttl=0; hold=3600")
			asked.Look()
			o.Delete("web")
			c.answer(t, c.next(t), num(1, 3), str(2, "not now"))
			asked.becomes(t, "waiting: it refuses")
			mustUpsert(t, o, resumable(t, "web", "192.0.2.2"))
			c.answer(t, c.next(t))
			o.Delete("web")
			c.answer(t, c.next(t))
			asked.becomes(t, "settled")
		})
		t.Run(d.version+"/lost", func(t *testing.T) {
			t.Parallel()
			o, c, asked := begin(t, d, "holder=A1; ttl=10; hold=3600")
			before := time.Now()
			c.abort()
			asked.Look()
			o.Delete("web")
			of := asked.becomes(t, "waiting: it is lost")
			if hold := of.Until.Sub(before); hold < 3610*time.Second || hold > 3610*time.Second+patience || of.Holder != "A1" {
				t.Errorf("the copy %s is held for %v, want an hour and ten seconds", of.Holder, hold)
			}
			d.followEmpty(t, dialForeign(t, p.consumer, o.address), "holder=A1; ttl=0; hold=0")
			asked.becomes(t, "settled")
		})
	}
	d := &dialects[1]
	t.Run("for ever", func(t *testing.T) {
		t.Parallel()
		o, c, asked := begin(t, d, "holder=A1; ttl=10; hold=forever")
		c.abort()
		asked.Look()
		o.Delete("web")
		if of := asked.becomes(t, "waiting: it is lost"); !of.Until.IsZero() {
			t.Errorf("it is held until %v", of.Until)
		}
	})
	t.Run("gone for good", func(t *testing.T) {
		t.Parallel()
		o, c, asked := begin(t, d, "holder=A1; ttl=0; hold=forever")
		c.send(t, d.report(receiptSession, "", "hold=0"))
		c.end(t)
		asked.Look()
		o.Delete("web")
		asked.becomes(t, "settled")
	})
	t.Run("relay", func(t *testing.T) {
		t.Parallel()
		o, c, asked := begin(t, d, "holder=A1; ttl=0; hold=30; relay")
		asked.Look()
		o.Delete("web")
		nonce := c.next(t)
		asked.becomes(t, "waiting: the relay has yet to report")
		c.send(t, d.report(receiptSession, nonce, "hold=60")) // it is not answered yet, and this counts as no nonce
		asked.becomes(t, "waiting: not all of its own consumers")
		c.answer(t, nonce)
		c.send(t, d.report(receiptSession, "", "hold=60; unknown=one; unknown=says nothing"))
		asked.becomes(t, "unknown: one; unknown=says nothing")
		c.send(t, d.report(receiptSession, "", "hold=60"))
		asked.becomes(t, "waiting: not all of its own consumers")
		c.send(t, d.report(receiptSession, nonce, "hold=60"))
		asked.becomes(t, "settled")
		c.send(t, d.report(receiptSession, "", "hold=90"))
		c.end(t)
		asked.becomes(t, "settled")
	})
	t.Run("without receipts", func(t *testing.T) {
		t.Parallel()
		for _, receipts := range []string{
			"", "ttl=1; hold=1", "holder=A1; hold=1", "holder=A1; ttl=1", "holder=A 1; ttl=1; hold=1",
			"holder=" + strings.Repeat("A", 65) + "; ttl=1; hold=1", "holder=A1; ttl=-1; hold=1", "holder=A1; ttl=1; hold=soon", "holder=A1; ttl=forever; hold=1",
		} {
			t.Run(receipts, func(t *testing.T) {
				t.Parallel()
				o, c, asked := begin(t, d, receipts)
				if c.taken {
					t.Error("the owner takes reports")
				}
				asked.Look()
				o.Delete("web")
				c.answer(t, c.next(t))
				asked.becomes(t, "unknown: ")
			})
		}
	})
}

// followEmpty subscribes a consumer, which acknowledges an empty catalog.
func (d *dialect) followEmpty(t testing.TB, conn *grpc.ClientConn, receipts string) {
	t.Helper()
	stream, _ := d.subscribe(t, conn, "federation-receipts", receipts)
	stream.send(t, d.request(receiptSession, str(1, d.url())))
	nonce := d.unwrap(t, 2, stream.receive(t))[1]
	stream.send(t, d.request(receiptSession, str(2, nonce), msg(3)))
}

var foreignHeader = regexp.MustCompile(`^holder=([A-Za-z0-9]{1,64}); ttl=(\d+); hold=(\d+|forever)(; file)?$`)

// TestForeignOwnerTakesReceipts lets CoreDNS tell an owner of another implementation what it may
// hold, in the header and, where the owner takes reports, as it ends.
func TestForeignOwnerTakesReceipts(t *testing.T) {
	t.Parallel()
	d := &dialects[1]
	p := newPKI(t)
	said := func(t *testing.T, stream *rawStream) (holder, ttl, hold string) {
		t.Helper()
		values := stream.asked.Get("federation-receipts")
		if len(values) != 1 {
			t.Fatalf("the headers are %q", values)
		}
		match := foreignHeader.FindStringSubmatch(values[0])
		if match == nil {
			t.Fatalf("the header is %q", values[0])
		}
		return match[1], match[2], match[3]
	}
	// serve sends a catalog of one service, with these headers.
	serve := func(t *testing.T, stream *rawStream, header ...string) {
		t.Helper()
		session := d.unwrap(t, 1, stream.receive(t))[d.requestContext]
		must.Do(t, stream.header(metadata.Pairs(append(header, "federation-catalog-end", "marked")...)))
		for _, fields := range [][][]byte{{d.resource(d.offer("web", "web.fed.example", "192.0.2.1")), num(d.operationField, d.create)}, nil} {
			stream.send(t, d.response(session, append([][]byte{str(1, "n"), str(2, d.url())}, fields...)...))
			if answer := d.unwrap(t, 1, stream.receive(t)); answer[3] != "" {
				t.Fatalf("the answer has the status %q", answer[3])
			}
		}
	}
	for name, c := range map[string]struct {
		taken                 bool
		property, ttl, header string
		want                  string // the report
	}{
		"taken":     {true, "retention 1h\nttl 7\nnegative_ttl 9", "9", "3655", "hold=90"},
		"short":     {true, "retention 1m", "30", "115", "hold=65"},
		"kept":      {true, "retention 0\npersist " + filepath.Join(t.TempDir(), "catalog"), "30", "forever", "hold=forever"},
		"not taken": {false, "retention 1h", "30", "3655", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := startForeignOwner(t, p.owner, d)
			corefile := federationBlock(p, "fed.example", "", o.address+" "+c.property)
			server := startCoreDNS(t, corefile)
			stream := o.accept(t)
			holder, ttl, hold := said(t, stream)
			if ttl != c.ttl || hold != c.header {
				t.Errorf("the header has ttl=%s and hold=%s, want %s and %s", ttl, hold, c.ttl, c.header)
			}
			var header []string
			if c.taken {
				header = []string{"federation-receipts", "taken"}
			}
			serve(t, stream, header...)
			server.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")

			must.Do(t, server.cmd.Process.Signal(syscall.SIGTERM))
			if c.taken {
				if got := d.readReport(t, stream.receive(t)); got != c.want {
					t.Errorf("the report is %q, want %q", got, c.want)
				}
			}
			var rest []byte
			if err := stream.stream.RecvMsg(&rest); !errors.Is(err, io.EOF) {
				t.Errorf("then there is %x, %v", rest, err)
			}
			stream.lose()
			<-server.done
			startCoreDNS(t, corefile)
			again, _, _ := said(t, o.accept(t))
			if kept := strings.Contains(c.property, "persist"); kept != (again == holder) {
				t.Errorf("the copy is called %s, and then %s", holder, again)
			}
		})
	}
}
