package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"runtime/debug"
	"slices"
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
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

// raced tells whether this binary looks for races, which makes it many times
// slower.
func raced() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "-race" && s.Value == "true" })
}

// loadPatience bounds the wait for many messages on a busy machine.
const loadPatience = 5 * time.Minute

// versioned is the i-th service of a catalog in some version.
func versioned(t testing.TB, i, version int) *federation.Service {
	t.Helper()
	s := simpleService(t, fmt.Sprintf("s%06d", i), fmt.Sprintf("s%06d.fed.example", i), "192.0.2.1")
	s.Description = strconv.Itoa(version)
	return s
}

// crowd is an owner and many light consumers of it: over memory, as there may be
// more of them than a process may have sockets, and with mutual TLS.
type crowd struct {
	*owner.Registry
	server      *owner.Server
	listener    *bufconn.Listener
	credentials credentials.TransportCredentials // of a consumer
}

func newCrowd(t *testing.T, window, services int) *crowd {
	t.Helper()
	p := newPKI(t)
	consumer, err := mtls.Load(p.consumer, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c := &crowd{Registry: owner.NewRegistry(), listener: bufconn.Listen(32 << 10), credentials: consumer.Client("localhost", nil)}
	all := make([]*federation.Service, services)
	for i := range all {
		all[i] = versioned(t, i, 1)
	}
	c.Set(all)
	c.server, _ = serveOn(t, c.listener, p.owner, c.Registry, window)
	return c
}

// member is one of the consumers. It keeps no more of a service than its version.
type member struct {
	versions []int // by service, 0 for none, nil where nobody cares; owned by follow

	sum      atomic.Int64 // of the versions
	messages atomic.Int64
	ended    atomic.Bool // whether the catalog was complete
}

// join subscribes a consumer. follow is called in a goroutine of its own, unless
// it is nil.
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

// follow takes what the owner says until the stream ends.
func (m *member) follow(stream grpc.ClientStream) error {
	for {
		var message []byte
		if err := stream.RecvMsg(&message); err != nil {
			return err
		}
		response := rawField(message, 2)
		switch id := rawField(response, 3); {
		case len(id) == 0:
			m.ended.Store(true)
		case m.versions != nil:
			i, err := strconv.Atoi(string(id[1:]))
			if err != nil {
				return err
			}
			version, err := strconv.Atoi(string(rawField(rawField(rawField(response, 4), 2), 2)))
			if err != nil || version < m.versions[i] {
				return fmt.Errorf("service %d: version %d (%w) after %d", i, version, err, m.versions[i])
			}
			m.sum.Add(int64(version - m.versions[i]))
			m.versions[i] = version
		}
		m.messages.Add(1)
		if err := stream.SendMsg(rawRequest(string(rawField(response, 1)))); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
}

// rawField returns a field of bytes in a message, nil where there is none.
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

// rawRequest is the initial request, or an ACK of the response with the nonce.
func rawRequest(nonce string) *[]byte {
	request := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), wire.ResourceURL)
	if nonce != "" {
		request = protowire.AppendString(protowire.AppendTag(request, 2, protowire.BytesType), nonce)
		request = protowire.AppendBytes(protowire.AppendTag(request, 3, protowire.BytesType), nil) // a status of OK
	}
	message := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), request)
	return &message
}

// heapAtRest is heap once what earlier tests have left behind is gone.
func heapAtRest(t *testing.T) int64 {
	t.Helper()
	last := heap()
	eventually(t, patience, func() string {
		before := last
		if last = heap(); before-last > 64<<10 {
			return fmt.Sprintf("the heap shrinks still, from %d to %d", before, last)
		}
		return ""
	})
	return last
}

// TestOwnerServesACrowd lets 1,000 consumers follow a catalog of 1,000 services
// of which some change many times. Each consumer must end in the state of the
// owner, which takes that it hears of every change of state at least once, and
// see no service go back to an older version.
func TestOwnerServesACrowd(t *testing.T) {
	consumers, services, changing, rounds := 1000, 1000, 100, 10
	if raced() || testing.Short() {
		consumers = 100
	}
	c := newCrowd(t, 64, services)
	members := make([]*member, consumers)
	begin := time.Now()
	slots := make(chan struct{}, 16) // handshakes at a time
	var joining sync.WaitGroup
	for i := range members {
		members[i] = &member{versions: make([]int, services)}
		slots <- struct{}{}
		joining.Go(func() {
			c.join(t, members[i].follow)
			<-slots
		})
	}
	joining.Wait()
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
				return fmt.Sprintf("%d of %d consumers are not in the state of the owner: %+v", missing, consumers, c.server.Stats())
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
		t.Errorf("%d messages told of the catalog, expected one for each service and the end, %d", n, consumers*(services+1))
	}
	t.Logf("%d messages after %v", messages(), time.Since(begin))

	for round := range rounds {
		for i := range changing {
			c.Upsert(versioned(t, i*services/changing, round+2))
		}
	}
	all(services + changing*rounds)
	told := messages() - int64(consumers*(services+1))
	if least, most := int64(consumers*changing), int64(consumers*changing*rounds); told < least || told > most {
		t.Errorf("%d messages told of the changes, expected %d to %d", told, least, most)
	}
	t.Logf("%d messages for %d changes of state at %d consumers; all after %v", told, changing*rounds, consumers, time.Since(begin))
	eventually(t, patience, func() string {
		stats := c.server.Stats()
		if stats.Unsent != 0 || stats.InFlight != 0 || !stats.Oldest.IsZero() || stats.Consumers[wire.V1Alpha2] != consumers {
			return fmt.Sprintf("at rest the figures are %+v", stats)
		}
		return ""
	})
}

// TestOwnerMemoryOfAConsumer takes the memory that a consumer costs an owner of
// 100,000 services, the consumer itself included, as it is in the same process.
func TestOwnerMemoryOfAConsumer(t *testing.T) {
	const consumers, window = 10, 256
	services := 100_000
	if raced() || testing.Short() {
		services = 10_000
	}
	c := newCrowd(t, window, services)
	// join lets consumers come, and waits until they have the catalog.
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
	// held waits until the owner has done all it can, and returns the heap.
	held := func(inFlight, unsent int) int64 {
		t.Helper()
		eventually(t, loadPatience, func() string {
			if stats := c.server.Stats(); (stats.InFlight != inFlight || stats.Unsent != unsent) && !t.Failed() {
				return fmt.Sprintf("the figures are %+v, expected %d in flight and %d unsent", stats, inFlight, unsent)
			}
			return ""
		})
		return heapAtRest(t)
	}
	growth := func(what string, before, after int64) {
		t.Helper()
		// Both ends of TLS, HTTP/2 and a stream with a window in flight, whatever the
		// number of services: 50 bytes for each of 100,000 would be ten times more.
		const most = 512 << 10
		each := (after - before) / consumers
		t.Logf("%s: %d bytes for each consumer, both ends", what, each)
		if each > most {
			t.Errorf("%s: %d bytes for each consumer, expected at most %d", what, each, most)
		}
	}
	join(1) // each service is encoded from now on
	first := held(0, 0)
	join(consumers)
	synced := held(0, 0)
	growth("has everything", first, synced)

	for range consumers {
		c.join(t, nil)
	}
	waiting := held(consumers*window, consumers*(services-window))
	growth("has subscribed and reads nothing", synced, waiting)

	// Who was far behind for a moment, as the followers are here, is not more
	// expensive afterwards.
	for i := range services {
		c.Upsert(versioned(t, i, 2))
	}
	growth("every service has changed", waiting, held(consumers*window, consumers*services))
	runtime.KeepAlive(c)
}

// TestSleepingConsumerCostsNothing stops a consumer for a while, in which the
// owner changes 100,000 times, and continues it.
func TestSleepingConsumerCostsNothing(t *testing.T) {
	const services, changes = 1000, 100_000
	p := newPKI(t)
	registry := owner.NewRegistry()
	for i := range services {
		registry.Upsert(simpleService(t, fmt.Sprintf("s%06d", i), fmt.Sprintf("s%06d.fed.example", i), "192.0.2.1"))
	}
	o := serveRegistry(t, p.owner, "", registry, 1)

	d := startCoreDNS(t, fmt.Sprintf("fed.example:PORT {\nbind 127.0.0.1\nfederation {\nowner %s\n%s\n}\n}", o.address, p.tls()))
	last := fmt.Sprintf("s%06d.fed.example", services-1)
	d.awaitAnswer(t, last, dns.TypeA, "NOERROR 192.0.2.1")
	caughtUp := func() owner.Stats {
		t.Helper()
		var stats owner.Stats
		eventually(t, patience, func() string {
			if stats = o.server.Stats(); stats.Unsent > 0 || stats.InFlight > 0 {
				return fmt.Sprintf("the figures of the owner are %+v", stats)
			}
			return ""
		})
		return stats
	}
	if synced := caughtUp(); synced.Acknowledged != services+1 {
		t.Errorf("%d responses were acknowledged, expected %d", synced.Acknowledged, services+1)
	}

	d.signal(syscall.SIGSTOP)
	change := func(from, to int) {
		for n := from; n < to; n++ {
			i := n % services
			registry.Upsert(simpleService(t, fmt.Sprintf("s%06d", i), fmt.Sprintf("s%06d.fed.example", i), address(n)))
		}
	}
	change(0, services) // from here on there is nothing more to remember
	held := heapAtRest(t)
	change(services, changes)
	const most = 2 << 20
	grown := heapAtRest(t) - held
	t.Logf("%d changes of %d services let the heap grow by %d bytes while the consumer slept: %+v", changes-services, services, grown, o.server.Stats())
	if grown > most {
		t.Errorf("the heap grew by %d bytes, expected at most %d", grown, most)
	}
	// A signal takes a moment to stop every thread: what the consumer acknowledged
	// in it is not counted below.
	asleep := o.server.Stats()
	if asleep.Unsent+asleep.InFlight < services || asleep.Unsent > services || asleep.InFlight > 1 {
		t.Errorf("the figures of the owner are %+v, expected at most 1 response in flight and the others unsent", asleep)
	}

	d.signal(syscall.SIGCONT)
	after := caughtUp()
	// What was in flight when it fell asleep may be out of date.
	if told := after.Acknowledged - asleep.Acknowledged; told < services || told > services+1 {
		t.Errorf("the consumer was told %d times, expected once of each of %d services", told, services)
	}
	if len(after.Ended) > 0 {
		t.Errorf("streams have ended: %v", after.Ended)
	}
	var wrong []string
	for i := range services {
		name, want := fmt.Sprintf("s%06d.fed.example", i), "NOERROR "+address(changes-services+i)
		if i == 0 {
			d.awaitAnswer(t, last, dns.TypeA, "NOERROR "+address(changes-1)) // the last to be told
		}
		if got := summary(mustQuery(t, d.address, name, dns.TypeA)); got != want {
			wrong = append(wrong, fmt.Sprintf("%s is %s, expected %s", name, got, want))
		}
	}
	if len(wrong) > 0 {
		t.Errorf("%d answers are wrong:\n%s", len(wrong), strings.Join(wrong[:min(len(wrong), 5)], "\n"))
	}
}

// address returns the n-th address of a large network.
func address(n int) string { return fmt.Sprintf("10.%d.%d.%d", n>>16&255, n>>8&255, n&255) }
