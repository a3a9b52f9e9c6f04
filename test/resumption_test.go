package test

import (
	"encoding/base64"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// The peers in this file resume as docs/protocol.md describes it; like those of
// interop_test.go they are of another implementation.

// handCatalog is what a stream has brought up to the end of the catalog.
type handCatalog struct {
	accepted string            // the response header, if there is one
	sent     map[string][]byte // the values of the resources, by the names of services
}

// download subscribes a consumer of another implementation, acknowledges everything up to
// the end of the catalog, and leaves.
func (d *dialect) download(t testing.TB, conn *grpc.ClientConn, header ...string) handCatalog {
	t.Helper()
	stream, client := d.subscribe(t, conn, header...)
	defer stream.abort()
	const session = "of the resuming consumer"
	stream.send(t, d.request(session, str(1, d.url())))
	got := handCatalog{sent: make(map[string][]byte)}
	for {
		response := d.unwrap(t, 2, stream.receive(t))
		resource, ok := response[d.resourceField]
		if !ok {
			break
		}
		value := read(t, resource)[2]
		var identity protowire.Number = 1
		if d.version == "v1alpha1" {
			identity = 6
		}
		name := read(t, value)[identity]
		if _, again := got.sent[name]; again || response[d.operationField] != strconv.FormatUint(d.create, 10) {
			t.Errorf("%q is sent again: %v, with the operation %s", name, again, response[d.operationField])
		}
		got.sent[name] = []byte(value)
		stream.send(t, d.request(session, str(2, response[1]), msg(3)))
	}
	md := must.Get(client.Header())(t)
	if values := md.Get("federation-resume"); len(values) == 1 {
		got.accepted = values[0]
	} else if len(values) > 1 {
		t.Errorf("the response has the headers %q", values)
	}
	return got
}

// adopt returns what a consumer holds at the end of the catalog, of what it held before.
func (c handCatalog) adopt(t testing.TB, held map[string][]byte, buckets int) map[string][]byte {
	t.Helper()
	if c.accepted == "" {
		return c.sent
	}
	selected := selectedByHand(t, c.accepted, buckets)
	now := maps.Clone(c.sent)
	for name, value := range held {
		if !slices.Contains(selected, bucketByHand(name, buckets)) {
			now[name] = value
		}
	}
	for name := range c.sent {
		if !slices.Contains(selected, bucketByHand(name, buckets)) {
			t.Errorf("%q is sent, of a bucket that is not selected", name)
		}
	}
	return now
}

// offered returns a service that both versions of the API can express.
func offered(name, address string) *federation.Service {
	s := simpleService(name, name+".fed.example", address)
	s.SANs = []string{"spiffe://owner.example/" + name}
	return s
}

// FuzzLyingConsumer comes back to our owner with any header, as a consumer of another
// implementation, written from docs/protocol.md: with the digests of other catalogs, in any
// number, and something else behind some of them. Whatever it is, the owner sends each bucket that
// differs as a whole, and no other one. A consumer that holds what it says has the catalog then.
func FuzzLyingConsumer(f *testing.F) {
	f.Add(uint64(1), uint8(0), "")
	f.Add(uint64(2), uint8(0x81), "")
	f.Add(uint64(3), uint8(0x84), "accepted 2/QA")
	for i := range uint8(20) {
		f.Add(uint64(i), i, "")
		if i%4 == 3 {
			f.Add(uint64(i), 0x80|i, strings.Repeat("A", int(i)))
		}
	}
	const services = 30
	p, registry := newPlace(f), registry.New()
	for i := range services {
		mustUpsert(f, registry, offered(fmt.Sprintf("s%d", i), "192.0.2.1"))
	}
	conn := dialForeign(f, p, serveRegistry(f, p, loopback.Address(f), registry, 256).address)
	f.Fuzz(func(t *testing.T, seed uint64, kind uint8, header string) {
		if strings.ContainsFunc(header, func(r rune) bool { return r <= ' ' || r > '~' }) || len(header) > 12_000 {
			return // no such header is sent, or it is refused by gRPC
		}
		random := rand.New(rand.NewPCG(seed, 0))
		for range random.IntN(3) {
			mustUpsert(t, registry, offered(fmt.Sprintf("s%d", random.IntN(services)), fmt.Sprintf("192.0.2.%d", random.IntN(200))))
		}
		d, buckets := &dialects[kind&1], 1<<(kind>>1&0x3f%10)
		truth := d.download(t, conn).sent
		held := maps.Clone(truth)
		for range random.IntN(10) {
			name := fmt.Sprintf("s%d", random.IntN(2*services))
			if random.IntN(2) == 0 {
				delete(held, name)
			} else {
				held[name] = d.offer(name, name+".fed.example", "192.0.2.250")
			}
		}
		text, honest := resumeByHand(held, buckets), kind < 0x80
		if !honest {
			text = text[:random.IntN(len(text)+1)] + header
		}
		got := d.download(t, conn, "federation-resume", text)
		if got.accepted == "" {
			if diff := cmp.Diff(truth, got.sent); diff != "" {
				t.Errorf("to %q without a part (-catalog +sent):\n%s", text, diff)
			}
			return
		}
		digests, err := base64.RawStdEncoding.DecodeString(text)
		if err != nil {
			t.Fatalf("%q is accepted: %v", text, err)
		}
		buckets = len(digests) / 16
		selected := selectedByHand(t, got.accepted, buckets)
		for i, digest := range digestsByHand(truth, buckets) {
			if differs := digest != string(digests[16*i:16*(i+1)]); differs != slices.Contains(selected, i) {
				t.Errorf("bucket %d differs: %t, and is not or is sent", i, differs)
			}
		}
		whole := maps.Clone(truth)
		maps.DeleteFunc(whole, func(name string, _ []byte) bool { return !slices.Contains(selected, bucketByHand(name, buckets)) })
		if diff := cmp.Diff(whole, got.sent); diff != "" {
			t.Errorf("of the buckets %v (-catalog +sent):\n%s", selected, diff)
		}
		if diff := cmp.Diff(truth, got.adopt(t, held, buckets)); honest && diff != "" {
			t.Errorf("after resuming (-owner +consumer):\n%s", diff)
		}
	})
}

// TestForeignOwnerResumes lets CoreDNS come back to an owner of another implementation,
// written from docs/protocol.md: one that accepts the digests, and one that does not know
// them.
func TestForeignOwnerResumes(t *testing.T) {
	t.Parallel()
	const services = 200
	d := &dialects[1] // by v1alpha1 it does not ask
	p := newPlace(t)
	o := startForeignOwner(t, p, d)
	c := startCoreDNS(t, federationBlock(p, "fed.example", "", o.address+" api "+d.version+"\nsettle 10m"))
	held := make(map[string][]byte)
	for i := range services {
		name := fmt.Sprintf("s%d", i)
		held[name] = d.offer(name, name+".fed.example", "192.0.2.1")
	}
	// announce sends these services and the end of the catalog.
	announce := func(stream *rawStream, header []string, names ...string) {
		t.Helper()
		session := d.unwrap(t, 1, stream.receive(t))[d.requestContext]
		must.Do(t, stream.header(metadata.Pairs(append(header, "federation-catalog-end", "marked")...)))
		for _, name := range append(names, "") {
			fields := [][]byte{str(1, "n-"+name), str(2, d.url())}
			if name != "" {
				fields = append(fields, d.resource(held[name]), num(d.operationField, d.create))
			}
			stream.send(t, d.response(session, fields...))
			if answer := d.unwrap(t, 1, stream.receive(t)); answer[3] != "" {
				t.Fatalf("the answer to %q has the status %q", name, answer[3])
			}
		}
	}
	live := func(name, want string) {
		t.Helper()
		if m := c.awaitAnswer(t, name+".fed.example", dns.TypeA, want); extendedError(m) >= 0 {
			t.Errorf("%s: the extended error is %d", name, extendedError(m))
		}
	}

	first := o.accept()
	announce(first, nil, slices.Sorted(maps.Keys(held))...)
	live("s3", "NOERROR 192.0.2.1")
	first.lose()

	const buckets = 4 // of 200 services
	second := o.accept()
	if diff := cmp.Diff([]string{resumeByHand(held, buckets)}, second.asked.Get("federation-resume")); diff != "" {
		t.Fatalf("the request header (-by hand +consumer):\n%s", diff)
	}
	held["s3"] = d.offer("s3", "s3.fed.example", "192.0.2.3")
	selected, gone, kept := bucketByHand("s3", buckets), "", ""
	var sent []string
	for name := range held {
		switch bucket := bucketByHand(name, buckets); {
		case bucket != selected:
			kept = name
		case gone == "" && name != "s3":
			gone = name
		default:
			sent = append(sent, name)
		}
	}
	delete(held, gone)
	announce(second, []string{"federation-resume", acceptByHand(buckets, selected)}, sent...)
	live("s3", "NOERROR 192.0.2.3")
	live(kept, "NOERROR 192.0.2.1")
	c.awaitAnswer(t, gone+".fed.example", dns.TypeA, "NXDOMAIN")
	second.lose()

	third := o.accept()
	if diff := cmp.Diff([]string{resumeByHand(held, buckets)}, third.asked.Get("federation-resume")); diff != "" {
		t.Errorf("the request header (-by hand +consumer):\n%s", diff)
	}
	announce(third, nil, "s3") // the end of the whole catalog
	live("s3", "NOERROR 192.0.2.3")
	c.awaitAnswer(t, kept+".fed.example", dns.TypeA, "NXDOMAIN")
}
