package registration_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/internal/source/registration"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
)

func opening(version uint32) *registrationv1.RegisterRequest {
	return &registrationv1.RegisterRequest{Message: &registrationv1.RegisterRequest_Open{Open: &registrationv1.Open{Version: version}}}
}

func activating(service string) *registrationv1.RegisterRequest {
	return &registrationv1.RegisterRequest{Message: &registrationv1.RegisterRequest_Active{Active: &registrationv1.Active{Service: service, Node: one}}}
}

// What a provider may not say ends its stream with a reason, and nothing else.
func TestProviderThatBreaksTheProtocol(t *testing.T) {
	for name, tc := range map[string]struct {
		says []*registrationv1.RegisterRequest
		want string
		code codes.Code
	}{
		"no Open":      {[]*registrationv1.RegisterRequest{activating(web)}, "Close PANIC_AT_THE_DISCO the first message must be Open", codes.InvalidArgument},
		"Open twice":   {[]*registrationv1.RegisterRequest{opening(1), opening(1)}, "Close PANIC_AT_THE_DISCO Open was sent twice", codes.InvalidArgument},
		"version 0":    {[]*registrationv1.RegisterRequest{opening(0)}, "Close VERSION_MISMATCH this owner speaks version 1 of the protocol, and not version 0", codes.FailedPrecondition},
		"version 2":    {[]*registrationv1.RegisterRequest{opening(2)}, "Close VERSION_MISMATCH this owner speaks version 1 of the protocol, and not version 2", codes.FailedPrecondition},
		"unknown":      {[]*registrationv1.RegisterRequest{opening(1), {}}, "Close PANIC_AT_THE_DISCO a message that version 1 of the protocol does not have", codes.InvalidArgument},
		"unknown Open": {[]*registrationv1.RegisterRequest{{}}, "Close PANIC_AT_THE_DISCO the first message must be Open", codes.InvalidArgument},
		"too large": {
			[]*registrationv1.RegisterRequest{opening(1), activating(strings.Repeat("x", 64<<10))},
			"Close PANIC_AT_THE_DISCO a message of 65568 bytes, the limit is 65536", codes.ResourceExhausted,
		},
		"nothing": {nil, "Close PANIC_AT_THE_DISCO there was no Open for 10s", codes.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := settled(t, registration.Config{})
				p := w.connect("web")
				p.active(web, one)
				bad := w.dial("spiffe://acme.example/bad", 10)
				for _, m := range tc.says {
					bad.say(m)
				}
				time.Sleep(10 * time.Second)
				<-bad.ended
				bad.expect("Open 1", tc.want)
				if status.Code(bad.err) != tc.code {
					t.Error(bad.err)
				}
				w.expect("the others live on", "web.acme.example 192.0.2.1:8443")
			})
		})
	}
}

func TestCallerWithoutIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := settled(t, registration.Config{})
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		for _, ctx := range []context.Context{ctx, peer.NewContext(ctx, &peer.Peer{})} {
			if err := w.source.Register(&provider{ctx: ctx}); status.Code(err) != codes.Unauthenticated {
				t.Error(err)
			}
		}
	})
}

// A provider that does not read is not read from either.
func TestProviderThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := settled(t, registration.Config{})
		for name, tc := range map[string]struct {
			service string
			most    int
		}{"many": {"web.evil.example", 256 + 2}, "long": {strings.Repeat("x", 20_000), 15}} {
			p := w.dial("spiffe://acme.example/"+name, 0)
			read := 0
			done := make(chan struct{})
			go func() {
				defer close(done)
				for p.say(opening(1)); p.say(activating(tc.service)); {
					read++
				}
			}()
			time.Sleep(time.Minute)
			synctest.Wait()
			if read == 0 || read > tc.most {
				t.Errorf("%s: %d messages were read", name, read)
			}
			p.breakStream()
			<-done
		}
	})
}

// A flood of Actives for nodes that have not been stored yet waits in one change for each.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCluster().store(true)
		w := settled(t, registration.Config{Store: s})
		s.setAway(true, false)
		p := w.connect("web")
		for i := range 5000 {
			p.active(web, fmt.Sprintf("tcp://192.0.2.1:%d", 1+i%10), func(a *registrationv1.Active) { a.Description = fmt.Sprint(i) })
			p.told()
		}
		if stats := w.source.Stats(); stats.Pending != 5 || stats.Refused["quota"] != 2500 {
			t.Errorf("%+v", stats)
		}
		s.setAway(false, false)
		time.Sleep(time.Second)
		if got := p.told(); len(got) != 5 {
			t.Errorf("told %q", got)
		}
	})
}

// A provider is logged as what it is, with bounds.
func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := settled(t, registration.Config{})
		p := w.connect("web")
		for range 1000 {
			p.active("evil\n\x1b[31m"+strings.Repeat("x", 1000), one)
			p.told()
		}
		p.breakStream()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		log := w.log.String()
		if lines := strings.Count(log, "\n"); lines > 20 || strings.Contains(log, "\x1b") || !strings.Contains(log, "spiffe://acme.example/web") || !strings.Contains(log, "rule=malformed") {
			t.Errorf("%d lines:\n%s", lines, log)
		}
	})
}

// A stream that the owner ends says why.
func TestEndedForAReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := settled(t, registration.Config{})
		p, broken := w.connect("web"), w.connect("broken")
		reason := status.Error(codes.PermissionDenied, "not any more")
		p.end(reason)
		broken.breakStream()
		<-p.ended
		if !errors.Is(p.err, reason) || status.Code(broken.err) != codes.Canceled {
			t.Errorf("the streams ended with %v and %v", p.err, broken.err)
		}
	})
}
