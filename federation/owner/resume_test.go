package owner

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/resume"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/registrytest"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
)

// onWires returns what a consumer of that version holds of services.
func onWires(tb testing.TB, version wire.Version, services map[string]*federation.Service) map[string]*federation.Service {
	tb.Helper()
	held := make(map[string]*federation.Service)
	for name, s := range services {
		if s := onWire(tb, version, s); s != nil {
			held[name] = s
		}
	}
	return held
}

// nextN receives that many responses, and acknowledges each.
func (l *receiver) nextN(tb testing.TB, n int) []string {
	tb.Helper()
	var got []string
	for range n {
		event, acknowledge, err := l.receive()
		if err != nil {
			tb.Fatal(err)
		}
		if event.Operation == federation.Alive {
			event.Operation = federation.End
		}
		got = append(got, show(event))
		acknowledge()
	}
	return got
}

// TestResume resumes with all that there is, with some that is different, and with nothing
// that is the same. Whatever a consumer has not is told before the end marker, and every
// change after it.
func TestResume(t *testing.T) {
	for _, version := range []wire.Version{wire.V1Alpha2, wire.V1Alpha1} {
		synctest.Test(t, func(t *testing.T) {
			audit := &testlog.Buffer{}
			f := start(t, func(c *Config) {
				c.Window = 8
				c.Audit = audit.Logger()
			})
			services := expressibles(100)
			for _, s := range services {
				upsert(t, f.registry, s)
			}
			ids := []federation.ID{idOf(t, consumerID)}
			held := onWires(t, version, services)

			same, resumed := comeBack(t, f, ids, version, held, 512)
			upsert(t, f.registry, expressible("s004", 2))
			f.registry.Delete("s002")
			upsert(t, f.registry, expressible("new", 1))
			// What comes one by one may be taken at once, and then in another order.
			want := []string{"delete s002", "end", "upsert new 1", "upsert s004 2"}
			if got := slices.Sorted(slices.Values(same.nextN(t, 4))); !resumed || !cmp.Equal(want, got) {
				t.Errorf("%s, the same: told %v, expected %v", version, got, want)
			}

			// Of three leaves, no other name is in any.
			some, resumed := comeBack(t, f, ids, version, held, 512)
			want = []string{"upsert new 1", "upsert s004 2", "end"}
			if got := some.nextN(t, 3); !resumed || !cmp.Equal(want, got) {
				t.Errorf("%s, some: told %v, expected %v", version, got, want)
			}
			if some.Held["s002"] != nil || len(some.Held) != 98 {
				t.Errorf("%s: %d services are held without being told, with s002: %v", version, len(some.Held), some.Held["s002"])
			}
			f.registry.Delete("s003") // which was never told on this stream
			if got := some.nextN(t, 1); got[0] != "delete s003" {
				t.Errorf("%s: told %v, expected delete s003", version, got)
			}

			other, resumed := comeBack(t, f, ids, version, map[string]*federation.Service{"x": held["s004"]}, 1)
			if got := other.nextN(t, 100); resumed || got[99] != "end" {
				t.Errorf("%s: a catalog of which all is different was resumed, or ends with %v", version, got[99])
			}
			synctest.Wait()
			if got := f.server.Stats().Catalogs[""]; got.Resumed != 2 || got.Spared != 198 || got.Unsent != 0 {
				t.Errorf("%s: unexpected figures %+v", version, got)
			}
			who := fmt.Sprintf("catalog=\"\" consumer=%s ", consumerID)
			for text, want := range map[string]int{
				"services held\" " + who + "held=100\n": 1,
				"services held\" " + who + "held=98\n":  1,
				"service told\"":                        1 + 2 + 99,
				"service withdrawn\" " + who:            3,
			} {
				if got := audit.Count(text); got != want {
					t.Errorf("%s: the audit has %d lines with %q, expected %d", version, got, text, want)
				}
			}
		})
	}
}

// TestResumeNeedsTheHeader sends no header, and such as cannot be read: these consumers are
// told everything, and nothing of resumption in the header of the stream.
func TestResumeNeedsTheHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, func(c *Config) { c.Window = 8 })
		services := expressibles(3)
		for _, s := range services {
			upsert(t, f.registry, s)
		}
		good := registrytest.SumOf(t, registrytest.Plain, services).Fold(4).Header()
		for name, pairs := range map[string][]string{
			"none":      nil,
			"empty":     {wire.ResumeHeader, ""},
			"damaged":   {wire.ResumeHeader, good[1:]},
			"two":       {wire.ResumeHeader, good, wire.ResumeHeader, good},
			"of others": {wire.ResumeHeader, resume.Digests{{1}}.Header()},
		} {
			l := listen(t, f, []federation.ID{idOf(t, consumerID)}, wire.V1Alpha2, pairs...)
			header, err := l.header()
			if err != nil || len(header.Get(wire.ResumeHeader)) > 0 {
				t.Errorf("%s: header %v, error %v", name, header, err)
			}
			if got, want := l.nextN(t, 4), []string{"upsert s000 1", "upsert s001 1", "upsert s002 1", "end"}; !cmp.Equal(want, got) {
				t.Errorf("%s: told %v, expected %v", name, got, want)
			}
		}
	})
}

// silent opens a stream that resumes, and sends no initial request.
func silent(t *testing.T, f *fixture, services map[string]*federation.Service) *client {
	t.Helper()
	ctx := metadata.AppendToOutgoingContext(t.Context(), wire.ResumeHeader, registrytest.SumOf(t, registrytest.Plain, services).Header())
	stream := must.Get(rdpb.NewDiscoveryServiceClient(f.dial(t, consumerID)).EstablishStream(ctx))(t)
	header, err := stream.Header()
	if err != nil || len(header.Get(wire.ResumeHeader)) != 1 {
		t.Fatalf("the header is %v, with error %v", header, err)
	}
	return &client{t, stream}
}

// TestResumedStreamHasToBegin ends a stream without an initial request after a minute, and
// not one whose request comes before.
func TestResumedStreamHasToBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		services := expressibles(3)
		for _, s := range services {
			upsert(t, f.registry, s)
		}
		mute, late, never := silent(t, f, services), silent(t, f, services), open(t, f.dial(t, consumerID))
		time.Sleep(openTimeout - time.Second)
		upsert(t, f.registry, expressible("s001", 2))
		late.request(wire.Subscribe("session"))
		begun := time.Now()
		if got := mute.status(); got.Code() != codes.Unavailable || time.Since(begun) != time.Second {
			t.Errorf("the stream ended with %v after %v more, expected Unavailable after a second", got, time.Since(begun))
		}
		time.Sleep(time.Hour)
		if got, want := late.nextN(2), []string{"upsert s001 2", "end"}; !cmp.Equal(want, got) {
			t.Errorf("told %v, expected %v", got, want)
		}
		never.request(wire.Subscribe("session")) // does not resume, so it has all the time
		if got := never.next(); got != "upsert s000 1" {
			t.Errorf("told %v, expected upsert s000 1", got)
		}
	})
}

// TestResumedStreamEnds makes the registry unavailable for streams that have resumed.
func TestResumedStreamEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		services := expressibles(3)
		for _, s := range services {
			upsert(t, f.registry, s)
		}
		ids := []federation.ID{idOf(t, consumerID)}
		f.registry.Delete("s001")
		l, resumed := comeBack(t, f, ids, wire.V1Alpha2, services, 512)
		if got := l.nextN(t, 1); !resumed || got[0] != "end" || l.Held["s001"] != nil || len(l.Held) != 2 {
			t.Errorf("resumed %v and told %v, and %d services are held, expected the end and 2", resumed, got, len(l.Held))
		}
		mute := silent(t, f, services)
		f.registry.SetUnavailable("away", time.Time{})
		expectUnavailable(t, mute)
		if _, _, err := l.receive(); status.Code(err) != codes.Unavailable {
			t.Errorf("the resumed stream got %v, expected Unavailable", err)
		}
	})
}

// TestResumeOfWhatIsWithheld resumes where services are not sent to the consumer. When
// they can be sent they are new, and when they go the consumer is told nothing.
func TestResumeOfWhatIsWithheld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, func(c *Config) { c.Window = 8 })
		services := expressibles(3)
		for _, s := range services {
			upsert(t, f.registry, s)
		}
		for _, name := range []string{"x", "y"} {
			upsert(t, f.registry, service(name, 1)) // without a SAN
		}
		conn := f.dial(t, consumerID)
		full := subscribe1(t, conn)
		full.nextN(3)
		held := onWires(t, wire.V1Alpha1, services)
		ctx := metadata.AppendToOutgoingContext(t.Context(),
			wire.ResumeHeader, registrytest.SumOf(t, registry.Form{Version: wire.V1Alpha1, MaxMessage: defaultMaxMessage}, held).Header())
		c := subscribe1With(ctx, t, conn)
		synctest.Wait()
		f.registry.Delete("y")
		upsert(t, f.registry, expressible("x", 2))
		synctest.Wait()
		upsert(t, f.registry, expressible("s001", 2))
		if got, want := c.nextN(3), []string{"CREATE x 2", "UNKNOWN", "UPDATE s001 2"}; !cmp.Equal(want, got) {
			t.Errorf("told %v, expected %v", got, want)
		}
		if got := f.server.Stats().Catalogs[""]; got.Resumed != 1 || got.Spared != 3 {
			t.Errorf("unexpected figures %+v", got)
		}
	})
}

// TestRefusalEndsWithWhatIsHeld refuses a version of a service, which is then taken back.
// The consumer holds the one before, and so refuses nothing any more.
func TestRefusalEndsWithWhatIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var heard listener
		f := start(t, nil)
		f.registry.OnRefusal(heard.hear)
		services := expressibles(2)
		for _, s := range services {
			upsert(t, f.registry, s)
		}
		c := subscribe(t, f.dial(t, consumerID))
		c.nextN(3)
		upsert(t, f.registry, expressible("s000", 2))
		c.refuse("fqdn: not mine")
		upsert(t, f.registry, expressible("s001", 2))
		c.refuse("fqdn: not mine")
		synctest.Wait()
		refusal := registry.Refusal{Service: "s000", Consumer: consumerID, Rule: "fqdn: not mine"}
		other := refusal
		other.Service = "s001"
		heard.expect(t, "refused", refusal, other)
		must.Do(t, c.stream.CloseSend())
		c.status()
		upsert(t, f.registry, services["s000"])
		l, _ := comeBack(t, f, []federation.ID{idOf(t, consumerID)}, wire.V1Alpha2, services, 512)
		synctest.Wait()
		heard.expect(t, "resumed", registry.Refusal{Service: "s000", Consumer: consumerID})
		if got, want := l.nextN(t, 2), []string{"upsert s001 2", "end"}; !cmp.Equal(want, got) {
			t.Errorf("told %v, expected %v", got, want)
		}
		synctest.Wait()
		heard.expect(t, "taken", registry.Refusal{Service: "s001", Consumer: consumerID})
	})
}

// FuzzResume lets a consumer come back with any header, or the digests of any catalog. By
// the rules, it holds the view of then in the end, whatever it held and whatever changes
// meanwhile. One that held exactly that is told nothing.
func FuzzResume(f *testing.F) {
	f.Add(uint64(1), uint8(0), "")
	f.Add(uint64(2), uint8(1), "accepted")
	f.Add(uint64(3), uint8(18), "")
	f.Add(uint64(4), uint8(91), strings.Repeat("A", 86))
	f.Add(uint64(5), uint8(43), resume.Digests{{}, {}}.Header())
	f.Fuzz(func(t *testing.T, seed uint64, kind uint8, header string) {
		w := registrytest.NewWorld(t, seed, registrytest.Hooks{})
		w.Begin()
		w.Holders = nil
		w.Registry.SetUnavailable("", time.Time{})
		version := []wire.Version{wire.V1Alpha2, wire.V1Alpha1}[kind%2]
		shape := registry.Form{Version: version, MaxMessage: defaultMaxMessage}
		ids := w.IDs()
		view := func() map[string]*federation.Service {
			return onWires(t, version, w.Visible(&registrytest.Holder{IDs: ids}))
		}
		buckets := 1 << (kind / 2 % 10)
		honest := kind%3 == 0
		held := view()
		if !honest {
			held = onWires(t, version, w.Remembered())
		}
		text := registrytest.SumOf(t, shape, held).Fold(buckets).Header()
		if kind > 200 { // a part of it is something else
			honest = false
			at := min(int(kind)%20, len(text))
			text = text[:at] + header
		}
		theirs, err := resume.ParseDigests(text)
		if err != nil {
			return
		}
		buckets = len(theirs)
		resumed := registrytest.ResumeAs(w.Registry, ids, shape, theirs)
		if w.IntN(3) == 0 {
			honest = false
			w.Do([]byte{0, 2, 3, 4, 5, 6}[w.IntN(6)])
		}
		var s *registry.Subscription
		stale := maps.Clone(held)
		announced := make(map[string]*federation.Service)
		if resumed == nil {
			s = w.Registry.SubscribeAs(registry.Consumer{IDs: ids})
		} else {
			selection := must.Get(resume.ParseSelection(resumed.Selection.Header(), buckets))(t)
			for name, service := range held {
				if !selection.Has(name) {
					announced[name] = service
					delete(stale, name)
				}
			}
			s = resumed.Subscription
		}
		defer s.Close()
		stream := &session{
			server:  &Server{config: Config{MaxMessage: defaultMaxMessage}},
			catalog: newCatalogs(nil, slog.New(slog.DiscardHandler))[""],
			dialect: dialect{version: version, prepare: func(u registry.Update) (message, error) {
				if u.Encoded == nil {
					return message{}, nil
				}
				value, err := shape.Value(u.Encoded)
				return message{bytes: len(value)}, err
			}},
		}
		if resumed != nil {
			for _, m := range resumed.Withheld {
				stream.withhold(m.Name, gapOf(m.Err))
			}
		}
		messages, ended := 0, false
		for range 6 {
			for updates := s.Take(nil, 1+w.IntN(4)); len(updates) > 0; updates = s.Take(nil, 1+w.IntN(4)) {
				for _, u := range updates {
					u, _, ok := stream.express(u)
					if !ok {
						continue
					}
					messages++
					switch u.Operation {
					case federation.Upsert:
						if u.Told != (announced[u.Name] != nil) {
							t.Fatalf("told %s as known %v, and it is otherwise", u.Name, u.Told)
						}
						announced[u.Name] = onWire(t, version, u.Encoded.Service())
						delete(stale, u.Name)
					case federation.Delete:
						if announced[u.Name] == nil {
							t.Fatalf("told to delete %s, of which the consumer does not know", u.Name)
						}
						delete(announced, u.Name)
					default:
						clear(stale)
						ended = true
					}
				}
			}
			if diff := cmp.Diff(view(), announced, cmp.Comparer(func(a, b *federation.Service) bool { return a.Equal(b) })); diff != "" || !ended || len(stale) > 0 {
				t.Fatalf("the end marker came: %v; unexpected services (-want +got):\n%s", ended, diff)
			}
			if honest && len(held) > 0 && (resumed == nil || messages != 1) {
				t.Fatalf("a consumer that had everything got %d messages", messages)
			}
			honest = false
			w.Do([]byte{0, 2, 3, 4, 5, 6, 7}[w.IntN(7)])
		}
	})
}
