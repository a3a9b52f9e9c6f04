package registration_test

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"

	"github.com/hamlet-federation/coredns-federation/federation/source/registration"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// sink is a part that drops what is published.
type sink struct{}

func (sink) Replace([]*wire.Encoded)          {}
func (sink) Update([]*wire.Encoded, []string) {}
func (sink) Away(error)                       {}
func (sink) Through(wire.Path) error          { return nil }

func (sink) Refused(map[string]int) {}

// script is a stream whose provider sends what next returns, and counts the answers.
type script struct {
	grpc.ServerStream

	ctx      context.Context //nolint:containedctx // of the stream, as gRPC has it
	next     func() (*registrationv1.RegisterRequest, error)
	answers  *atomic.Int64
	answered chan struct{} // holds one value after each answer, if anybody wants it
}

func (s *script) Context() context.Context { return s.ctx }

func (s *script) Recv() (*registrationv1.RegisterRequest, error) { return s.next() }

func (s *script) Send(*registrationv1.RegisterResponse) error {
	s.answers.Add(1)
	select {
	case s.answered <- struct{}{}:
	default:
	}
	return nil
}

// benchSource runs a source until the benchmark ends.
func benchSource(b *testing.B) *registration.Source {
	s := must.Get(registration.New(registration.Config{Rules: rulesOf(b, anyone), Owner: "a", Convergence: 1, Linger: 0}))(b)
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan struct{})
	go func() {
		s.Run(ctx, sink{})
		close(ended)
	}()
	b.Cleanup(func() {
		cancel()
		<-ended
	})
	return s
}

func manyNode(i int) *registrationv1.RegisterRequest {
	return &registrationv1.RegisterRequest{Message: &registrationv1.RegisterRequest_Active{Active: &registrationv1.Active{
		Service: fmt.Sprintf("s%d.many.example", i/10), Node: fmt.Sprintf("https://10.%d.%d.%d:8443", i>>16&255, i>>8&255, i&255),
		Metadata: map[string]string{"zone": "a"},
	}}}
}

// serve has one provider for each list of requests, and returns when all answers are there.
func serve(b *testing.B, s *registration.Source, lists [][]*registrationv1.RegisterRequest) (end func()) {
	var answers atomic.Int64
	answered := make(chan struct{}, 1)
	want := int64(0)
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan struct{}, len(lists))
	for i, list := range lists {
		want += int64(len(list)) + 1
		streamCtx, cancelStream := contextOf(fmt.Sprintf("spiffe://many.example/p%d", i), "10.0.0.1")
		at := -1
		stream := &script{ctx: streamCtx, answers: &answers, answered: answered, next: func() (*registrationv1.RegisterRequest, error) {
			switch at++; {
			case at == 0:
				return opening(1), nil
			case at <= len(list):
				return list[at-1], nil
			}
			<-ctx.Done()
			return nil, io.ErrUnexpectedEOF
		}}
		go func() {
			_ = s.Register(stream)
			cancelStream() // as gRPC does
			ended <- struct{}{}
		}()
	}
	for answers.Load() < want {
		<-answered
	}
	return func() {
		cancel()
		for range lists {
			<-ended
		}
	}
}

// BenchmarkRegister registers nodes of 100 providers, ten for each service, through the
// source with its store in memory, without a network.
func BenchmarkRegister(b *testing.B) {
	s := benchSource(b)
	lists := make([][]*registrationv1.RegisterRequest, 100)
	for i := range b.N {
		lists[i%100] = append(lists[i%100], manyNode(i))
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	b.ReportAllocs()
	b.ResetTimer()
	defer serve(b, s, lists)()
	b.StopTimer()
	if n := s.Stats(); n.Nodes != b.N {
		b.Fatalf("%+v", n)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc)/float64(b.N)-float64(before.HeapAlloc)/float64(b.N), "heap-B/node")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "nodes/s")
}

// BenchmarkHeartbeat says again what was said before, of 100 nodes of one provider.
func BenchmarkHeartbeat(b *testing.B) {
	s := benchSource(b)
	var answers atomic.Int64
	answered := make(chan struct{}, 1)
	list := make([]*registrationv1.RegisterRequest, 100)
	for i := range list {
		list[i] = manyNode(i)
	}
	ctx, cancel := contextOf("spiffe://many.example/p", "10.0.0.1")
	registered := make(chan struct{}) // closed when all are, and nobody else waits for answers
	at := -1
	stream := &script{ctx: ctx, answers: &answers, answered: answered, next: func() (*registrationv1.RegisterRequest, error) {
		at++
		switch {
		case at == 0:
			return opening(1), nil
		case at == len(list)+1: // all are registered from now on
			for answers.Load() < int64(at) {
				<-answered
			}
			close(registered)
			b.ResetTimer()
		case at > len(list)+b.N:
			<-ctx.Done()
			return nil, io.ErrUnexpectedEOF
		}
		return list[at%len(list)], nil
	}}
	ended := make(chan struct{})
	b.ReportAllocs()
	go func() {
		_ = s.Register(stream)
		cancel() // as gRPC does
		close(ended)
	}()
	<-registered
	for answers.Load() < int64(1+len(list)+b.N) {
		<-answered
	}
	b.StopTimer()
	cancel()
	<-ended
}
