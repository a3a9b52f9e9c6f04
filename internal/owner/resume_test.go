package owner

import (
	"log/slog"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/resume"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/registrytest"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
)

// resumes returns what stands in the header of a consumer that holds these services.
func resumes(tb testing.TB, services map[string]*federation.Service, buckets int) []string {
	tb.Helper()
	digests := registrytest.SumOf(tb, defaultMaxMessage, services)
	return []string{wire.ResumeHeader, digests.FoldTo(buckets).Header()}
}

// TestResume resumes with all that there is, with some that is different, and with nothing
// that is the same. Whatever a consumer has not is told before the end marker, and every
// change after it.
func TestResume(t *testing.T) {
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
		conn, held := f.dial(t, consumerID), resumes(t, services, resume.Leaves)
		expect := func(c *client, want ...string) {
			t.Helper()
			if got := c.nextN(len(want)); !cmp.Equal(want, got) {
				t.Errorf("told %v, expected %v", got, want)
			}
			synctest.Wait()
		}
		same := subscribe(t, conn, held...)
		expect(same, "end")
		upsert(t, f.registry, expressible("s004", 2))
		expect(same, "upsert s004 2")
		f.registry.Delete("s002")
		expect(same, "delete s002")
		upsert(t, f.registry, expressible("new", 1))
		expect(same, "upsert new 1")

		some := subscribe(t, conn, held...)
		expect(some, "upsert new 1", "upsert s004 2", "end")
		f.registry.Delete("s003") // which was never told on this stream
		expect(some, "delete s003")

		other := subscribe(t, conn, resumes(t, map[string]*federation.Service{"x": services["s004"]}, 1)...)
		if got := other.nextN(100); got[99] != "end" {
			t.Errorf("a catalog of which all is different ends with %v", got[99])
		}
		synctest.Wait()
		if got := f.server.Stats().Catalogs[""]; got.Resumed != 2 || got.Spared != 198 {
			t.Errorf("unexpected figures %+v", got)
		}
		for text, want := range map[string]int{
			"services held\" catalog=\"\" consumer=" + consumerID + " held=100\n": 1,
			"services held\" catalog=\"\" consumer=" + consumerID + " held=98\n":  1,
			"service told\"":      1 + 2 + 99,
			"service withdrawn\"": 3,
		} {
			if got := audit.Count(text); got != want {
				t.Errorf("the audit has %d lines with %q, expected %d", got, text, want)
			}
		}
	})
}

// TestResumeNeedsTheHeader sends such headers as cannot be read: these consumers are told
// everything, and nothing of resumption in the header of the stream.
func TestResumeNeedsTheHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		services := expressibles(1)
		upsert(t, f.registry, services["s000"])
		good := resumes(t, services, 4)
		for name, pairs := range map[string][]string{
			"damaged":   {wire.ResumeHeader, good[1][1:]},
			"two":       append(good, good...),
			"of others": {wire.ResumeHeader, resume.Digests{{1}}.Header()},
		} {
			c := subscribe(t, f.dial(t, consumerID), pairs...)
			if header := must.Get(c.stream.Header())(t); len(header.Get(wire.ResumeHeader)) > 0 {
				t.Errorf("%s: header %v", name, header)
			}
			if got := c.next(); got != "upsert s000 1" {
				t.Errorf("%s: told %s", name, got)
			}
		}
	})
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
		conn, held := f.dial(t, consumerID), resumes(t, services, resume.Leaves)
		mute, late, never := open(t, conn, held...), open(t, conn, held...), open(t, conn)
		synctest.Wait()
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

// TestResumeOfWhatIsWithheld resumes where services are not sent to the consumer, because no message has
// room for them. When they can be sent they are new, and when they go the consumer is told nothing.
func TestResumeOfWhatIsWithheld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, func(c *Config) { c.MaxMessage = 4 << 10 })
		services := expressibles(3)
		for _, s := range services {
			upsert(t, f.registry, s)
		}
		for _, name := range []string{"x", "y"} {
			large := expressible(name, 1)
			large.Description = strings.Repeat("x", 4<<10)
			upsert(t, f.registry, large)
		}
		c := subscribe(t, f.dial(t, consumerID), resumes(t, services, resume.Leaves)...)
		synctest.Wait()
		f.registry.Delete("y")
		upsert(t, f.registry, expressible("x", 2))
		synctest.Wait()
		upsert(t, f.registry, expressible("s001", 2))
		if got, want := c.nextN(3), []string{"end", "upsert s001 2", "upsert x 2"}; !cmp.Equal(want, got) {
			t.Errorf("told %v, expected %v", got, want)
		}
		if got := f.server.Stats().Catalogs[""]; got.Resumed != 1 || got.Spared != 3 {
			t.Errorf("unexpected figures %+v", got)
		}
	})
}

// TestResumeNeedsV1Alpha2 sends digests by v1alpha1, which are those of other messages: the consumer is
// told everything.
func TestResumeNeedsV1Alpha2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		services := expressibles(1)
		upsert(t, f.registry, services["s000"])
		c := subscribe1(t, f.dial(t, consumerID), resumes(t, services, resume.Leaves)...)
		if got := c.nextN(2); !cmp.Equal([]string{"CREATE s000 1", "UNKNOWN"}, got) {
			t.Errorf("told %v, expected everything", got)
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
		c = subscribe(t, f.dial(t, consumerID), resumes(t, services, resume.Leaves)...)
		synctest.Wait()
		heard.expect(t, "resumed", registry.Refusal{Service: "s000", Consumer: consumerID})
		if got, want := c.nextN(2), []string{"upsert s001 2", "end"}; !cmp.Equal(want, got) {
			t.Errorf("told %v, expected %v", got, want)
		}
		synctest.Wait()
		heard.expect(t, "taken", registry.Refusal{Service: "s001", Consumer: consumerID})
	})
}

// sentIn returns those services for which a message of that size has room.
func sentIn(tb testing.TB, maxMessage int, services map[string]*federation.Service) map[string]*federation.Service {
	tb.Helper()
	held := maps.Clone(services)
	maps.DeleteFunc(held, func(_ string, s *federation.Service) bool {
		return !registry.FitsMessage(len(registrytest.Encoded(tb, s).Resource().GetValue()), maxMessage)
	})
	return held
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
		m := registrytest.NewModel(t, seed, registrytest.Hooks{})
		m.Begin()
		m.Peers = nil
		m.Registry.SetUnavailable("", time.Time{})
		maxMessage := []int{defaultMaxMessage, 2<<10 + 120}[kind%2] // the second one is too small for some
		ids := m.IDs()
		view := func() map[string]*federation.Service {
			return sentIn(t, maxMessage, m.Visible(&registrytest.Peer{IDs: ids}))
		}
		buckets := 1 << (kind / 2 % 10)
		honest := kind%3 == 0
		held := view()
		if !honest {
			held = sentIn(t, maxMessage, m.Remembered())
		}
		text := registrytest.SumOf(t, maxMessage, held).FoldTo(buckets).Header()
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
		resumed := registrytest.ResumeAs(m.Registry, ids, maxMessage, theirs)
		if m.IntN(3) == 0 {
			honest = false
			m.Do([]byte{0, 2, 3, 4, 5, 6}[m.IntN(6)])
		}
		var s *registry.Subscription
		stale := maps.Clone(held)
		announced := make(map[string]*federation.Service)
		if resumed == nil {
			s = m.Registry.SubscribeAs(registry.Consumer{IDs: ids})
		} else {
			selection := must.Get(resume.ParseSelection(resumed.Selection.Header(), buckets))(t)
			for name, service := range held {
				if !selection.HasName(name) {
					announced[name] = service
					delete(stale, name)
				}
			}
			s = resumed.Subscription
		}
		defer s.Close()
		stream := &streamSession{
			server:  &Server{config: Config{MaxMessage: maxMessage}},
			catalog: newServedCatalogs(nil, slog.New(slog.DiscardHandler))[""],
			apiDialect: apiDialect{version: wire.V1Alpha2, prepare: func(u registry.Update) (encodedUpdate, error) {
				if u.Encoded == nil {
					return encodedUpdate{}, nil
				}
				return encodedUpdate{bytes: len(u.Encoded.Resource().GetValue())}, nil
			}},
		}
		if resumed != nil {
			for _, name := range resumed.Withheld {
				stream.withholdService(name, tooLarge)
			}
		}
		messages, ended := 0, false
		for range 6 {
			for updates := s.TakeUpdates(nil, 1+m.IntN(4)); len(updates) > 0; updates = s.TakeUpdates(nil, 1+m.IntN(4)) {
				for _, u := range updates {
					u, _, ok := stream.expressUpdate(u)
					if !ok {
						continue
					}
					messages++
					switch u.Operation {
					case wire.Upsert:
						if u.Told != (announced[u.Name] != nil) {
							t.Fatalf("told %s as known %v, and it is otherwise", u.Name, u.Told)
						}
						announced[u.Name] = u.Encoded.Service()
						delete(stale, u.Name)
					case wire.Delete:
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
			m.Do([]byte{0, 2, 3, 4, 5, 6, 7}[m.IntN(7)])
		}
	})
}
