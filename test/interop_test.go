package test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
)

// The peers in this file stand for another implementation, which knows the protocol
// only from its public definitions. They build messages from field numbers and send
// them as bytes, and use neither the generated stubs nor package wire.

// str, msg and num return an encoded field of a message.
func str(number protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), s)
}

func msg(number protowire.Number, fields ...[]byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), bytes.Join(fields, nil))
}

func num(number protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), v)
}

// read returns the fields of a message by number: strings and messages as their
// bytes, numbers in decimal.
func read(t testing.TB, message string) map[protowire.Number]string {
	t.Helper()
	fields := make(map[protowire.Number]string)
	for b := []byte(message); len(b) > 0; {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			t.Fatalf("malformed message %q", message)
		}
		b = b[n:]
		switch kind {
		case protowire.BytesType:
			var value []byte
			value, n = protowire.ConsumeBytes(b)
			fields[number] = string(value)
		case protowire.VarintType:
			var value uint64
			value, n = protowire.ConsumeVarint(b)
			fields[number] = strconv.FormatUint(value, 10)
		default:
			n = -1
		}
		if n < 0 {
			t.Fatalf("malformed message %q", message)
		}
		b = b[n:]
	}
	return fields
}

// dialect describes the messages of one version of the API.
type dialect struct {
	version string
	wrapped bool // a request is field 1 of a message of both directions, a response field 2

	// Fields of a response, and the values of its operation.
	idField, resourceField, operationField protowire.Number // 0: there is no such field
	create, update, remove                 uint64

	// Fields of the context in a request and in a response; 0: there is no such field.
	requestContext, responseContext protowire.Number
}

var dialects = []dialect{
	{
		version: "v1alpha1", resourceField: 3, operationField: 4,
		create: 1, update: 2, remove: 3,
	},
	{
		version: "v1alpha2", wrapped: true, idField: 3, resourceField: 4, operationField: 5,
		create: 1, update: 1, remove: 2, requestContext: 4, responseContext: 6,
	},
}

func (d *dialect) url() string {
	return "type.googleapis.com/federation.types." + d.version + ".FederatedService"
}

func (d *dialect) service() string {
	return "federation.resourcediscovery." + d.version + ".DiscoveryService"
}

// request returns a request with these fields, followed by the context.
func (d *dialect) request(context string, fields ...[]byte) []byte {
	return d.message(1, d.requestContext, context, fields)
}

// response returns a response with these fields, followed by the context.
func (d *dialect) response(context string, fields ...[]byte) []byte {
	return d.message(2, d.responseContext, context, fields)
}

func (d *dialect) message(wrapper, contextField protowire.Number, context string, fields [][]byte) []byte {
	if contextField != 0 && context != "" {
		fields = append(fields, str(contextField, context))
	}
	if d.wrapped {
		return msg(wrapper, fields...)
	}
	return bytes.Join(fields, nil)
}

// unwrap returns the fields of a request (wrapper 1) or a response (wrapper 2).
func (d *dialect) unwrap(t testing.TB, wrapper protowire.Number, message []byte) map[protowire.Number]string {
	t.Helper()
	fields := read(t, string(message))
	if !d.wrapped {
		return fields
	}
	inner, ok := fields[wrapper]
	if !ok || len(fields) != 1 {
		t.Fatalf("message is %x, want field %d and no other", message, wrapper)
	}
	return read(t, inner)
}

// resource returns the field of a response that holds a service with these fields.
func (d *dialect) resource(fields ...[]byte) []byte {
	return msg(d.resourceField, str(1, d.url()), msg(2, fields...))
}

// offer returns the fields of a complete service.
func (d *dialect) offer(name, fqdn, address string) []byte {
	endpoint := msg(9, str(1, address), num(2, 443))
	san := "spiffe://owner.example/" + name
	if d.version == "v1alpha1" {
		return bytes.Join([][]byte{str(1, name), str(5, fqdn), str(6, name), str(7, san), str(8, "HTTPS"), endpoint}, nil)
	}
	return bytes.Join([][]byte{str(1, name), str(5, fqdn), endpoint, str(10, san), msg(11, str(1, "v1"), str(2, "HTTPS"))}, nil)
}

// identity returns the one field of a service that identifies it.
func (d *dialect) identity(name string) []byte {
	if d.version == "v1alpha1" {
		return str(6, name)
	}
	return str(1, name)
}

// rawCodec sends and receives messages as bytes.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(data)
	return nil
}

// rawStream is one side of a stream. Only the goroutine of the test uses it.
type rawStream struct {
	stream interface {
		SendMsg(m any) error
		RecvMsg(m any) error
	}
	abort func() // ends a call that blocks

	// Of the side of an owner:
	asked  metadata.MD // what the consumer has sent in its header
	header func(md metadata.MD) error
	lose   func() // ends the stream with Unavailable
}

func (s *rawStream) send(t testing.TB, message []byte) {
	t.Helper()
	must.Do(t, s.stream.SendMsg(&message))
}

func (s *rawStream) receive(t testing.TB) []byte {
	t.Helper()
	defer time.AfterFunc(await.Patience, s.abort).Stop()
	var message []byte
	must.Do(t, s.stream.RecvMsg(&message))
	return message
}

// keyPair reads a certificate with its key, and the authorities, from files.
func keyPair(t testing.TB, files mtls.Files) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	certificate := must.Get(tls.LoadX509KeyPair(files.Cert, files.Key))(t)
	ca := must.Get(os.ReadFile(files.CA))(t)
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		t.Fatal("no certificate in the CA file")
	}
	return certificate, roots
}

// foreignOwner serves one version of the API, and hands its streams to the test.
type foreignOwner struct {
	address string
	streams chan *rawStream
}

func startForeignOwner(t testing.TB, p *place.Place, d *dialect) *foreignOwner {
	t.Helper()
	certificate, roots := keyPair(t, p.Files("owner"))
	server := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(&tls.Config{
			Certificates: []tls.Certificate{certificate}, ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert,
		})),
		grpc.ForceServerCodec(rawCodec{}),
	)
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	o := &foreignOwner{address: listener.Addr().String(), streams: make(chan *rawStream, 16)}
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: d.service(),
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: "EstablishStream", ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error {
				asked, _ := metadata.FromIncomingContext(stream.Context())
				lost := make(chan struct{})
				o.streams <- &rawStream{
					stream: stream, abort: server.Stop, asked: asked, header: stream.SendHeader, lose: sync.OnceFunc(func() { close(lost) }),
				}
				select {
				case <-stream.Context().Done():
					return nil
				case <-lost:
					return status.Error(codes.Unavailable, "lost")
				}
			},
		}},
	}, o)
	must.Run(t, func(ctx context.Context) error {
		defer context.AfterFunc(ctx, server.Stop)()
		return server.Serve(listener)
	})
	return o
}

// accept returns the next stream that a consumer opens.
func (o *foreignOwner) accept() *rawStream {
	return <-o.streams // go test ends a test that waits for ever
}

// TestForeignOwner subscribes CoreDNS to an owner of another implementation, which
// behaves as the public reference implementation does: its nonces are empty, it
// does not mark the end of its catalog, it waits for one request after each
// response, and some of its services have neither an fqdn nor endpoints.
func TestForeignOwner(t *testing.T) {
	t.Parallel()
	for i := range dialects {
		d := &dialects[i]
		t.Run(d.version, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			o := startForeignOwner(t, p, d)
			c := startCoreDNS(t, federationBlock(p, "fed.example", "", o.address+" api "+d.version+"\nsettle 1s"))
			stream := o.accept()
			if ours := ownHeaders(stream.asked); !slices.Equal(ours, []string{"federation-catalog-end", "federation-window"}) {
				t.Errorf("a consumer that holds nothing sends the headers %v", ours)
			}

			first := stream.receive(t)
			session := d.unwrap(t, 1, first)[d.requestContext]
			if d.requestContext != 0 && session == "" {
				t.Errorf("the first request %x has no context", first)
			}
			if want := d.request(session, str(1, d.url())); !bytes.Equal(first, want) {
				t.Fatalf("the first request is\n%x, want\n%x", first, want)
			}
			accepted := func(nonce string, fields ...[]byte) {
				t.Helper()
				answer := [][]byte{str(1, d.url())}
				if nonce != "" {
					answer = append(answer, str(2, nonce))
					fields = append([][]byte{str(1, nonce)}, fields...)
				}
				stream.send(t, d.response(session, fields...))
				want := d.request(session, append(answer, msg(3))...)
				if got := stream.receive(t); !bytes.Equal(got, want) {
					t.Fatalf("the answer is\n%x, want\n%x", got, want)
				}
			}
			refused := func(rule string, fields ...[]byte) {
				t.Helper()
				stream.send(t, d.response(session, fields...))
				answer := d.unwrap(t, 1, stream.receive(t))
				said := read(t, answer[3])
				if said[1] != "3" || !strings.Contains(said[2], rule) {
					t.Fatalf("the status is %q, want code 3 and %q", said, rule)
				}
			}
			url := str(2, d.url())
			operation := func(n uint64) []byte { return num(d.operationField, n) }

			sample := append(d.identity("sample"), str(2, "as the samples are")...)
			refused(`service "sample": `, url, d.resource(sample), operation(d.create))
			accepted("", url, d.resource(d.offer("web", "web.fed.example", "192.0.2.1")), operation(d.create))
			refused(`service "sample": `, url, d.resource(sample), operation(d.update))
			refused(`service "web": operation: `, url, d.resource(d.offer("web", "web.fed.example", "192.0.2.9")), operation(9))
			accepted("", url) // a heartbeat
			accepted("n-6", url, d.resource(d.offer("api", "api.fed.example", "192.0.2.2")), operation(d.create))
			c.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
			c.awaitAnswer(t, "api.fed.example", dns.TypeA, "NOERROR 192.0.2.2")
			c.awaitAnswer(t, "nope.fed.example", dns.TypeA, "NXDOMAIN") // complete after the silence of settle

			accepted("", d.resource(d.offer("web", "web.fed.example", "192.0.2.3")), operation(d.update)) // without resource_url
			c.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.3")
			refused(`service "web": endpoints[0].address: `,
				url, d.resource(d.offer("web", "web.fed.example", "192.0.2.0/24")), operation(d.update))
			accepted("", url, d.resource(d.identity("api")), operation(d.remove))
			c.awaitAnswer(t, "api.fed.example", dns.TypeA, "NXDOMAIN")
			c.awaitAnswer(t, "_https._tcp.web.fed.example", dns.TypeSRV, "NOERROR 0 100 443 192-0-2-3.addr.web.fed.example.")

			if extra := len(o.streams); extra != 0 {
				t.Errorf("%d more streams were opened, want the first to stay open", extra)
			}
		})
	}
}

// dialForeign connects a consumer of another implementation with an owner until the test
// ends.
func dialForeign(t testing.TB, p *place.Place, address string) *grpc.ClientConn {
	t.Helper()
	certificate, roots := keyPair(t, p.Files("consumer"))
	conn := must.Get(grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			Certificates: []tls.Certificate{certificate}, RootCAs: roots, ServerName: "localhost",
		}))))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// subscribe opens a stream, with these keys and values in its header. It ends with the
// test.
func (d *dialect) subscribe(t testing.TB, conn *grpc.ClientConn, header ...string) (*rawStream, grpc.ClientStream) {
	t.Helper()
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(context.Background(), header...))
	t.Cleanup(cancel)
	client := must.Get(conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
		"/"+d.service()+"/EstablishStream", grpc.ForceCodec(rawCodec{})))(t)
	return &rawStream{stream: client, abort: cancel}, client
}

// ownHeaders returns the keys of a header that are of this project.
func ownHeaders(header metadata.MD) (own []string) {
	for key := range header {
		if strings.HasPrefix(key, "federation-") {
			own = append(own, key)
		}
	}
	slices.Sort(own)
	return own
}

// TestForeignConsumer subscribes a consumer of another implementation to our owner.
// It behaves as the public reference implementation does: its answers have no
// resource_url, every refusal has the code Unavailable, and it acknowledges an
// operation that it does not know.
func TestForeignConsumer(t *testing.T) {
	t.Parallel()
	for i := range dialects {
		d := &dialects[i]
		t.Run(d.version, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			o := startOwner(t, p, offered("api", "192.0.2.1"), offered("web", "192.0.2.2"))

			stream, client := d.subscribe(t, dialForeign(t, p, o.address))

			const session = "the context that the consumer chose"
			stream.send(t, d.request(session, str(1, d.url())))
			// next returns the nonce of the next response, in which nonce and resource_url
			// must be followed by these fields.
			next := func(fields ...[]byte) string {
				t.Helper()
				got := stream.receive(t)
				nonce := d.unwrap(t, 2, got)[1]
				if nonce == "" {
					t.Errorf("response %x has no nonce", got)
				}
				want := d.response(session, append([][]byte{str(1, nonce), str(2, d.url())}, fields...)...)
				if !bytes.Equal(got, want) {
					t.Fatalf("the response is\n%x, want\n%x", got, want)
				}
				return nonce
			}
			about := func(name string, resource []byte, operation uint64) [][]byte {
				var fields [][]byte
				if d.idField != 0 {
					fields = append(fields, str(d.idField, name))
				}
				return append(fields, d.resource(resource), num(d.operationField, operation))
			}
			accept := func(nonce string) { stream.send(t, d.request(session, str(2, nonce), msg(3))) }
			refuse := func(nonce string) {
				stream.send(t, d.request(session, str(2, nonce), msg(3, num(1, 14), str(2, "there is no registry"))))
			}

			refuse(next(about("api", d.offer("api", "api.fed.example", "192.0.2.1"), d.create)...))
			accept(next(about("web", d.offer("web", "web.fed.example", "192.0.2.2"), d.create)...))
			accept(next()) // the end of the catalog
			header := must.Get(client.Header())(t)
			if diff := cmp.Diff([]string{"marked"}, header.Get("federation-catalog-end")); diff != "" {
				t.Errorf("the announcement (-want +got):\n%s", diff)
			}
			additions := []string{"federation-catalog-end", "federation-path"}
			if diff := cmp.Diff(additions, ownHeaders(header)); diff != "" {
				t.Errorf("headers of a stream that resumes nothing (-want +got):\n%s", diff)
			}
			mustUpsert(t, o, offered("web", "192.0.2.3"))
			refuse(next(about("web", d.offer("web", "web.fed.example", "192.0.2.3"), d.update)...))
			o.Delete("api")
			accept(next(about("api", d.identity("api"), d.remove)...))
			mustUpsert(t, o, offered("new", "192.0.2.4"))
			accept(next(about("new", d.offer("new", "new.fed.example", "192.0.2.4"), d.create)...))

			must.Do(t, client.CloseSend())
			var rest []byte
			defer time.AfterFunc(await.Patience, stream.abort).Stop()
			if err := client.RecvMsg(&rest); !errors.Is(err, io.EOF) {
				t.Errorf("the stream ends with %v, want EOF", err)
			}
		})
	}
}

// TestV1Alpha1 follows a service from our owner to CoreDNS in the older version of
// the API: through changes, and through a restart without the owner.
func TestV1Alpha1(t *testing.T) {
	t.Parallel()
	web := func(address string) *federation.Service {
		s := offered("web", address)
		s.Instances = append(s.Instances, federation.Instance{ID: "v2", Protocol: federation.GRPC})
		return s
	}
	p := newPlace(t)
	o := startOwner(t, p, offered("web", "192.0.2.1"))
	corefile := federationBlock(p, "fed.example", "", o.address+" api v1alpha1\nsettle 10m\npersist "+p.Path("catalog"))
	d := startCoreDNS(t, corefile)
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
	d.awaitAnswer(t, "nope.fed.example", dns.TypeA, "NXDOMAIN") // the end is marked
	mustUpsert(t, o, web("192.0.2.2"))
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.2")

	// What cannot be expressed any more is stale until it can be again, and is not denied.
	secret := web("192.0.2.3")
	secret.SANs = nil
	mustUpsert(t, o, secret)
	if got := summary(d.awaitStale(t, "web.fed.example")); got != "NOERROR 192.0.2.2" {
		t.Errorf("the stale answer is %s", got)
	}
	for _, address := range []string{"192.0.2.4", "192.0.2.2"} {
		mustUpsert(t, o, web(address))
		d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR "+address)
	}
	// A restart without the owner gives the same answers from the file.
	must.Do(t, d.Stop())
	o.stop()
	restarted := startCoreDNS(t, corefile)
	restarted.awaitStale(t, "web.fed.example")
	const glue = "192-0-2-2.addr.web.fed.example."
	for _, want := range []struct {
		name  string
		qtype uint16
		text  string
	}{
		{"web.fed.example", dns.TypeA, "NOERROR 192.0.2.2"},
		{"_https._tcp.web.fed.example", dns.TypeSRV, "NOERROR 0 100 443 " + glue},
		{"_grpc._tcp.web.fed.example", dns.TypeSRV, "NOERROR 0 100 443 " + glue},
		{"_http._tcp.web.fed.example", dns.TypeSRV, "NXDOMAIN"},
		{"v1.web.fed.example", dns.TypeA, "NXDOMAIN"}, // instances have no names
		{
			"web.fed.example", dns.TypeTXT,
			`NOERROR "txtvers=1" "name=web" "san=spiffe://owner.example/web"` +
				` "txtvers=1" "protocol=GRPC" "sni=web" "txtvers=1" "protocol=HTTPS" "sni=web"`,
		},
	} {
		restarted.awaitAnswer(t, want.name, want.qtype, want.text)
	}
}
