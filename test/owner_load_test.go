package test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// full is set by make bench, with nothing else on the machine.
var full = flag.Bool("full", false, "give TestOwnerServesACrowd and TestOwnerMemoryPerConsumer ten times as much, as make bench does")

// loadPatience is patience for many messages on a busy machine.
const loadPatience = 5 * time.Minute

// versioned returns the i-th service of a catalog, with its version as description.
func versioned(t testing.TB, i, version int) *federation.Service {
	t.Helper()
	s := simpleService(t, fmt.Sprintf("s%06d", i), fmt.Sprintf("s%06d.fed.example", i), "192.0.2.1")
	s.Description = strconv.Itoa(version)
	return s
}

// crowd is an owner with many light consumers. Their connections have mutual TLS
// and are in memory, as a process may not have that many sockets.
type crowd struct {
	*registry.Registry
	server      *owner.Server
	listener    *bufconn.Listener
	credentials credentials.TransportCredentials // of a consumer
}

func newCrowd(t *testing.T, window, services int) *crowd {
	t.Helper()
	p := newPKI(t)
	consumer := must.Get(mtls.Load(p.consumer, slog.New(slog.DiscardHandler)))(t)
	c := &crowd{Registry: registry.New(), listener: bufconn.Listen(32 << 10), credentials: consumer.Client("localhost", nil)}
	all := make([]*federation.Service, services)
	for i := range all {
		all[i] = versioned(t, i, 1)
	}
	must.Get(c.Set(all))(t)
	c.server, _ = serveOn(t, c.listener, p.owner, c.Registry, window)
	return c
}

// member is one of the consumers. It keeps only the version of each service.
type member struct {
	versions []int // by service, 0 for none; nil keeps no versions; owned by follow

	arrived func() // is called once the catalog is complete, or will not be; may be nil

	sum      atomic.Int64 // of the versions
	messages atomic.Int64 // responses so far
	ended    atomic.Bool  // the catalog is complete
}

// join subscribes a consumer. It calls follow in a goroutine of its own; a nil
// follow leaves the stream unread.
func (c *crowd) join(t *testing.T, follow func(grpc.ClientStream) error) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///owner",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return c.listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(c.credentials), grpc.WithReadBufferSize(4<<10))
	if err != nil {
		t.Error(err)
		return
	}
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true},
		rdpb.DiscoveryService_EstablishStream_FullMethodName, grpc.ForceCodec(rawCodec{}))
	if err == nil {
		err = stream.SendMsg(rawRequest(""))
	}
	if err != nil {
		t.Error(errors.Join(err, conn.Close()))
		return
	}
	var following sync.WaitGroup
	if follow != nil {
		following.Go(func() {
			if err := follow(stream); err != nil && t.Context().Err() == nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() { conn.Close(); following.Wait() })
}

// follow acknowledges each response until the stream ends. It fails where a service
// goes back to an older version.
func (m *member) follow(stream grpc.ClientStream) error {
	arrived := sync.OnceFunc(func() {
		if m.arrived != nil {
			m.arrived()
		}
	})
	defer arrived()
	for {
		var message []byte
		if err := stream.RecvMsg(&message); err != nil {
			return err
		}
		m.messages.Add(1) // before what all waits for
		response := rawField(message, 2)
		switch id := rawField(response, 3); {
		case len(id) == 0:
			m.ended.Store(true)
			arrived()
		case m.versions != nil:
			i, err := strconv.Atoi(string(id[1:]))
			if err != nil {
				return err
			}
			version, err := strconv.Atoi(string(rawField(rawField(rawField(response, 4), 2), 2)))
			if err != nil {
				return err
			}
			if version < m.versions[i] {
				return fmt.Errorf("service %d has version %d after version %d", i, version, m.versions[i])
			}
			m.sum.Add(int64(version - m.versions[i]))
			m.versions[i] = version
		}
		if err := stream.SendMsg(rawRequest(string(rawField(response, 1)))); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
}

// rawField returns the first field of bytes with the number in a message, or nil.
func rawField(message []byte, number protowire.Number) []byte {
	for len(message) > 0 {
		n, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return nil
		}
		message = message[tag:]
		if n == number && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message)
			return value
		}
		size := protowire.ConsumeFieldValue(n, kind, message)
		if size < 0 {
			return nil
		}
		message = message[size:]
	}
	return nil
}

// rawRequest returns the first request of a stream, or, with a nonce, the ACK of
// the response with that nonce.
func rawRequest(nonce string) *[]byte {
	request := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), wire.ResourceURL)
	if nonce != "" {
		request = protowire.AppendString(protowire.AppendTag(request, 2, protowire.BytesType), nonce)
		request = protowire.AppendBytes(protowire.AppendTag(request, 3, protowire.BytesType), nil) // a status of OK
	}
	message := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), request)
	return &message
}

// heapAtRest returns the size of the heap in bytes, once the garbage of earlier
// tests has been collected.
func heapAtRest(t *testing.T) int64 {
	t.Helper()
	last := heap()
	eventually(t, patience, func() string {
		before := last
		if last = heap(); before-last > 64<<10 {
			return fmt.Sprintf("the heap is still shrinking, from %d to %d bytes", before, last)
		}
		return ""
	})
	return last
}

// TestOwnerServesACrowd lets 100 consumers (1,000 in full) follow a catalog of 1,000 services, of
// which 100 change ten times. Every consumer must get the last version of each
// service, and none may see a service go back to an older one. An owner may leave
// out versions in between, so the number of messages has a lower and an upper bound.
func TestOwnerServesACrowd(t *testing.T) {
	consumers, services, changing, rounds := 100, 1000, 100, 10
	if *full {
		consumers = 1000
	}
	c := newCrowd(t, 64, services)
	members := make([]*member, consumers)
	begin := time.Now()
	slots := make(chan struct{}, 16)    // handshakes at a time
	waiting := make(chan struct{}, 128) // catalogs at a time: an owner on a busy machine turns more away
	var joining sync.WaitGroup
	for i := range members {
		members[i] = &member{versions: make([]int, services), arrived: func() { <-waiting }}
		waiting <- struct{}{}
		slots <- struct{}{}
		if t.Failed() {
			break
		}
		joining.Go(func() {
			c.join(t, members[i].follow)
			<-slots
		})
	}
	joining.Wait()
	if t.Failed() {
		return
	}
	t.Logf("%d consumers are connected after %v", consumers, time.Since(begin))

	all := func(sum int) {
		t.Helper()
		eventually(t, loadPatience, func() string {
			if t.Failed() {
				return ""
			}
			missing := 0
			for _, m := range members {
				if m.sum.Load() != int64(sum) || !m.ended.Load() {
					missing++
				}
			}
			if missing > 0 {
				return fmt.Sprintf("%d of %d consumers are not in the state of the owner: %+v", missing, consumers, c.server.Stats().Catalogs[""])
			}
			return ""
		})
	}
	messages := func() (n int64) {
		for _, m := range members {
			n += m.messages.Load()
		}
		return n
	}
	all(services)
	if n := messages(); n != int64(consumers*(services+1)) {
		t.Errorf("%d messages for the catalog, want one for each service and one for the end, %d", n, consumers*(services+1))
	}
	t.Logf("%d messages after %v", messages(), time.Since(begin))

	for round := range rounds {
		for i := range changing {
			mustUpsert(t, c, versioned(t, i*services/changing, round+2))
		}
	}
	all(services + changing*rounds)
	told := messages() - int64(consumers*(services+1))
	if least, most := int64(consumers*changing), int64(consumers*changing*rounds); told < least || told > most {
		t.Errorf("%d messages for the changes, want %d to %d", told, least, most)
	}
	t.Logf("%d messages for %d changes of state at %d consumers; all after %v", told, changing*rounds, consumers, time.Since(begin))
	eventually(t, patience, func() string {
		stats := c.server.Stats().Catalogs[""]
		if stats.Unsent != 0 || stats.InFlight != 0 || !stats.Oldest.IsZero() || stats.Consumers[wire.V1Alpha2] != consumers {
			return fmt.Sprintf("at rest the figures are %+v", stats)
		}
		return ""
	})
}

// TestOwnerMemoryPerConsumer measures the memory that a consumer costs an owner of
// 10,000 services (100,000 in full). It includes the consumer itself, which is in the same process.
func TestOwnerMemoryPerConsumer(t *testing.T) {
	const consumers, window = 10, 256
	services := 10_000
	if *full {
		services = 100_000
	}
	c := newCrowd(t, window, services)
	// join subscribes n consumers, and waits until each has the whole catalog.
	join := func(n int) {
		t.Helper()
		for range n {
			m := new(member)
			c.join(t, m.follow)
			eventually(t, loadPatience, func() string {
				if !m.ended.Load() && !t.Failed() {
					return fmt.Sprintf("a consumer has %d of %d services", m.messages.Load(), services)
				}
				return ""
			})
		}
	}
	// held waits until the owner can send nothing more, and returns the size of the heap.
	held := func(inFlight, unsent int) int64 {
		t.Helper()
		eventually(t, loadPatience, func() string {
			if stats := c.server.Stats().Catalogs[""]; (stats.InFlight != inFlight || stats.Unsent != unsent) && !t.Failed() {
				return fmt.Sprintf("the figures are %+v, want %d in flight and %d unsent", stats, inFlight, unsent)
			}
			return ""
		})
		return heapAtRest(t)
	}
	growth := func(what string, before, after int64) {
		t.Helper()
		// This pays for both ends of TLS, HTTP/2 and a stream with a window in flight. It
		// does not depend on the number of services: 50 bytes for each of 100,000 would
		// be ten times more.
		const most = 512 << 10
		each := (after - before) / consumers
		t.Logf("%s: %d bytes for each consumer, both ends", what, each)
		if each > most {
			t.Errorf("%s: %d bytes for each consumer, want at most %d", what, each, most)
		}
	}
	join(1) // from now on the encoded form of each service is kept
	first := held(0, 0)
	join(consumers)
	synced := held(0, 0)
	growth("has everything", first, synced)

	for range consumers {
		c.join(t, nil)
	}
	waiting := held(consumers*window, consumers*(services-window))
	growth("has subscribed and reads nothing", synced, waiting)

	// The consumers that do read are far behind for a moment. They must cost no more
	// afterwards.
	for i := range services {
		mustUpsert(t, c, versioned(t, i, 2))
	}
	growth("every service has changed", waiting, held(consumers*window, consumers*services))
	runtime.KeepAlive(c)
}

// TestSleepingConsumerCostsNothing stops the process of a consumer while its owner
// makes 100,000 changes. The owner needs no memory for them. When the process
// continues, it gets each service once, in its last version.
func TestSleepingConsumerCostsNothing(t *testing.T) {
	const services, changes = 1000, 100_000
	p := newPKI(t)
	registry := registry.New()
	for i := range services {
		mustUpsert(t, registry, simpleService(t, fmt.Sprintf("s%06d", i), fmt.Sprintf("s%06d.fed.example", i), "192.0.2.1"))
	}
	o := serveRegistry(t, p.owner, "", registry, 1)

	d := startCoreDNS(t, federationBlock(p, "fed.example", "", o.address))
	last := fmt.Sprintf("s%06d.fed.example", services-1)
	d.awaitAnswer(t, last, dns.TypeA, "NOERROR 192.0.2.1")
	// Between two responses, as before the end of the catalog, nothing is in flight.
	caughtUp := func(acknowledged uint64) owner.CatalogStats {
		t.Helper()
		var stats owner.CatalogStats
		eventually(t, patience, func() string {
			if stats = o.server.Stats().Catalogs[""]; stats.Unsent > 0 || stats.InFlight > 0 || stats.Acknowledged < acknowledged {
				return fmt.Sprintf("the figures of the owner are %+v, want at least %d acknowledged", stats, acknowledged)
			}
			return ""
		})
		return stats
	}
	if synced := caughtUp(services + 1); synced.Acknowledged != services+1 {
		t.Errorf("%d responses were acknowledged, want %d", synced.Acknowledged, services+1)
	}

	d.signal(syscall.SIGSTOP)
	change := func(from, to int) {
		for n := from; n < to; n++ {
			i := n % services
			mustUpsert(t, registry, simpleService(t, fmt.Sprintf("s%06d", i), fmt.Sprintf("s%06d.fed.example", i), address(n)))
		}
	}
	change(0, services) // every service waits to be sent: more changes add nothing to remember
	held := heapAtRest(t)
	change(services, changes)
	const most = 2 << 20
	grown := heapAtRest(t) - held
	t.Logf("%d changes of %d services let the heap grow by %d bytes while the consumer slept: %+v", changes-services, services, grown, o.server.Stats().Catalogs[""])
	if grown > most {
		t.Errorf("the heap grew by %d bytes, want at most %d", grown, most)
	}
	// A signal takes a moment to stop every thread, in which the consumer may have
	// acknowledged more. So the count below starts here, and not before the signal.
	asleep := o.server.Stats().Catalogs[""]
	if asleep.Unsent+asleep.InFlight < services || asleep.Unsent > services || asleep.InFlight > 1 {
		t.Errorf("the figures of the owner are %+v, want at most 1 response in flight and the others unsent", asleep)
	}

	d.signal(syscall.SIGCONT)
	after := caughtUp(asleep.Acknowledged + services)
	// The response that was in flight may be out of date: then its service is sent twice.
	if told := after.Acknowledged - asleep.Acknowledged; told > services+1 {
		t.Errorf("the consumer got %d responses, want one for each of %d services", told, services)
	}
	if len(after.Ended) > 0 {
		t.Errorf("streams have ended: %v", after.Ended)
	}
	var wrong []string
	for i := range services {
		name, want := fmt.Sprintf("s%06d.fed.example", i), "NOERROR "+address(changes-services+i)
		if i == 0 {
			d.awaitAnswer(t, last, dns.TypeA, "NOERROR "+address(changes-1)) // it is sent last
		}
		if got := summary(mustQuery(t, d.address, name, dns.TypeA)); got != want {
			wrong = append(wrong, fmt.Sprintf("%s is %s, want %s", name, got, want))
		}
	}
	if len(wrong) > 0 {
		t.Errorf("%d answers are wrong:\n%s", len(wrong), strings.Join(wrong[:min(len(wrong), 5)], "\n"))
	}
}

// address returns the n-th address of 10.0.0.0/8.
func address(n int) string { return fmt.Sprintf("10.%d.%d.%d", n>>16&255, n>>8&255, n&255) }
