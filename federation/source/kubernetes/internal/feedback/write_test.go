package feedback

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/source/kubernetes/export"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// api answers requests without a network, and notes what was written, and when.
type api struct {
	begun time.Time

	mu     sync.Mutex
	writes []string // guarded by mu
	answer func(name string) int
}

// RoundTrip implements [http.RoundTripper].
func (a *api) RoundTrip(request *http.Request) (*http.Response, error) {
	_, name, _ := strings.Cut(strings.TrimSuffix(request.URL.Path, "/status"), "/serviceexports/")
	a.mu.Lock()
	a.writes = append(a.writes, fmt.Sprintf("%s after %v", name, time.Since(a.begun)))
	a.mu.Unlock()
	code := a.answer(name)
	body := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, http.StatusText(code), code)
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(body)), Request: request,
	}, nil
}

// writer returns a Writer to this server, which runs until stop is called.
func (a *api) writer(t *testing.T) (w *Writer, stop func()) {
	t.Helper()
	w = New(slog.New(slog.DiscardHandler))
	gv := schema.GroupVersion{Group: mcsv1beta1.GroupName, Version: "v1beta1"}
	w.Use(must.Get(rest.RESTClientForConfigAndClient(&rest.Config{
		Host: "http://api", APIPath: "/apis", ContentConfig: rest.ContentConfig{GroupVersion: &gv, NegotiatedSerializer: scheme.Codecs.WithoutConversion()},
		QPS: -1,
	}, &http.Client{Transport: a}))(t), "v1beta1")
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	return w, func() {
		cancel()
		running.Wait()
	}
}

// TestOneFailureHoldsUpNobody has one object fail because it was replaced, and none
// of the others wait for it. It is tried again, a bounded number of times.
func TestOneFailureHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &api{begun: time.Now(), answer: func(name string) int {
			if name == "replaced" {
				return http.StatusConflict
			}
			return http.StatusOK
		}}
		w, stop := server.writer(t)
		tell := func(name string) {
			of := types.NamespacedName{Namespace: "n", Name: name}
			w.Tell(of, Note{
				Standing: export.Standing{Published: true},
				Export:   &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(name)}},
			})
			synctest.Wait()
		}
		tell("replaced")
		tell("other")
		time.Sleep(time.Minute)
		synctest.Wait()
		tell("late")
		stop()

		want := []string{"replaced after 0s", "other after 0s"}
		for i := range maxTries {
			want = append(want, fmt.Sprintf("replaced after %v", time.Duration(i+1)*pause))
		}
		want = append(want, "late after 1m0s")
		if diff := cmp.Diff(want, server.writes); diff != "" {
			t.Errorf("unexpected writes (-want +got):\n%s", diff)
		}
	})
}

// TestRefusalOfBefore has an owner start when a condition says that a consumer refuses a
// service. If no consumer has refused it when all have had the time to come back, the
// condition goes. What another replica says since then stays.
func TestRefusalOfBefore(t *testing.T) {
	of := types.NamespacedName{Namespace: "n", Name: "a"}
	for name, tc := range map[string]struct {
		said    time.Duration // before the start
		refused bool          // by a consumer of this owner
		want    []string
	}{
		"before the start": {said: time.Hour, want: []string{fmt.Sprintf("a after %v", patience)}},
		"since the start":  {said: -time.Minute},
		"and still":        {said: time.Hour, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &api{begun: time.Now(), answer: func(string) int { return http.StatusOK }}
				standing := published(t, "a.n.west.fed.example")
				standing.Refusals = map[string]string{"spiffe://a.example/dns": "not wanted"}
				object := &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "a", UID: "a"}}
				object.Status.Conditions = standing.Conditions(nil, 0, time.Now().Add(-tc.said))
				w, stop := server.writer(t)
				standing.Refusals = nil
				w.Tell(of, Note{Standing: standing, Export: object})
				time.Sleep(time.Minute)
				if tc.refused {
					w.Refused(of, "spiffe://a.example/dns", "not wanted")
				}
				time.Sleep(patience)
				synctest.Wait()
				stop()
				if diff := cmp.Diff(tc.want, server.writes); diff != "" {
					t.Errorf("unexpected writes (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// shared is a ServiceExport that several writers tell of, each of which sees what the others
// have written.
type shared struct {
	object *mcsv1beta1.ServiceExport
	says   []*voices
	writes int
}

// voices is a Writer whose writes go to the object at once.
type voices struct {
	*Writer

	standing export.Standing
}

func newShared(standings ...export.Standing) *shared {
	s := &shared{object: &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "a", UID: "a"}}}
	for _, standing := range standings {
		s.join(standing)
	}
	return s
}

// join adds a writer, such as one of an owner that starts.
func (s *shared) join(standing export.Standing) {
	s.says = append(s.says, &voices{New(slog.New(slog.DiscardHandler)), standing})
}

// round tells each writer what it has to say until none writes, or for a while.
func (s *shared) round() {
	of := types.NamespacedName{Namespace: "n", Name: "a"}
	for range 100 {
		before := s.writes
		for _, v := range s.says {
			v.Tell(of, Note{Standing: v.standing, Export: s.object})
			for _, queue := range []map[types.NamespacedName]task{v.usual, v.urgent} {
				if t, ok := queue[of]; ok && t.conditions != nil {
					s.object = s.object.DeepCopy()
					s.object.Status.Conditions = t.conditions
					s.writes++
					v.wrote(of, voiceOf(s.object.UID, t.conditions))
				}
				delete(queue, of)
			}
		}
		if s.writes == before {
			return
		}
	}
}

// said returns the condition Ready.
func (s *shared) said() string {
	for _, c := range s.object.Status.Conditions {
		if c.Type == "Ready" {
			return c.Message
		}
	}
	return ""
}

func published(t *testing.T, fqdn string) export.Standing {
	t.Helper()
	name := must.Get(federation.ParseFQDN(fqdn))(t)
	return export.Standing{Published: true, Verdict: export.Verdict{Service: &federation.Service{FQDN: name}, Kind: export.LoadBalancer}}
}

// TestZonesDoNotTakeTurns has owners of two zones read one cluster: they agree on everything
// but the words.
func TestZonesDoNotTakeTurns(t *testing.T) {
	west, east := published(t, "a.n.west.fed.example"), published(t, "a.n.east.fed.example")
	s := newShared(west, east)
	check := func(what string, writes int, message string) {
		t.Helper()
		s.writes = 0
		s.round()
		if got := s.said(); s.writes != writes || !strings.Contains(got, message) {
			t.Errorf("%s: %d writes and %q, want %d and %s", what, s.writes, got, writes, message)
		}
	}
	check("at first", 1, "west.fed.example")
	check("again", 0, "west.fed.example")
	s.join(east)
	check("an owner that starts", 0, "west.fed.example")
	s.says[0].standing.Verdict.Kind = export.Gateway
	check("other words of who has written it", 1, "gateway")
	s.says[1].standing.Verdict.Kind = export.Gateway
	check("other words of another", 0, "west.fed.example")
	refused := export.Standing{Verdict: export.Verdict{Refusal: &export.Finding{Rule: export.NoAddress, Message: "none"}}}
	s.says[1].standing, s.says[2].standing = refused, refused
	check("another verdict of some", maxWrites, "none") // who has written twice already does so once more, between two of another
	check("and then", 0, "none")
	s.says[0].standing = refused
	check("another verdict of all", 0, "none")
	for _, v := range s.says {
		v.standing = west
	}
	check("and the end of it", 1, "west.fed.example")
	s.object = s.object.DeepCopy()
	s.object.UID, s.object.Status.Conditions = "b", nil
	check("the object is another", 1, "west.fed.example")
}
