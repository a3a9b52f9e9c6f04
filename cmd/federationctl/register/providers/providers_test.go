package providers

import (
	"bytes"
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// registered returns a node as owners list it; change makes it another one.
func registered(service, uri string, change func(*registrationv1.ListResponse)) *registrationv1.ListResponse {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	n := &registrationv1.ListResponse{
		Service: service, Node: uri, Provider: "spiffe://acme.example/shop", Rule: "shops", Owner: "owner-a", Connected: true,
		Since: timestamppb.New(at), Until: timestamppb.New(at.Add(time.Hour)), Ttl: durationpb.New(30 * time.Second),
	}
	if change != nil {
		change(n)
	}
	return n
}

// now is when the tables are made.
var now = time.Date(2026, 1, 2, 4, 3, 35, 0, time.UTC)

// One table has all states, and nothing in it moves the cursor.
func TestTable(t *testing.T) {
	var out bytes.Buffer
	shown := newTable(Config{Stdout: &out})
	must.Do(t, shown.all([]*registrationv1.ListResponse{
		registered("shop.fed.example", "https://192.0.2.1:8443", nil),
		registered("shop.fed.example", "https://192.0.2.2:8443", func(n *registrationv1.ListResponse) {
			n.Connected, n.Old, n.Instance = false, true, "v1"
		}),
		registered("shop.fed.example", "https://[2001:db8::1]:8443", func(n *registrationv1.ListResponse) { n.Connected = false }),
		registered("\x1b[2J.example", "tcp://a\n:1", func(n *registrationv1.ListResponse) {
			n.Connected, n.Until, n.Owner, n.Provider = false, nil, "owner b", "\u009b"
		}),
	}, now))
	want := `SERVICE            NODE                        INSTANCE  PROVIDER                    STATE         SINCE    UNTIL   TTL
shop.fed.example   https://192.0.2.1:8443      -         spiffe://acme.example/shop  connected     59m ago  in 30s  30s
shop.fed.example   https://192.0.2.2:8443      v1        spiffe://acme.example/shop  old           59m ago  in 30s  30s
shop.fed.example   https://[2001:db8::1]:8443  -         spiffe://acme.example/shop  lost          59m ago  in 30s  30s
"\x1b[2J.example"  "tcp://a\n:1"               -         "\u009b"                    on "owner b"  59m ago  -       30s
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("unexpected table (-want +got):\n%s", diff)
	}
}

// Lines of a watch have fixed columns, with titles once.
func TestWatchTable(t *testing.T) {
	var out bytes.Buffer
	shown := newTable(Config{Stdout: &out, Watch: true})
	must.Do(t, shown.replace([]*registrationv1.ListResponse{registered("a.example", "tcp://192.0.2.1:1", nil)}, now))
	must.Do(t, shown.change(&registrationv1.ListResponse{Service: "a.example", Node: "tcp://192.0.2.1:1", Gone: true}, now))
	want := []string{
		"OP SERVICE NODE INSTANCE PROVIDER STATE SINCE UNTIL TTL",
		"upsert a.example tcp://192.0.2.1:1 - spiffe://acme.example/shop connected 59m ago in 30s 30s",
		"delete a.example tcp://192.0.2.1:1 - spiffe://acme.example/shop connected 59m ago in 30s 30s",
	}
	var got []string
	column := 0
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
		if at := strings.Index(line, " spiffe:"); column != 0 && at != column {
			t.Errorf("the columns are not aligned: %q", line)
		} else if at >= 0 {
			column = at
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("unexpected lines (-want +got):\n%s", diff)
	}
}

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 119 * time.Second: "119s", 2 * time.Minute: "2m", 119 * time.Minute: "119m", 47 * time.Hour: "47h", 50 * time.Hour: "2d",
	} {
		if got := short(d); got != want {
			t.Errorf("%v is %s, want %s", d, got, want)
		}
	}
}

func TestJSON(t *testing.T) {
	var out bytes.Buffer
	shown := newTable(Config{Stdout: &out, Output: "json"})
	must.Do(t, shown.all([]*registrationv1.ListResponse{
		registered("a.example", "tcp://192.0.2.1:1", nil),
		registered("b.example", "tcp://192.0.2.1:1", func(n *registrationv1.ListResponse) {
			n.Connected, n.Until, n.Instance, n.Metadata = false, nil, "\u009b", map[string]string{"tier": "gold"}
		}),
	}, time.Now()))
	want := `{"service":"a.example","node":"tcp://192.0.2.1:1","provider":"spiffe://acme.example/shop","rule":"shops","owner":"owner-a","state":"connected","since":"2026-01-02T03:04:05Z","until":"2026-01-02T04:04:05Z","ttl":"30s"}
{"service":"b.example","node":"tcp://192.0.2.1:1","instance":"\u009b","metadata":{"tier":"gold"},"provider":"spiffe://acme.example/shop","rule":"shops","owner":"owner-a","state":"elsewhere","since":"2026-01-02T03:04:05Z","ttl":"30s"}
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("unexpected objects (-want +got):\n%s", diff)
	}
}

// owner is one whose streams follow a script.
type owner struct {
	registrationv1.UnimplementedRegistrationServiceServer

	list func(*registrationv1.ListRequest, registrationv1.RegistrationService_ListServer) error
}

func (o *owner) List(r *registrationv1.ListRequest, s registrationv1.RegistrationService_ListServer) error {
	return o.list(r, s)
}

// serve returns what Show needs to ask an owner.
func serve(t *testing.T, list func(*registrationv1.ListRequest, registrationv1.RegistrationService_ListServer) error) Config {
	t.Helper()
	listener := must.Get(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	server := grpc.NewServer()
	registrationv1.RegisterRegistrationServiceServer(server, &owner{list: list})
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
	return Config{Address: listener.Addr().String(), Credentials: insecure.NewCredentials(), Stdout: new(bytes.Buffer), Stderr: new(bytes.Buffer)}
}

func TestErrors(t *testing.T) {
	for want, given := range map[string]error{
		`PermissionDenied: no; have the owner's rules name the identity of --cert as an observer`: status.Error(codes.PermissionDenied, "no"),
		`Unimplemented: no; check --server and --server-name: no programs register there`:         status.Error(codes.Unimplemented, "no"),
		`Unauthenticated: no; check --cert: the owner needs an identity in it`:                    status.Error(codes.Unauthenticated, "no"),
		`InvalidArgument: no; check --service`:                                                    status.Error(codes.InvalidArgument, "no"),
		`Unavailable: n\to; check --server, --cert and --ca, and that the owner is up`:            status.Error(codes.Unavailable, "n\to"),
	} {
		c := serve(t, func(*registrationv1.ListRequest, registrationv1.RegistrationService_ListServer) error { return given })
		if err := Show(t.Context(), c); err == nil || err.Error() != want {
			t.Errorf("the error is %v, want %s", err, want)
		}
		if c.Watch = true; status.Code(given) != codes.Unavailable {
			if err := Show(t.Context(), c); err == nil || err.Error() != want {
				t.Errorf("the error of a watch is %v, want %s", err, want)
			}
		}
	}
}

// A watch shows what is there in order, then what changes, and after a loss only what is
// not as before.
func TestWatch(t *testing.T) {
	one := registered("a.example", "tcp://192.0.2.1:1", nil)
	two := registered("a.example", "tcp://192.0.2.2:1", nil)
	three := registered("b.example", "tcp://192.0.2.3:1", nil)
	changed := registered("a.example", "tcp://192.0.2.1:1", func(n *registrationv1.ListResponse) { n.Connected = false })
	gone := func(n *registrationv1.ListResponse) *registrationv1.ListResponse {
		return &registrationv1.ListResponse{Service: n.GetService(), Node: n.GetNode(), Gone: true}
	}
	complete := &registrationv1.ListResponse{Complete: true}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	streams := [][]*registrationv1.ListResponse{
		{three, two, one, complete, changed, changed, gone(two), gone(two)},
		{one, complete},
		{one, two, complete},
	}
	var mu sync.Mutex
	c := serve(t, func(r *registrationv1.ListRequest, s registrationv1.RegistrationService_ListServer) error {
		if !r.GetWatch() || r.GetService() != "all.example" {
			return status.Error(codes.InvalidArgument, "another request")
		}
		mu.Lock()
		defer mu.Unlock()
		if len(streams) == 0 {
			cancel()
			<-s.Context().Done()
			return nil
		}
		for _, m := range streams[0] {
			if err := s.Send(m); err != nil {
				return err
			}
		}
		streams = streams[1:]
		return nil
	})
	var out, errs bytes.Buffer
	c.Watch, c.Output, c.Service, c.Stdout, c.Stderr = true, "json", "all.example", &out, &errs
	must.Do(t, Show(ctx, c))
	var got []string
	for line := range strings.Lines(out.String()) {
		op, rest, _ := strings.Cut(strings.TrimPrefix(line, `{"op":"`), `"`)
		_, node, _ := strings.Cut(rest, `"node":"tcp://192.0.2.`)
		_, state, _ := strings.Cut(node, `"state":"`)
		state, _, _ = strings.Cut(state, `"`)
		got = append(got, op+" "+node[:1]+" "+state)
	}
	want := []string{
		"upsert 1 connected", "upsert 2 connected", "upsert 3 connected", "upsert 1 lost", "delete 2 connected",
		"upsert 1 connected", "delete 3 connected", "upsert 2 connected",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("unexpected lines (-want +got):\n%s", diff)
	}
	lost := "federationctl: owner " + c.Address + ": the owner has ended the stream; trying again\n" + "federationctl: connected to " + c.Address + " again\n"
	if got := errs.String(); !strings.HasPrefix(got, lost+lost) {
		t.Errorf("standard error has %q", got)
	}
}
