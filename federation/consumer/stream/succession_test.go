package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/resume"
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

// party returns a consumer or an owner with a certificate of that lifetime.
func (w *world) party(name string, lifetime time.Duration) *pki.Party {
	w.t.Helper()
	return pki.NewParty(w.t, w.authority, pki.Named(name), lifetime)
}

// as makes the party the consumer of the configuration.
func as(p *pki.Party, config *Config) {
	config.Identity = p.As(mtls.Consumer{ServerName: "owner.example"})
}

// publisher is a real owner of one replica.
type publisher struct {
	*owner.Server
	registry *registry.Registry
}

// publish runs a real owner with the certificates of the party until the test ends.
func (w *world) publish(address string, p *pki.Party) publisher {
	w.t.Helper()
	registry, listener := registry.New(), w.Listen(address)
	server := must.Get(owner.New(owner.Config{Registry: registry, Credentials: p.Server(), Logger: w.log.Logger()}))(w.t)
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

// streams returns how many streams are open, and how many have ended with each code.
func (p publisher) streams() (open int, ended map[codes.Code]int) {
	stats := p.Stats().Catalogs[""]
	for _, n := range stats.Consumers {
		open += n
	}
	ended = make(map[codes.Code]int)
	for code, n := range stats.Ended {
		ended[code] += int(n)
	}
	return open, ended
}

// neverLost fails unless the consumer has opened so many streams, and lost none.
func (w *world) neverLost(least, most int) {
	w.t.Helper()
	if n := len(w.seen("opened")); n < least || n > most {
		w.t.Errorf("%d streams were opened, want %d to %d", n, least, most)
	}
	if lost, ended := w.details("lost"), w.details("ended"); lost != nil || ended != nil {
		w.t.Errorf("lost %q, with the codes %q", lost, ended)
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

// The certificates of both sides are replaced ten times. A stream follows the other, and
// the owner sees each of them closed by the consumer.
func TestStreamOutlivesCertificates(t *testing.T) {
	t.Parallel()
	for _, version := range []wire.Version{wire.V1Alpha2, wire.V1Alpha1} {
		t.Run(version.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				own, other := w.party("consumer.example", short), w.party("owner.example", short)
				p := w.publish(ownerAddress, other)
				config := w.config()
				as(own, &config)
				config.Version = version
				w.run(config)
				for i := range 10 {
					p.upsert(t, fmt.Sprint("s", i))
					time.Sleep(replaced / 2)
					if last := w.details("applied"); !slices.Contains(last, fmt.Sprint("upsert s", i)) {
						t.Errorf("s%d is missing: %q", i, last)
					}
					own.Replace(short)
					time.Sleep(replaced / 2)
					other.Replace(short)
				}
				time.Sleep(short / 2)
				// One for each quarter of a minute is expected, when a new certificate is
				// half through.
				w.neverLost(10, 40)
				open, ended := p.streams()
				if want := len(w.seen("opened")) - 1; open != 1 || len(ended) != 1 || ended[codes.OK] != want {
					t.Errorf("the owner has %d streams, and %v have ended; want one, and %d that were closed", open, ended, want)
				}
				if n := len(w.seen("dialed")); n > 60 {
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
	t.Parallel()
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
				own, other := w.party("consumer.example", time.Hour), w.party("owner.example", time.Hour)
				own.SetGrace(tc.grace)
				other.SetGrace(tc.grace)
				late := other
				if tc.consumer {
					late = own
				}
				late.Replace(short)
				w.publish(ownerAddress, other).upsert(t, "a")
				config := w.config()
				as(own, &config)
				w.run(config)
				ends := short + tc.grace
				time.Sleep(ends - time.Since(w.start) - 2*time.Second) // certificates have whole seconds
				w.neverLost(1, 1)
				time.Sleep(4 * time.Second)
				if lost := w.details("lost"); len(lost) != 1 && len(lost) != 2 || !strings.Contains(lost[0], tc.forTheSake) {
					t.Errorf("lost %q, want %q", lost, tc.forTheSake)
				}
				if lines := w.expiries(); len(lines) != 1 || !strings.Contains(lines[0], "remedy=") {
					t.Errorf("logged: %q", lines)
				}
				late.Replace(time.Hour)
				time.Sleep(6 * time.Minute)
				if n := len(w.seen("opened")); n != 2 {
					t.Errorf("%d streams were opened, want another one", n)
				}
			})
		})
	}
}

// A consumer that gets its new certificate late, after the expiry of the old one,
// replaces the stream at once.
func TestLateCertificateIsShownAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		own, other := w.party("consumer.example", short), w.party("owner.example", time.Hour)
		w.publish(ownerAddress, other).upsert(t, "a")
		config := w.config()
		as(own, &config)
		w.run(config)
		time.Sleep(short + mtls.DefaultGrace - 3*time.Second)
		own.Replace(time.Hour)
		synctest.Wait()
		time.Sleep(20 * time.Minute)
		w.neverLost(2, 2)
	})
}

// An owner of another kind, which may send the whole catalog again, gets the next stream
// when the certificate is about to expire, and so does one that is known not to resume.
func TestForeignOwner(t *testing.T) {
	t.Parallel()
	const lifetime = time.Hour
	marked := func(handler handler) handler {
		return func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
			if err := stream.SendHeader(metadata.Pairs(wire.CatalogEndHeader, wire.CatalogEndMarked)); err != nil {
				return err
			}
			return handler(stream)
		}
	}
	const early = lifetime * 3 / 8
	for name, tc := range map[string]struct {
		handler     handler
		holds       resume.Digests
		least, most time.Duration // until the next stream; 0: there is none
	}{
		"resumes, maybe":   {marked(good), nil, early, lifetime / 2},
		"does not resume":  {marked(good), held(), lifetime - 2*lastCall, lifetime - lastCall},
		"of another kind":  {good, nil, lifetime - 2*lastCall, lifetime - lastCall},
		"without a header": {silent, nil, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				own := w.party("consumer.example", lifetime)
				w.serve(ownerAddress, tc.handler)
				config := w.config()
				config.Sink = holder{world: w, digests: tc.holds}
				as(own, &config)
				w.run(config)
				time.Sleep(lifetime / 4)
				own.Replace(10 * lifetime)
				time.Sleep(lifetime - 2*time.Second - time.Since(w.start))
				opened := w.seen("opened")
				switch {
				case tc.most == 0:
					w.neverLost(1, 1)
				case len(opened) != 2 || opened[1].at < tc.least-2*time.Second || opened[1].at > tc.most:
					t.Errorf("streams were opened at %v, want the other after %v to %v", opened, tc.least, tc.most)
				default:
					w.neverLost(2, 2)
				}
			})
		})
	}
}

// Only a stream that is of use takes the place of one that is well. Attempts are one at a
// time, and go on until a certificate has ended the stream. They end with the consumer.
func TestNotReplaced(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]handler{
		"nothing":     silent,
		"another end": func(rdpb.DiscoveryService_EstablishStreamServer) error { return nil },
		"an error": func(rdpb.DiscoveryService_EstablishStreamServer) error {
			return status.Error(codes.Unauthenticated, "no")
		},
		"a header that makes no sense": func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
			if err := stream.SendHeader(metadata.Pairs(wire.ResumeHeader, "accepted 4/AA")); err != nil {
				return err
			}
			return silent(stream)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				own, other := w.party("consumer.example", time.Hour), w.party("owner.example", short)
				var opening, most, all atomic.Int32
				w.serve(ownerAddress, func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
					if all.Add(1) == 1 {
						return good(stream)
					}
					most.Store(max(most.Load(), opening.Add(1)))
					defer opening.Add(-1)
					return next(stream)
				}, grpc.Creds(other.Server()))
				config := w.config()
				as(own, &config)
				_, stop := w.run(config)
				for range 3 {
					time.Sleep(replaced)
					other.Replace(short)
				}
				time.Sleep(short + mtls.DefaultGrace - time.Since(w.start) - 2*time.Second)
				w.neverLost(1, 1)
				if lines := w.expiries(); len(lines) != 1 {
					t.Errorf("logged: %q", lines)
				}
				time.Sleep(4 * time.Second)
				if w.seen("lost") == nil && w.seen("parked") == nil {
					t.Error("the stream goes on")
				}
				if most.Load() != 1 || all.Load() < 4 {
					t.Errorf("%d streams, %d at once", all.Load(), most.Load())
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

// While the header of the next stream is awaited, the consumer may leave, and the open
// stream may end: that is noticed at once.
func TestEndBeforeHeader(t *testing.T) {
	t.Parallel()
	for _, left := range []bool{false, true} {
		t.Run(fmt.Sprint(left), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				own, other := w.party("consumer.example", time.Hour), w.party("owner.example", short)
				var streams atomic.Int32
				opening, breaks := make(chan struct{}), make(chan struct{})
				w.serve(ownerAddress, func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
					switch streams.Add(1) {
					case 1:
						go func() { _ = good(stream) }()
						<-breaks
						return errors.New("over")
					case 2:
						close(opening)
					}
					return silent(stream)
				}, grpc.Creds(other.Server()))
				config := w.config()
				as(own, &config)
				_, stop := w.run(config)
				time.Sleep(time.Second)
				other.Replace(time.Hour)
				<-opening
				begun := time.Now()
				if left {
					stop()
				}
				close(breaks)
				synctest.Wait()
				if took := time.Since(begun); took > leaveTimeout || !left && w.details("lost") == nil {
					t.Errorf("after %v, lost: %q", took, w.details("lost"))
				}
			})
		})
	}
}

// No stream takes the place of one that has not brought the whole catalog.
func TestIncompleteIsNotReplaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		own := w.party("consumer.example", short)
		w.publish(ownerAddress, w.party("owner.example", time.Hour)).upsert(t, "a")
		config := w.config()
		as(own, &config)
		w.incomplete.Store(true)
		w.run(config)
		time.Sleep(replaced)
		own.Replace(time.Hour)
		time.Sleep(short)
		w.neverLost(1, 1)
		w.incomplete.Store(false)
		time.Sleep(mtls.DefaultGrace / 2)
		w.neverLost(2, 2)
	})
}

// Streams are replaced rarely: half a year passes before the first of a certificate that
// lasts a year, and there are few attempts with one that is not replaced.
func TestReplacementDelay(t *testing.T) {
	t.Parallel()
	const year = 365 * 24 * time.Hour
	for _, left := range []time.Duration{year, time.Hour, time.Minute, -time.Minute, -time.Hour} {
		least, most, lastly := year, time.Duration(0), year
		for range 1000 {
			delay := replacementDelay(left, true)
			least, most, lastly = min(least, delay), max(most, delay), min(lastly, replacementDelay(left, false))
		}
		half := left.Abs() / 2
		if least < half*3/4 || most > half || least > half*4/5 || most < half*19/20 {
			t.Errorf("with %v left: %v to %v", left, least, most)
		}
		if left > 4*lastCall && (lastly < left-2*lastCall || lastly > left-lastCall) {
			t.Errorf("with %v left, %v pass before the whole catalog is fetched", left, lastly)
		}
	}
	for _, left := range []time.Duration{0, time.Second, -time.Second, 2 * time.Second} {
		if got := replacementDelay(left, true); got != minPause {
			t.Errorf("with %v left: %v", left, got)
		}
	}
	attempts := 0
	for left := year; left > -time.Minute; left -= replacementDelay(left, true) {
		attempts++
	}
	if attempts > 60 {
		t.Errorf("%d attempts with a certificate that is not replaced in a year", attempts)
	}
}
