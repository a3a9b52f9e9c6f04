package duplex_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// script is a peer written by hand: it sends messages as it likes, and reads them.
type script struct {
	t       *testing.T
	stream  rdpb.DiscoveryService_EstablishStreamClient
	context string   // of the subscription of the other side
	nonces  []string // of responses of the other side that are not acknowledged
}

// open opens a stream that announces an end marker.
func open(t *testing.T, client rdpb.DiscoveryServiceClient) *script {
	t.Helper()
	ctx := metadata.AppendToOutgoingContext(t.Context(), wire.CatalogEndHeader, wire.CatalogEndMarked)
	stream := must.Get(client.EstablishStream(ctx))(t)
	return &script{t: t, stream: stream}
}

// say sends messages. Each is a list of words: subscribe, ack (the oldest response), ack
// NONCE, upsert NONCE NAME, end NONCE, astray NONCE NAME (as upsert with the context of
// another session), nothing, close. Words joined by + are one message.
func (s *script) say(messages ...string) {
	s.t.Helper()
	for _, text := range messages {
		if text == "close" {
			must.Do(s.t, s.stream.CloseSend())
			continue
		}
		m := &rdpb.BidirectionalStream{}
		for part := range strings.SplitSeq(text, " + ") {
			words := append(strings.Fields(part), "", "")
			switch words[0] {
			case "subscribe":
				m.Request = wire.Subscribe("by hand")
			case "ack":
				if words[1] == "" {
					words[1], s.nonces = s.nonces[0], s.nonces[1:]
				}
				m.Request = wire.Ack(words[1], "by hand")
			case "upsert", "astray":
				event := federation.Event{Operation: federation.Upsert, Name: words[2], Service: service(words[2], 443, 0)}
				response := must.Get(wire.Encode(event, words[1], s.context))(s.t)
				if words[0] == "astray" {
					response.Context = "another"
				}
				m.Response = response
			case "end":
				m.Response = &rdpb.StreamResponse{Nonce: words[1], ResourceUrl: wire.ResourceURL, Context: s.context}
			}
		}
		must.Do(s.t, s.stream.Send(m))
	}
}

// hear receives messages, and expects them in any order.
func (s *script) hear(want ...string) {
	s.t.Helper()
	got := make(map[string]int)
	for range want {
		got[s.next()]++
	}
	for _, text := range want {
		if got[text]--; got[text] < 0 {
			s.t.Errorf("%q did not come; what came besides the rest: %v", text, got)
		}
	}
}

// next receives a message, and renders it.
func (s *script) next() string {
	s.t.Helper()
	m, err := s.stream.Recv()
	if err != nil {
		return fmt.Sprintf("%v: %s", status.Code(err), status.Convert(err).Message())
	}
	if request := m.GetRequest(); request != nil {
		parsed, err := wire.ParseRequest(request)
		switch {
		case err != nil:
			s.t.Error(err)
		case parsed.Initial:
			s.context = parsed.Context
			return "subscribe"
		}
		text := fmt.Sprintf("%v to %s", codes.Code(request.GetStatus().GetCode()), parsed.Nonce)
		if _, rule, ok := strings.Cut(request.GetStatus().GetMessage(), "context: "); ok {
			text += ": context " + rule
		}
		return text
	}
	event, err := wire.Decode(m.GetResponse(), wire.Policy{})
	if err != nil {
		s.t.Error(err)
	}
	if event.Operation == federation.Alive {
		event.Operation = federation.End
	}
	s.nonces = append(s.nonces, m.GetResponse().GetNonce())
	return strings.TrimSpace("w: " + event.Operation.String() + " " + event.Name)
}

// TestByHand has a peer with both roles that sends raw messages in odd orders.
func TestByHand(t *testing.T) {
	type step struct {
		say, hear []string
	}
	for name, tc := range map[string]struct {
		id    string
		steps []step
		west  string // what it has in the end
	}{
		"both in turn": {eastID, []step{
			{hear: []string{"subscribe"}},
			{say: []string{"upsert 1 a"}, hear: []string{"OK to 1"}},
			{say: []string{"subscribe"}, hear: []string{"w: upsert w0"}},
			{say: []string{"end 2"}, hear: []string{"OK to 2"}},
			{say: []string{"ack"}, hear: []string{"w: end"}},
			{say: []string{"ack"}},
		}, "synced a:443"},
		"both in one message": {eastID, []step{
			{hear: []string{"subscribe"}},
			{say: []string{"subscribe + upsert 1 a"}, hear: []string{"w: upsert w0", "OK to 1"}},
			{say: []string{"ack + end 2"}, hear: []string{"w: end", "OK to 2"}},
			{say: []string{"nothing", "ack + upsert 3 b"}, hear: []string{"OK to 3"}},
		}, "synced a:443 b:443"},
		"a request twice": {eastID, []step{
			{hear: []string{"subscribe"}},
			{say: []string{"upsert 1 a", "subscribe"}, hear: []string{"OK to 1", "w: upsert w0"}},
			{say: []string{"subscribe"}, hear: []string{`InvalidArgument: response_nonce "" is not that of an unacknowledged response`}},
		}, "stale a:443"},
		"an answer before the request": {eastID, []step{
			{hear: []string{"subscribe"}},
			{say: []string{"ack 7"}, hear: []string{"InvalidArgument: the first request of a stream must have neither response_nonce nor status"}},
		}, "connecting "},
		"an answer with an unknown nonce": {eastID, []step{
			{hear: []string{"subscribe"}},
			{say: []string{"subscribe"}, hear: []string{"w: upsert w0"}},
			{say: []string{"ack 7"}, hear: []string{`InvalidArgument: response_nonce "7" is not that of an unacknowledged response`}},
		}, "connecting "},
		"the context of another session": {eastID, []step{
			{hear: []string{"subscribe"}},
			{say: []string{"astray 1 a", "upsert 2 b"}, hear: []string{`InvalidArgument to 1: context "another" is not the context of this session`, "OK to 2"}},
		}, "syncing b:443"},
		"the same nonce, and none": {eastID, []step{
			{hear: []string{"subscribe"}},
			{say: []string{"upsert 1 a", "upsert 1 b", "end"}, hear: []string{"OK to 1", "OK to 1", "OK to "}},
		}, "synced a:443 b:443"},
		"the end in the middle": {eastID, []step{
			{hear: []string{"subscribe"}},
			{say: []string{"subscribe"}, hear: []string{"w: upsert w0"}},
			{say: []string{"upsert 1 a", "upsert 2 b", "close"}},
		}, "stale a:443 b:443"},
		"the end at once": {eastID, []step{
			{hear: []string{"subscribe"}},
			{say: []string{"close"}, hear: []string{"Unknown: EOF"}},
		}, "connecting "},
		"only a consumer": {eastID, []step{
			{say: []string{"subscribe"}, hear: []string{"subscribe", "w: upsert w0"}},
			{say: []string{"ack"}, hear: []string{"w: end"}},
			{say: []string{"ack", "close"}, hear: []string{"Unknown: EOF"}},
		}, "connecting "},
		"of whom nothing is wanted": {"spiffe://other.example/peer", []step{
			{say: []string{"upsert 1 a"}, hear: []string{"Unimplemented to 1"}},
			{say: []string{"subscribe + upsert 2 a"}, hear: []string{"Unimplemented to 2", "w: upsert w0"}},
			{say: []string{"ack"}, hear: []string{"w: end"}},
		}, "connecting "},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, rules)
				w.west.publish(t, "w", 1, 0)
				must.Run(t, w.west.mirror.Run)
				w.listen()
				s := open(t, w.connect(tc.id))
				for _, step := range tc.steps {
					s.say(step.say...)
					s.hear(step.hear...)
				}
				synctest.Wait()
				if got := w.west.shows(); got != tc.west {
					t.Errorf("west has %q, expected %q", got, tc.west)
				}
			})
		})
	}
}

// TestFlood publishes without end and reads nothing: what is taken of it is bounded, and
// its stream ends. It asks for the catalog as well, which is larger than what it has room
// for, and that must not keep the stream.
func TestFlood(t *testing.T) {
	for _, first := range []string{"nothing", "subscribe"} {
		t.Run(first, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 256, rules)
				w.west.publish(t, "w", 1000, 8<<10)
				must.Run(t, w.west.mirror.Run)
				w.listen()
				s := open(t, w.connect(eastID))
				s.hear("subscribe")
				s.say(first)
				var sent atomic.Int64
				flooding := make(chan error, 1)
				go func() {
					m := &rdpb.BidirectionalStream{Response: &rdpb.StreamResponse{Nonce: strings.Repeat("n", 1000), Context: "another"}}
					for s.stream.Send(m) == nil {
						sent.Add(1)
					}
					flooding <- nil
				}()
				time.Sleep(time.Second)
				synctest.Wait()
				if sent.Load() > 5000 || w.west.mirror.Status().Failure != nil {
					t.Errorf("%d responses were taken at once: %v", sent.Load(), w.west.mirror.Status().Failure)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if failure := w.west.mirror.Status().Failure; failure == nil || !strings.Contains(failure.Error(), "was read within 30s") ||
					w.west.streams() != 0 {
					t.Errorf("west says %v, and publishes on %d streams", failure, w.west.streams())
				}
				w.cut()
				<-flooding
			})
		})
	}
}

// TestStopped ends the subscription of west while the stream is open: the stream ends, and
// on the next one what comes is declined, until a mirror accepts streams again.
func TestStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, rules)
		stop := must.Run(t, w.west.mirror.Run)
		w.listen()
		client := w.connect(eastID)
		s := open(t, client)
		s.hear("subscribe")
		s.say("upsert 1 a")
		s.hear("OK to 1")
		stop()
		s.hear("Unavailable: the subscription to what you publish has ended")
		next := open(t, client)
		next.say("upsert 1 a")
		next.hear("Unimplemented to 1")
	})
}
