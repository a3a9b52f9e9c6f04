package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// outage is how long the API server is away in the test of that. Outages that last
// longer than an owner accepts are simulated, in the package of the source.
const outage = 15 * time.Second

// While the API server is away nothing that is published goes. An owner that starts
// meanwhile is not ready and says Unavailable, and consumers keep what they have even
// when no other owner is left.
func TestAPIServerAway(t *testing.T) {
	s := newStage(t, "away")
	api := s.west.Cluster.API
	restarts(t, api.Process)
	api.Kill()
	killed := time.Now()
	s.each(func(o *domain.Owner) { away(t, o, true) })
	eventually(t, func() string { // the queries go on
		if passed := time.Since(killed); passed < outage {
			return fmt.Sprintf("the API server has been away for %v, want %v", passed, outage)
		}
		return ""
	})
	for i, o := range s.west.Owners {
		restarts(t, o.Process)
		must.Do(t, o.Restart(t.Context()))
		if code, body := get(t, o, "/readyz"); code != http.StatusServiceUnavailable {
			t.Errorf("/readyz of %s, which knows nothing, is %d, %s", o.Name, code, body)
		}
		eventually(t, func() string {
			if got := s.followers[i].failure(); status.Code(got) != codes.Unavailable || !strings.Contains(got.Error(), "the catalog is not available") {
				return fmt.Sprintf("the consumer of %s is told %v, want Unavailable", o.Name, got)
			}
			return ""
		})
	}
	s.startAPI(t)
	s.each(func(o *domain.Owner) { isReady(t, o); away(t, o, false) })
	s.change(t)
	s.settled(t)
	s.check(t)
}

// startAPI starts the API server after a while, and restarts the controllers, because
// they would wait for up to a minute before they try again.
func (s *stage) startAPI(t *testing.T) {
	t.Helper()
	restarts(t, s.west.Cluster.Controllers)
	must.Do(t, s.west.Cluster.API.Start(t.Context()))
	must.Do(t, s.west.Cluster.Controllers.Restart(t.Context()))
}

// Each of two owners is killed, and later replaced by a newer one as an upgrade does
// it. What changes meanwhile is told by the other.
func TestOwnersReplaced(t *testing.T) {
	s := newStage(t, "replaced")
	newer := filepath.Join(s.west.Dir, "federationctl-new") // stays for the tests that follow
	copyFile(t, s.west.Owners[0].Path, newer)
	for name, end := range map[string]func(*domain.Owner){
		"kill": func(o *domain.Owner) { o.Kill() },
		"upgrade": func(o *domain.Owner) {
			must.Do(t, o.Stop())
			o.Path = newer
		},
	} {
		for i, o := range s.west.Owners {
			t.Logf("%s %s", name, o.Name)
			restarts(t, o.Process)
			end(o)
			s.change(t)
			must.Do(t, o.Start(t.Context()))
			isReady(t, o)
			s.followers[i].synced(t)
			s.change(t)
			s.settled(t)
		}
	}
	s.check(t)
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	must.Do(t, err)
	must.Do(t, os.WriteFile(to, text, 0o700))
}

// What was watched last is compacted away, so that everything has to be read again:
// then what has gone and what has come meanwhile is seen.
func TestCompacted(t *testing.T) {
	s := newStage(t, "compacted")
	gate := s.gate(t)
	s.change(t)
	services := s.west.Cluster.Client.CoreV1().Services(s.space)
	before, err := services.List(t.Context(), metav1.ListOptions{})
	must.Do(t, err)
	restarts(t, s.west.Cluster.API.Process)
	t.Cleanup(func() { gate.Stall(false) })
	gate.Stall(true) // the watches do not end before the API server is back
	s.write(t)
	must.Do(t, s.west.Cluster.Etcd.Compact(t.Context()))
	s.west.Cluster.API.Kill() // it has watched etcd itself, and remembered
	s.startAPI(t)
	w, err := services.Watch(t.Context(), metav1.ListOptions{ResourceVersion: before.ResourceVersion})
	if err == nil {
		event := <-w.ResultChan()
		w.Stop()
		if err = apierrors.FromObject(event.Object); event.Type != watch.Error {
			t.Errorf("the first event is %v, want an error", event)
		}
	}
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("a watch from before the compaction: %v, want that it is gone", err)
	}
	gate.Stall(false)
	s.arrived(t)
	s.change(t)
	s.settled(t)
	s.check(t)
}

// New credentials are used without a restart: those for the API server, the owners'
// own, and those of their consumer. Ones that the API server does not accept withdraw
// nothing.
func TestCredentialsRotated(t *testing.T) {
	s := newStage(t, "rotated")
	cluster := s.west.Cluster
	token := func() realserver.Access {
		text, err := cluster.Token(t.Context(), "default", domain.Account, time.Hour)
		must.Do(t, err)
		return realserver.Access{Token: text}
	}
	s.keepKubeconfig(t)
	certificate, err := cluster.Certificate("system:serviceaccount:default:"+domain.Account, time.Hour)
	must.Do(t, err)
	for _, access := range []realserver.Access{token(), certificate, {Token: "expired"}, token()} {
		s.kubeconfig(t, "", access)
		if access.Token == "expired" {
			s.each(func(o *domain.Owner) { away(t, o, true) })
			s.write(t)
			continue
		}
		s.each(func(o *domain.Owner) { away(t, o, false) })
		if s.changes > 0 {
			s.arrived(t)
		}
		s.change(t)
	}

	must.Do(t, s.west.Issue(s.west.OwnerFiles(), s.west.OwnerID()))
	must.Do(t, s.east.Issue(s.east.ConsumerFiles(), s.east.ConsumerID()))
	s.each(func(o *domain.Owner) { // handshakes with all that is new
		restarts(t, o.Process)
		must.Do(t, o.Restart(t.Context()))
		isReady(t, o)
		s.change(t)
	})
	s.settled(t)
	s.check(t)
}

// gate leads the owners to the API server through a gate, until the test ends.
func (s *stage) gate(t *testing.T) *realserver.Gate {
	t.Helper()
	gate, url := s.west.Cluster.StartGate(t)
	token, err := s.west.Cluster.Token(t.Context(), "default", domain.Account, time.Hour)
	must.Do(t, err)
	s.keepKubeconfig(t)
	s.kubeconfig(t, url, realserver.Access{Token: token})
	return gate
}

// kubeconfig gives the owners another kubeconfig, and waits until they use it.
func (s *stage) kubeconfig(t *testing.T, server string, access realserver.Access) {
	t.Helper()
	s.replaceKubeconfig(t, func() error {
		_, err := s.west.Cluster.NewKubeconfig("owner", server, access)
		return err
	})
}

// keepKubeconfig gives the owners back their kubeconfig when the test ends.
func (s *stage) keepKubeconfig(t *testing.T) {
	t.Helper()
	path := s.west.OwnerKubeconfig()
	text, err := os.ReadFile(path)
	must.Do(t, err)
	t.Cleanup(func() {
		s.replaceKubeconfig(t, func() error {
			if err := os.WriteFile(path+".part", text, 0o600); err != nil {
				return err
			}
			return os.Rename(path+".part", path)
		})
	})
}

func (s *stage) replaceKubeconfig(t *testing.T, replace func() error) {
	t.Helper()
	const line = "the kubeconfig has changed"
	before := make(map[*domain.Owner]int)
	s.each(func(o *domain.Owner) { before[o] = o.Logged(line) })
	must.Do(t, replace())
	s.each(func(o *domain.Owner) {
		eventually(t, func() string {
			if o.Logged(line) == before[o] {
				return o.Name + " has not noticed that its kubeconfig has changed"
			}
			return ""
		})
	})
}
