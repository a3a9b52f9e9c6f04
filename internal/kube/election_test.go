package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// roundTripper answers requests in place of a server.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// newTestClient returns a client of a server that answers so.
func newTestClient(t *testing.T, answer roundTripper) *Client {
	t.Helper()
	config := &rest.Config{Host: "http://api", ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	return must.Get(NewClient(Access{Config: config}, scheme.Scheme, "test", func(http.RoundTripper) http.RoundTripper { return answer }))(t)
}

// respond returns a response with an object, or with a status where there is none.
func respond(t *testing.T, r *http.Request, code int, object any) *http.Response {
	t.Helper()
	if object == nil {
		reason := metav1.StatusReason(strings.ReplaceAll(http.StatusText(code), " ", ""))
		object = metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: reason, Code: int32(code)}
	}
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
		Body: io.NopCloser(strings.NewReader(string(must.Get(json.Marshal(object))(t)))),
	}
}

// leaseServer has one lease, and a log of what happens to the replicas.
type leaseServer struct {
	t     *testing.T
	begun time.Time
	timed bool // the log has seconds since the test began; what waits for a lease does so for a random time

	mu        sync.Mutex
	lease     *coordinationv1.Lease
	forbidden bool
	hangs     map[string]bool // requests of these replicas, until they are given up
	log       []string
}

// logf adds a line to the log.
func (s *leaseServer) logf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	line := fmt.Sprintf(format, args...)
	if s.timed {
		line = fmt.Sprintf("%2.0f %s", time.Since(s.begun).Seconds(), line)
	}
	s.log = append(s.log, line)
}

// answer answers a request of a replica.
func (s *leaseServer) answer(of string, r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hangs[of] {
		s.mu.Unlock()
		<-r.Context().Done()
		s.mu.Lock()
		return nil, r.Context().Err()
	}
	switch {
	case s.forbidden:
		return respond(s.t, r, http.StatusForbidden, nil), nil
	case r.Method == http.MethodGet && s.lease == nil:
		return respond(s.t, r, http.StatusNotFound, nil), nil
	case r.Method == http.MethodGet:
		return respond(s.t, r, http.StatusOK, s.lease), nil
	}
	fresh, version := new(coordinationv1.Lease), 1
	must.Do(s.t, json.NewDecoder(r.Body).Decode(fresh))
	if s.lease != nil {
		if s.lease.ResourceVersion != fresh.ResourceVersion {
			return respond(s.t, r, http.StatusConflict, nil), nil
		}
		version += must.Get(strconv.Atoi(s.lease.ResourceVersion))(s.t)
	}
	fresh.ResourceVersion = strconv.Itoa(version)
	s.lease = fresh
	return respond(s.t, r, http.StatusOK, fresh), nil
}

// runReplica runs a replica of which Lead returns some time after its context has ended. It returns
// the function that ends the replica.
func (s *leaseServer) runReplica(name string, late time.Duration) (stop func()) {
	s.t.Helper()
	c := newTestClient(s.t, func(r *http.Request) (*http.Response, error) { return s.answer(name, r) })
	failed := false
	e := &Election{
		Lease: types.NamespacedName{Namespace: "dns", Name: "lease"}, Leases: must.Get(c.Leases())(s.t),
		Noted: func(err error) {
			switch now := err != nil; {
			case now && !failed:
				s.logf("%s has a problem: %s", name, ReasonClass(c.ExplainError(err)))
			case failed && !now:
				s.logf("%s has an answer", name)
			}
			failed = err != nil
		},
	}
	e.Lead = func(ctx context.Context) {
		s.logf("%s leads", name)
		<-ctx.Done()
		s.logf("%s is to stop", name)
		time.Sleep(late)
		s.logf("%s has stopped", name)
	}
	e.Observed = func(holder string) {
		switch holder {
		case "":
			s.logf("%s sees nobody", name)
		case e.Identity():
			s.logf("%s sees itself", name)
		default:
			s.logf("%s sees another", name)
		}
	}
	ctx, cancel := context.WithCancel(klog.NewContext(s.t.Context(), klog.Logger{}))
	var running sync.WaitGroup
	running.Go(func() { e.Run(ctx) })
	return func() {
		s.logf("%s ends", name)
		cancel()
		running.Wait()
		s.logf("%s has ended", name)
	}
}

// expect checks what has happened since it was called last.
func (s *leaseServer) expect(what string, want ...string) {
	s.t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if diff := cmp.Diff(want, s.log); diff != "" {
		s.t.Errorf("%s (-want +got):\n%s", what, diff)
	}
	s.log = nil
}

// set changes what the server does.
func (s *leaseServer) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func newLeaseServer(t *testing.T, timed bool) *leaseServer {
	t.Helper()
	return &leaseServer{t: t, begun: time.Now(), timed: timed, hangs: make(map[string]bool)}
}

// TestLeaseIsGivenUp has a leader end: the lease is free after Lead has returned, and not before.
func TestLeaseIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer(t, true)
		stopA := s.runReplica("a", 3*time.Second)
		time.Sleep(time.Minute)
		s.expect("one replica", " 0 a sees itself", " 0 a leads")
		stopA()
		s.expect("its end", "60 a ends", "60 a is to stop", "63 a has stopped", "63 a sees nobody", "63 a has ended")
		stopB := s.runReplica("b", 0)
		time.Sleep(time.Second)
		s.expect("the next", "63 b sees itself", "63 b leads")
		stopC := s.runReplica("c", 0)
		time.Sleep(time.Minute)
		stopC()
		s.expect("one that never leads", "64 c sees another", "124 c ends", "124 c has ended")
		stopB()
	})
}

// TestLeaseIsLost has a leader that the server does not answer: its Lead is to end before another
// replica leads, and it campaigns again when that Lead has returned.
func TestLeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer(t, false)
		stopA := s.runReplica("a", 20*time.Second)
		time.Sleep(time.Second)
		stopB := s.runReplica("b", 0)
		time.Sleep(time.Minute)
		s.expect("at first", "a sees itself", "a leads", "b sees another")
		s.set(func() { s.hangs["a"] = true })
		time.Sleep(time.Minute)
		s.expect("a leader that is cut off",
			"a has a problem: connection", "a is to stop", "b sees itself", "b leads", "a has stopped")
		s.set(func() { s.hangs["a"] = false })
		time.Sleep(20 * time.Second)
		s.expect("it comes back", "a has an answer", "a sees another")
		stopA()
		stopB()
	})
}

// TestNoLease has a server that refuses the lease: Noted is told, and told when it is to be had.
func TestNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer(t, false)
		s.forbidden = true
		stop := s.runReplica("a", 0)
		time.Sleep(time.Minute)
		s.expect("without a lease", "a has a problem: Forbidden")
		s.set(func() { s.forbidden = false })
		time.Sleep(10 * time.Second)
		s.expect("with one", "a has an answer", "a sees itself", "a leads")
		stop()
	})
}
