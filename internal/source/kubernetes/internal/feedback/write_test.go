package feedback

import (
	"context"
	"encoding/json"
	"errors"
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
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/kube"
	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes/export"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
)

// The times of a lease, see package kube.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// testAPI is an API server without a network. It has leases and ServiceExports, and tells
// its replicas of each object that was written.
type testAPI struct {
	t     *testing.T
	begun time.Time

	mu        sync.Mutex
	forbidden bool // leases are
	leases    map[string]*coordinationv1.Lease
	exports   map[string]*mcsv1beta1.ServiceExport
	replicas  []*replica
	writes    []string              // of conditions: by whom, of what, and when
	answer    func(name string) int // to who writes conditions
}

func newAPI(t *testing.T) *testAPI {
	t.Helper()
	return &testAPI{
		t: t, begun: time.Now(), leases: make(map[string]*coordinationv1.Lease), exports: make(map[string]*mcsv1beta1.ServiceExport),
		answer: func(string) int { return http.StatusOK },
	}
}

// replica is a Writer that runs.
type replica struct {
	*Writer

	api       *testAPI
	name      string
	log       testlog.Buffer
	away      bool                      // leases are, for this replica; guarded by api.mu
	standings map[string]export.Verdict // guarded by api.mu
	stop      func()                    // ends it, and waits until it has
}

// run starts a replica of the owner that has the lease.
func (a *testAPI) run(name, lease string) *replica {
	a.t.Helper()
	r := &replica{api: a, name: name, standings: make(map[string]export.Verdict)}
	r.Writer = New(types.NamespacedName{Namespace: "dns", Name: lease}, r.log.Logger())
	access := kube.Access{Config: &rest.Config{Host: "http://api", ContentConfig: rest.ContentConfig{ContentType: "application/json"}}}
	client := must.Get(kube.NewClient(access, scheme.Scheme, "test", func(http.RoundTripper) http.RoundTripper { return r }))(a.t)
	must.Do(a.t, r.SetServer(client, "v1beta1"))
	ctx, cancel := context.WithCancel(klog.NewContext(a.t.Context(), klog.Logger{}))
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	r.stop = func() {
		cancel()
		running.Wait()
	}
	a.replicas = append(a.replicas, r)
	time.Sleep(time.Second) // it leads, unless there is a leader
	return r
}

// RoundTrip implements [http.RoundTripper].
func (r *replica) RoundTrip(request *http.Request) (*http.Response, error) {
	r.api.mu.Lock()
	away, forbidden := r.away, r.api.forbidden
	r.api.mu.Unlock()
	var body []byte
	if request.Body != nil {
		body = must.Get(io.ReadAll(request.Body))(r.api.t)
	}
	_, name, isExport := strings.Cut(strings.TrimSuffix(request.URL.Path, "/status"), "/serviceexports/")
	var code int
	var reply any
	switch {
	case isExport:
		code, reply = r.api.write(r.name, name, body)
	case away:
		return nil, errors.New("away")
	case forbidden:
		code = http.StatusForbidden
	default:
		_, name, _ := strings.Cut(request.URL.Path, "/leases/")
		code, reply = r.api.lease(request.Method, name, body)
	}
	if code >= http.StatusBadRequest {
		reason := strings.ReplaceAll(http.StatusText(code), " ", "")
		reply = metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReason(reason), Message: "forbidden: User cannot", Code: int32(code)}
	}
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Request: request,
		Body: io.NopCloser(strings.NewReader(string(must.Get(json.Marshal(reply))(r.api.t)))),
	}, nil
}

// lease reads or writes a lease.
func (a *testAPI) lease(method, name string, body []byte) (code int, reply any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if method == http.MethodGet {
		if there := a.leases[name]; there != nil {
			return http.StatusOK, there
		}
		return http.StatusNotFound, nil
	}
	var lease coordinationv1.Lease
	must.Do(a.t, json.Unmarshal(body, &lease))
	there := a.leases[lease.Name]
	version := 1
	if there != nil {
		if there.ResourceVersion != lease.ResourceVersion {
			return http.StatusConflict, nil
		}
		version = must.Get(strconv.Atoi(there.ResourceVersion))(a.t) + 1
	}
	lease.ResourceVersion = strconv.Itoa(version)
	a.leases[lease.Name] = &lease
	return http.StatusOK, &lease
}

// write writes the conditions of a ServiceExport, and tells the replicas.
func (a *testAPI) write(by, name string, body []byte) (code int, reply any) {
	var applied mcsv1beta1.ServiceExport
	must.Do(a.t, json.Unmarshal(body, &applied))
	a.mu.Lock()
	a.writes = append(a.writes, fmt.Sprintf("%s %s after %v", by, name, time.Since(a.begun)))
	if code = a.answer(name); code == http.StatusOK {
		object := a.exports[name].DeepCopy()
		object.Status = applied.Status
		a.exports[name] = object
	}
	a.mu.Unlock()
	if code == http.StatusOK {
		a.tell(name)
	}
	return code, &applied
}

// tell has the replicas see an object.
func (a *testAPI) tell(name string) {
	for _, r := range a.replicas {
		a.mu.Lock()
		object, standing, known := a.exports[name], r.standings[name], r.standings[name].Service != nil
		a.mu.Unlock()
		if known {
			r.SetVerdict(types.NamespacedName{Namespace: "n", Name: name}, standing, object)
		}
	}
}

// publish has replicas publish Services under a name that ends so, and waits for what they write.
func (a *testAPI) publish(t *testing.T, suffix string, names string, by ...*replica) {
	t.Helper()
	for name := range strings.FieldsSeq(names) {
		a.mu.Lock()
		if a.exports[name] == nil {
			a.exports[name] = &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(name)}}
		}
		for _, r := range by {
			fqdn := must.Get(federation.ParseFQDN(name + "." + suffix))(t)
			r.standings[name] = export.Verdict{Service: &federation.Service{FQDN: fqdn}, Kind: export.LoadBalancer}
		}
		a.mu.Unlock()
		a.tell(name)
		synctest.Wait()
	}
}

// wrote checks who has written since it was asked last.
func (a *testAPI) wrote(t *testing.T, what string, want ...string) {
	t.Helper()
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	var got []string
	for _, line := range a.writes {
		by, _, _ := strings.Cut(line, " after")
		got = append(got, by)
	}
	a.writes = nil
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: unexpected writes (-want +got):\n%s", what, diff)
	}
}

// TestOneWriter has two replicas of an owner: one writes, and the other takes over when that
// ends, or hangs, or is cut off, and writes only what has not been said.
func TestOneWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		a, b := api.run("a", "lease"), api.run("b", "lease")
		api.publish(t, "n.west.example", "x y z", a, b)
		time.Sleep(time.Minute)
		api.wrote(t, "at first", "a x", "a y", "a z")

		a.stop()
		api.publish(t, "n.east.example", "x", b)
		api.wrote(t, "before the other leads")
		time.Sleep(3 * retryPeriod)
		api.wrote(t, "a leader ends", "b x")
		c := api.run("c", "lease")
		api.publish(t, "n.east.example", "x y z", c)
		time.Sleep(time.Minute)
		api.wrote(t, "a replica starts")
		api.publish(t, "n.east.example", "y", b, c)
		api.wrote(t, "a change", "b y")

		set := func(away bool, answer int) {
			api.mu.Lock()
			b.away, api.answer = away, func(string) int { return answer }
			api.mu.Unlock()
		}
		set(true, http.StatusConflict)
		api.publish(t, "n.north.example", "z", b)
		time.Sleep(renewDeadline + retryPeriod + time.Second/2)
		api.wrote(t, "attempts of a leader that is cut off", "b z", "b z", "b z", "b z")
		set(true, http.StatusOK)
		api.publish(t, "n.north.example", "y", b)
		time.Sleep(leaseDuration)
		api.wrote(t, "the next leader only", "c z")
		api.publish(t, "n.south.example", "x", c)
		api.wrote(t, "a change", "c x")
		set(false, http.StatusOK)
		time.Sleep(time.Minute)
		api.publish(t, "n.east.example", "x", b)
		api.wrote(t, "the one before comes back")

		c.stop()
		time.Sleep(3 * retryPeriod)
		synctest.Wait()
		if n := len(api.writes); n != 3 {
			t.Errorf("%d writes of who leads again, want 3: %v", n, api.writes)
		}
		b.stop()
	})
}

// TestRefusalOfBefore has a consumer of the leader refuse a service. What the next leader
// says is what its own consumers do.
func TestRefusalOfBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, of := newAPI(t), types.NamespacedName{Namespace: "n", Name: "x"}
		accepted := func() string {
			for _, c := range api.exports["x"].Status.Conditions {
				if c.Type == export.Accepted {
					return c.Message
				}
			}
			return ""
		}
		a, b := api.run("a", "lease"), api.run("b", "lease")
		api.publish(t, "n.west.example", "x", a, b)
		a.SetRefusal(of, "spiffe://a", "not wanted")
		b.SetRefusal(of, "spiffe://b", "too long")
		api.wrote(t, "a refusal", "a x", "a x")
		if got := accepted(); got != "spiffe://a: not wanted" {
			t.Errorf("the condition is %q", got)
		}
		a.stop()
		time.Sleep(3 * retryPeriod)
		api.wrote(t, "another leader", "b x")
		if got := accepted(); got != "spiffe://b: too long" {
			t.Errorf("the condition is %q", got)
		}
		b.SetRefusal(of, "spiffe://b", "")
		api.wrote(t, "the end of it", "b x")
		if got := accepted(); got != "" {
			t.Errorf("the condition is %q", got)
		}
		b.SetRefusal(of, "spiffe://b", "too long")
		api.wrote(t, "once more", "b x")
		b.ForgetRefusals(of)
		api.publish(t, "n.east.example", "x", b)
		api.wrote(t, "another form", "b x")
		if got := accepted(); got != "" {
			t.Errorf("the condition is %q", got)
		}
		b.stop()
	})
}

// TestOwnersDoNotTakeTurns has two owners tell of one object: who had something new to say
// last has the conditions.
func TestOwnersDoNotTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		west, east := api.run("west", "one"), api.run("east", "two")
		api.publish(t, "n.west.example", "x", west)
		api.wrote(t, "one owner", "west x")
		api.publish(t, "n.east.example", "x", east)
		time.Sleep(time.Minute)
		api.wrote(t, "another", "east x")
		api.publish(t, "m.west.example", "x", west)
		time.Sleep(time.Minute)
		api.wrote(t, "a change", "west x")
		api.mu.Lock()
		api.exports["x"] = &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "x", UID: "new"}}
		api.mu.Unlock()
		api.tell("x")
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(api.writes); n != 2 {
			t.Errorf("%d writes of an object that was replaced, want 2", n)
		}
		west.stop()
		east.stop()
	})
}

// TestNoLease has an owner that may not have a lease: it says so once, and writes when it may.
func TestNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.forbidden = true
		a := api.run("a", "lease")
		api.publish(t, "n.west.example", "x", a)
		time.Sleep(time.Minute)
		api.wrote(t, "without a lease")
		if got := strings.Count(a.log.String(), "conditions cannot be written; trying again\" error=\"RBAC: User cannot"); got != 1 {
			t.Errorf("%d lines of what is forbidden: %s", got, &a.log)
		}
		api.mu.Lock()
		api.forbidden = false
		api.mu.Unlock()
		time.Sleep(3 * retryPeriod)
		api.wrote(t, "with one", "a x")
		a.stop()
	})
}

// TestForgottenWhileWritten has a ServiceExport go while its conditions are written, and the label of its
// Service go on to export it in another form.
func TestForgottenWhileWritten(t *testing.T) {
	w, of, object := New(types.NamespacedName{}, nil), types.NamespacedName{Namespace: "n", Name: "x"}, &mcsv1beta1.ServiceExport{}
	w.SetVerdict(of, export.Verdict{}, object)
	w.Forget(of)
	w.ForgetRefusals(of)
	if w.noteWritten(of, object, nil) {
		t.Error("conditions are those of a record that is gone")
	}
}

// TestOneFailureHoldsUpNobody has one object fail because it was replaced, and none of the
// others wait for it. It is tried again.
func TestOneFailureHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.answer = func(name string) int {
			if name == "replaced" {
				return http.StatusConflict
			}
			return http.StatusOK
		}
		a := api.run("a", "lease")
		api.publish(t, "n.west.example", "replaced other", a)
		time.Sleep(10 * time.Second)
		api.publish(t, "n.west.example", "late", a)
		a.stop()
		want := []string{
			"a replaced after 1s", "a other after 1s", "a replaced after 2s", "a replaced after 4s", "a replaced after 8s", "a late after 11s",
		}
		if diff := cmp.Diff(want, api.writes); diff != "" {
			t.Errorf("unexpected writes (-want +got):\n%s", diff)
		}
	})
}
