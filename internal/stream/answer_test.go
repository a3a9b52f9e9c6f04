package stream

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// recorder is a stream that remembers the answers.
type recorder struct {
	grpc.ClientStream

	answers  []string
	takes    time.Duration // each answer
	fails    error         // of the second answer
	header   metadata.MD
	response Update // that is received
	closed   error
}

func (r *recorder) answerResponse(nonce string, refusal *federation.InvalidError) error {
	time.Sleep(r.takes)
	if r.answers = append(r.answers, nonce); refusal != nil {
		r.answers[len(r.answers)-1] += " " + string(refusal.Reason)
	}
	if len(r.answers) == 2 {
		return r.fails
	}
	return nil
}

func (r *recorder) receiveResponse() (Update, int, error) { return r.response, 7, r.fails }

func (r *recorder) stream() *ownerStream {
	return &ownerStream{r, r.receiveResponse, r.answerResponse}
}

// Header implements grpc.ClientStream.
func (r *recorder) Header() (metadata.MD, error) { return r.header, r.fails }

// CloseSend implements grpc.ClientStream.
func (r *recorder) CloseSend() error { return r.closed }

// Every update is answered in order, up to one that cannot be. The owner has 30 s to
// make room.
func TestAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		updates := []Update{
			{nonce: "a"},
			{nonce: "b", Invalid: &federation.InvalidError{Reason: federation.ReasonName}},
			{nonce: "c"},
		}
		gone := errors.New("gone")
		for name, tc := range map[string]struct {
			stream recorder
			want   string
			err    error
		}{
			"in order": {recorder{}, "a, b name, c", nil},
			"fails":    {recorder{fails: gone}, "a, b name", gone},
			"slow":     {recorder{takes: 10*time.Second - 1}, "a, b name, c", nil},
			"too slow": {recorder{takes: 10*time.Second + 1}, "a, b name, c", errAnswerTimeout},
		} {
			ctx, cancel := context.WithCancelCause(t.Context())
			err := answerUpdates(tc.stream.stream(), cancel, updates)
			if got := strings.Join(tc.stream.answers, ", "); got != tc.want || !errors.Is(err, tc.err) || tc.err == nil && err != nil {
				t.Errorf("%s: the answers are %s, %v", name, got, err)
			}
			time.Sleep(time.Minute)
			if cause := context.Cause(ctx); (cause != nil) != errors.Is(tc.err, errAnswerTimeout) {
				t.Errorf("%s: the stream ends: %v", name, cause)
			}
			cancel(nil)
		}
	})
}

// Whatever comes ends the silence, and has the time of its receipt. Where the end of
// the catalog is marked, an empty response is the end, unless it is refused.
func TestReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := &federation.InvalidError{}
		quiet := &Consumer{}
		for name, tc := range map[string]struct {
			marked   bool
			response Update
			want     wire.Operation
		}{
			"alive":   {false, Update{Event: wire.Event{Operation: wire.Alive}}, wire.Alive},
			"end":     {true, Update{Event: wire.Event{Operation: wire.Alive}}, wire.End},
			"refused": {true, Update{Invalid: refused}, 0},
			"upsert":  {true, Update{Event: wire.Event{Operation: wire.Upsert}}, wire.Upsert},
		} {
			silence := time.AfterFunc(time.Second, func() {})
			with := &conversation{stream: (&recorder{response: tc.response}).stream(), silence: silence}
			with.announced.Marked = tc.marked
			update, size, err := quiet.receiveUpdate(with)
			if update.Operation != tc.want || size != 7 || err != nil {
				t.Errorf("%s: received %+v, %d, %v", name, update, size, err)
			}
			if silence.Stop() {
				t.Errorf("%s: is silence", name)
			}
		}
		silence := time.AfterFunc(time.Second, func() {})
		if _, _, err := quiet.receiveUpdate(&conversation{stream: (&recorder{fails: io.EOF}).stream(), silence: silence}); !errors.Is(err, io.EOF) || !silence.Stop() {
			t.Errorf("the end is %v, or no silence", err)
		}
	})
}

// The end of a stream is no error of Send: what was sent before it is still to come.
func TestSent(t *testing.T) {
	other := errors.New("other")
	if sendError(nil) != nil || sendError(io.EOF) != nil || !errors.Is(sendError(other), other) {
		t.Errorf("errors are %v, %v, %v", sendError(nil), sendError(io.EOF), sendError(other))
	}
}
