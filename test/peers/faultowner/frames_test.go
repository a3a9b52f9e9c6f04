package faultowner

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestFrames runs scripts of frames against a client of grpc-go, which must see what
// the script says.
func TestFrames(t *testing.T) {
	for name, tc := range map[string]struct {
		script string
		heard  int // responses
		after  time.Duration
		code   codes.Code
		text   string
	}{
		"a good stream":    {"frames\nstream\nannounce\nupsert a a.example 192.0.2.1\nend\nstatus OK", 2, 0, codes.OK, ""},
		"a status only":    {"frames\nstream\nstatus NotFound", 0, 0, codes.NotFound, "as the script says"},
		"dripping":         {"frames\nstream\ndrip 1s a a.example 192.0.2.1\nstatus OK", 1, 3 * time.Minute, codes.OK, ""},
		"http":             {"frames\nstream\nwait 3s\nhttp 503", 0, 3 * time.Second, codes.Unavailable, "503"},
		"rst":              {"frames\nstream\nrst", 0, 0, codes.Internal, "INTERNAL_ERROR"},
		"goaway, and more": {"frames\nstream\ngoaway 1\nupsert a a.example 192.0.2.1\nstatus OK", 1, 0, codes.OK, ""},
		"goaway, unseen":   {"frames\nstream\nheader\ngoaway 0\nhang", 0, 0, codes.Unavailable, ""},
		"pings":            {"frames\nstream\nheader\npings 1s 10", 0, time.Hour, codes.DeadlineExceeded, ""},
		"settings":         {"frames\nstream\nheader\nsettings 1s 10", 0, time.Hour, codes.DeadlineExceeded, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				script := must.Get(Parse(tc.script))(t)
				ctx, stop := context.WithCancel(t.Context())
				listener := bufconn.Listen(1 << 16)
				served := make(chan error, 1)
				go func() { served <- New(Config{Script: script}).Serve(ctx, listener) }()
				start := time.Now()
				heard, err := subscribe(t, listener)
				if took := time.Since(start); took < tc.after || took > tc.after+time.Minute {
					t.Errorf("took %v, want %v", took, tc.after)
				}
				s := status.Convert(err)
				if heard != tc.heard || s.Code() != tc.code || !strings.Contains(s.Message(), tc.text) {
					t.Errorf("%d responses and %v, want %d and %v %q", heard, s, tc.heard, tc.code, tc.text)
				}
				stop()
				if err := <-served; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// subscribe acknowledges responses until the stream ends, for at most an hour. It
// returns their number, and nil for a clean end.
func subscribe(t *testing.T, listener *bufconn.Listener) (heard int, err error) {
	t.Helper()
	conn := must.Get(grpc.NewClient("passthrough:///owner", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) })))(t)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	stream, err := rdpb.NewDiscoveryServiceClient(conn).EstablishStream(ctx)
	if err != nil {
		return 0, err
	}
	if err := stream.Send(&rdpb.BidirectionalStream{Request: &rdpb.StreamRequest{Context: "c"}}); err != nil {
		_, err = stream.Recv()
		return 0, err
	}
	for {
		message, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return heard, err
		}
		heard++
		_ = stream.Send(&rdpb.BidirectionalStream{Request: &rdpb.StreamRequest{
			ResponseNonce: message.GetResponse().GetNonce(), Context: "c", Status: &spb.Status{},
		}})
	}
}
