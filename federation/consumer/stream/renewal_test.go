package stream

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	rdpb1 "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha1"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/pki"
)

// short is how long the certificates of these tests last, and when they are replaced:
// the shortest that a SPIRE server issues.
const (
	short    = time.Minute
	replaced = short / 2
)

// party is a consumer or an owner whose certificates do not last long.
type party struct {
	w      *world
	name   string
	files  mtls.Files
	source *mtls.Source
}

// party returns a party with a certificate of that lifetime.
func (w *world) party(name string, lifetime time.Duration) *party {
	w.t.Helper()
	p := &party{w: w, name: name, files: pki.Files(w.t.TempDir())}
	p.replace(lifetime)
	p.source = must.Get(mtls.Load(p.files, nil))(w.t)
	return p
}

// replace gives the party a new certificate of that lifetime, from now on.
func (p *party) replace(lifetime time.Duration) {
	p.w.t.Helper()
	leaf := pki.Named(p.name)
	leaf.Lifetime = time.Hour + lifetime // counted from an hour before
	must.Do(p.w.t, must.Get(p.w.authority.Issue(leaf))(p.w.t).WriteFiles(p.files))
	if p.source != nil {
		p.source.Reload()
	}
}

// as makes the party the consumer of the configuration.
func (p *party) as(config *Config) {
	config.Identity = reloaded{mtls.Consumer{Source: p.source, ServerName: "owner.example"}}
}

// reloaded is an identity whose files are read when the test says so.
type reloaded struct{ mtls.Consumer }

func (reloaded) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// publisher is a real owner of one replica.
type publisher struct {
	*owner.Server
	registry *registry.Registry
}

// publish runs a real owner with the certificates of the party until the test ends.
func (w *world) publish(address string, p *party) publisher {
	w.t.Helper()
	return w.publishOn(w.Listen(address), p)
}

func (w *world) publishOn(listener net.Listener, p *party) publisher {
	w.t.Helper()
	registry := registry.New()
	server := must.Get(owner.New(owner.Config{Registry: registry, Credentials: p.source.Server(), Logger: w.log.Logger()}))(w.t)
	must.Run(w.t, func(ctx context.Context) error { return server.Serve(ctx, listener) })
	return publisher{server, registry}
}

// upsert publishes the service.
func (p publisher) upsert(t *testing.T, name string) {
	t.Helper()
	service := upsert(name).Service
	service.SANs = []string{"spiffe://owner.example/" + name} // which v1alpha1 requires
	must.Get(p.registry.Upsert(service))(t)
}

// streams returns how many streams are open, and how many have ended.
func (p publisher) streams() (open, ended int) {
	stats := p.Stats().Catalogs[""]
	for _, n := range stats.Consumers {
		open += n
	}
	for _, n := range stats.Ended {
		ended += int(n)
	}
	return open, ended
}

// oneStream fails unless the consumer has had one stream all the time.
func (w *world) oneStream() {
	w.t.Helper()
	if opened, lost := len(w.seen("opened")), w.details("lost"); opened != 1 || lost != nil {
		w.t.Errorf("%d streams were opened, and lost: %q; want one that goes on", opened, lost)
	}
}

// expiries returns the lines that say that a certificate cannot be renewed.
func (w *world) expiries() (found []string) {
	for _, line := range w.log.Lines() {
		if strings.Contains(line, "cannot be renewed") {
			found = append(found, line)
		}
	}
	return found
}

// The certificates of both sides are replaced ten times. The stream of the beginning
// goes on, and nothing of the catalog is sent twice.
func TestStreamOutlivesCertificates(t *testing.T) {
	for _, version := range []wire.Version{wire.V1Alpha2, wire.V1Alpha1} {
		t.Run(version.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				own, other := w.party("consumer.example", short), w.party("owner.example", short)
				p := w.publish(ownerAddress, other)
				config := w.config()
				own.as(&config)
				config.Version = version
				w.run(config)
				var want []string
				for i := range 10 {
					p.upsert(t, fmt.Sprint("s", i))
					time.Sleep(replaced / 2)
					own.replace(short)
					time.Sleep(replaced / 2)
					other.replace(short)
					want = append(want, fmt.Sprint("upsert s", i))
				}
				time.Sleep(short / 2)
				w.oneStream()
				applied := slices.DeleteFunc(w.details("applied"), func(s string) bool { return s == "end" })
				if !slices.Equal(applied, want) {
					t.Errorf("applied %q, want %q", applied, want)
				}
				if open, ended := p.streams(); open != 1 || ended != 0 {
					t.Errorf("the owner has %d streams, and %d have ended; want one", open, ended)
				}
				// One for each quarter of a minute is expected, when a new certificate is
				// half through.
				if n := len(w.seen("dialed")); n < 10 || n > 60 {
					t.Errorf("%d connections", n)
				}
				if n := p.Stats().Connections; n != 1 {
					t.Errorf("%d connections are open, want 1", n)
				}
			})
		})
	}
}

// Without newer certificates of one side, the stream ends when the last one of that
// side has been expired for the grace, and not before. This is logged once.
func TestStreamEndsWithCertificate(t *testing.T) {
	for _, tc := range []struct {
		name       string
		consumer   bool // who has no newer certificate
		grace      time.Duration
		forTheSake string // in the reason of the loss
	}{
		{"consumer", true, mtls.DefaultGrace, "error reading from server"},
		{"consumer, short grace", true, 10 * time.Second, "error reading from server"},
		{"owner", false, mtls.DefaultGrace, "it has shown no newer one"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				own, other := w.party("consumer.example", short), w.party("owner.example", short)
				own.source.SetGrace(tc.grace)
				other.source.SetGrace(tc.grace)
				late, fine := other, own
				if tc.consumer {
					late, fine = own, other
				}
				w.publish(ownerAddress, other).upsert(t, "a")
				config := w.config()
				own.as(&config)
				w.run(config)
				ends := short + tc.grace
				for passed := time.Duration(0); passed+replaced < ends; passed += replaced {
					time.Sleep(replaced)
					fine.replace(short)
				}
				time.Sleep(ends - time.Since(w.start) - 2*time.Second) // certificates have whole seconds
				w.oneStream()
				time.Sleep(4 * time.Second)
				if lost := w.details("lost"); len(lost) != 1 && len(lost) != 2 || !strings.Contains(lost[0], tc.forTheSake) {
					t.Errorf("lost %q, want %q", lost, tc.forTheSake)
				}
				if lines := w.expiries(); len(lines) != 1 || !strings.Contains(lines[0], "remedy=") {
					t.Errorf("logged: %q", lines)
				}
				late.replace(time.Hour)
				fine.replace(time.Hour)
				time.Sleep(6 * time.Minute)
				if n := len(w.seen("opened")); n != 2 {
					t.Errorf("%d streams were opened, want another one", n)
				}
			})
		})
	}
}

// A consumer that gets its new certificate late, after the expiry of the old one,
// renews at once.
func TestLateCertificateIsShownAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		own, other := w.party("consumer.example", short), w.party("owner.example", time.Hour)
		w.publish(ownerAddress, other).upsert(t, "a")
		config := w.config()
		own.as(&config)
		w.run(config)
		time.Sleep(short + mtls.DefaultGrace - 3*time.Second)
		own.replace(time.Hour)
		synctest.Wait()
		time.Sleep(20 * time.Minute)
		w.oneStream()
	})
}

// foreign is an owner that knows nothing of renewals, and keeps streams whatever
// becomes of the consumer's certificate.
func (w *world) foreign(p *party, handler handler) {
	w.serve(ownerAddress, handler, grpc.Creds(credentials.NewTLS(&tls.Config{
		ClientAuth: tls.RequireAnyClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			keyPair, err := tls.LoadX509KeyPair(p.files.Cert, p.files.Key)
			return &keyPair, err
		},
	})))
}

// The handshakes of a foreign owner vouch for it, also where its header is long in
// coming. It sees no stream but the one.
func TestRenewalWithForeignOwner(t *testing.T) {
	for name, handler := range map[string]handler{
		"usual": good,
		"without a header": func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
			if _, err := subscription(stream); err != nil {
				return err
			}
			return silent(stream)
		},
		"with a token that is none": func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
			if err := stream.SetHeader(metadata.Pairs(wire.RenewalHeader, strings.Repeat("x", maxToken+1))); err != nil {
				return err
			}
			return good(stream)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				own, other := w.party("consumer.example", short), w.party("owner.example", short)
				var streams atomic.Int32
				w.foreign(other, func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
					streams.Add(1)
					return handler(stream)
				})
				config := w.config()
				own.as(&config)
				w.run(config)
				for range 10 {
					time.Sleep(replaced)
					other.replace(short) // the consumer keeps its old one
				}
				w.oneStream()
				if n, dialed := streams.Load(), len(w.seen("dialed")); n != 1 || dialed < 5 || dialed > 40 {
					t.Errorf("%d streams and %d connections", n, dialed)
				}
			})
		})
	}
}

// A foreign owner does not see other certificates of the consumer, so their expiry is
// no reason to renew.
func TestForeignOwnerIsNotBothered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		own := w.party("consumer.example", short)
		w.foreign(w.party("owner.example", time.Hour), good)
		config := w.config()
		own.as(&config)
		w.run(config)
		time.Sleep(20 * time.Minute)
		w.oneStream()
		if n := len(w.seen("dialed")); n != 1 {
			t.Errorf("%d connections, want 1", n)
		}
	})
}

// An owner that speaks v1alpha1 alone is asked for renewals in v1alpha1.
func TestRenewalInV1Alpha1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		own, other := w.party("consumer.example", short), w.party("owner.example", short)
		var renewals atomic.Int32
		w.listenAndServe(ownerAddress, func(server *grpc.Server) {
			rdpb1.RegisterDiscoveryServiceServer(server, script1{handler: func(stream rdpb1.DiscoveryService_EstablishStreamServer) error {
				if metadata.ValueFromIncomingContext(stream.Context(), wire.RenewHeader) != nil {
					renewals.Add(1)
					return nil
				}
				if err := stream.SendHeader(metadata.Pairs(wire.RenewalHeader, "secret")); err != nil {
					return err
				}
				<-stream.Context().Done()
				return stream.Context().Err()
			}})
		}, grpc.Creds(other.source.Server()))
		config := w.config1()
		own.as(&config)
		w.run(config)
		time.Sleep(short - time.Second)
		w.oneStream()
		if renewals.Load() == 0 {
			t.Error("no renewal")
		}
	})
}

// Behind the address are two replicas, and the other one gets some of the renewals.
func TestRenewalAtAnotherReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		own, other := w.party("consumer.example", short), w.party("owner.example", short)
		first, second := w.publish("first:1", other), w.publish("second:1", other)
		first.upsert(t, "a")
		config := w.config()
		own.as(&config)
		var dialed atomic.Int32
		config.Dial = func(ctx context.Context, _ string) (net.Conn, error) {
			if dialed.Add(1)%3 == 1 {
				return w.dial(ctx, "first:1")
			}
			return w.dial(ctx, "second:1")
		}
		w.run(config)
		for range 10 {
			time.Sleep(replaced)
			own.replace(short)
			other.replace(short)
		}
		w.oneStream()
		if !slices.Contains(w.details("dialed"), "second:1") {
			t.Error("no renewal came to the other replica")
		}
		if lines := w.expiries(); lines != nil {
			t.Errorf("logged: %q", lines)
		}
		if open, ended := second.streams(); open != 0 || ended != 0 {
			t.Errorf("the other replica has %d streams, and %d have ended; want none", open, ended)
		}
	})
}

// An owner asks for renewals and does not answer them as it should. They go on, one at
// a time, and vouch for nothing. They end with the consumer.
func TestRenewalIsNotAnswered(t *testing.T) {
	for name, answer := range map[string]func(rdpb.DiscoveryService_EstablishStreamServer) error{
		"nothing": silent,
		"another error": func(rdpb.DiscoveryService_EstablishStreamServer) error {
			return status.Error(codes.Unauthenticated, "no")
		},
		"a message": func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
			return stream.Send(&rdpb.BidirectionalStream{Response: &rdpb.StreamResponse{Nonce: "x"}})
		},
		"a large message": func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
			return stream.Send(&rdpb.BidirectionalStream{Response: &rdpb.StreamResponse{Nonce: strings.Repeat("x", 1<<20)}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				own, other := w.party("consumer.example", time.Hour), w.party("owner.example", short)
				var renewing, most, all atomic.Int32
				w.serve(ownerAddress, func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
					if token := metadata.ValueFromIncomingContext(stream.Context(), wire.RenewHeader); token != nil {
						all.Add(1)
						most.Store(max(most.Load(), renewing.Add(1)))
						defer renewing.Add(-1)
						if !slices.Equal(token, []string{"secret"}) {
							t.Errorf("the token is %q", token)
						}
						return answer(stream)
					}
					if err := stream.SetHeader(metadata.Pairs(wire.RenewalHeader, "secret")); err != nil {
						return err
					}
					return good(stream)
				}, grpc.Creds(other.source.Server()))
				config := w.config()
				own.as(&config)
				_, stop := w.run(config)
				for range 3 {
					time.Sleep(replaced)
					other.replace(short)
				}
				time.Sleep(short + mtls.DefaultGrace - time.Since(w.start) - 2*time.Second)
				w.oneStream()
				time.Sleep(4 * time.Second)
				if w.seen("lost") == nil {
					t.Error("the stream goes on")
				}
				if most.Load() != 1 || all.Load() < 4 {
					t.Errorf("%d renewals, %d at once", all.Load(), most.Load())
				}

				// One may be under way.
				other.replace(short)
				time.Sleep(6 * time.Minute)
				for range 200 {
					if renewing.Load() > 0 || name != "nothing" {
						break
					}
					time.Sleep(time.Second)
				}
				begun := time.Now()
				stop()
				if took := time.Since(begun); took > leaveTimeout {
					t.Errorf("the end took %v", took)
				}
			})
		})
	}
}

// A catalog takes longer than the certificates last.
func TestRenewalDuringCatalog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		own, other := w.party("consumer.example", short), w.party("owner.example", short)
		p := w.publish(ownerAddress, other)
		const services = 2000
		for i := range services {
			p.upsert(t, fmt.Sprint("s", i))
		}
		w.apply = func(federation.Event) error {
			time.Sleep(250 * time.Millisecond)
			return nil
		}
		config := w.config()
		own.as(&config)
		w.run(config)
		for time.Since(w.start) < services*250*time.Millisecond+replaced {
			time.Sleep(replaced)
			own.replace(short)
			other.replace(short)
		}
		w.oneStream()
		applied := w.details("applied")
		if len(applied) != services+1 || applied[services] != "end" {
			t.Errorf("%d applied, the last is %q", len(applied), applied[len(applied)-1])
		}
	})
}

// Renewals are rare: half a year passes before the first of a certificate that lasts a
// year, and there are few of one that is not replaced.
func TestRenewalDelay(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for _, left := range []time.Duration{year, time.Hour, time.Minute, -time.Minute, -time.Hour} {
		least, most := year, time.Duration(0)
		for range 1000 {
			delay := renewalDelay(left, minRenewal)
			least, most = min(least, delay), max(most, delay)
		}
		half := left.Abs() / 2
		if least < half*3/4 || most > half || least > half*4/5 || most < half*19/20 {
			t.Errorf("with %v left: %v to %v", left, least, most)
		}
	}
	for left, want := range map[time.Duration]time.Duration{0: 0, -time.Hour: 0} {
		if got := renewalDelay(left, 0); got != want {
			t.Errorf("with %v left, the first is after %v", left, got)
		}
	}
	for _, left := range []time.Duration{0, time.Second, -time.Second, 2 * time.Second} {
		if got := renewalDelay(left, minRenewal); got != minRenewal {
			t.Errorf("with %v left: %v", left, got)
		}
	}
	renewals := 0
	for left := year; left > -time.Minute; left -= renewalDelay(left, minRenewal) {
		renewals++
	}
	if renewals > 60 {
		t.Errorf("%d renewals of a certificate that is not replaced in a year", renewals)
	}
}

// Where the owner's name may lead to several replicas, the one that has the stream is
// dialed again.
func TestRenewalDialsTheSameReplica(t *testing.T) {
	w := newWorld(t)
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	w.publishOn(listener, w.party("owner.example", time.Hour))
	config := w.config()
	w.party("consumer.example", time.Hour).as(&config)
	config.Dial = nil
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	config.Addresses = []string{"localhost:" + port}
	c := must.Get(New(config))(t)
	dialLog := &dialLog{address: config.Addresses[0], dial: c.config.Dial}
	conn := must.Get(c.connect(dialLog))(t)
	defer conn.Close()
	stream := must.Get(c.open(t.Context(), func(error) {}, conn))(t)
	token := tokenOf(stream) // waits for the connection
	r := c.newRenewal(dialLog, nil)
	r.token = token
	if r.target != listener.Addr().String() {
		t.Errorf("renewals dial %s, want %s", r.target, listener.Addr())
	}
	if err := r.attempt(t.Context()); err != nil || token == "" {
		t.Errorf("the renewal with the token %q fails: %v", token, err)
	}
}
