package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
)

// While the API server is away nothing that is published goes. An owner that starts
// meanwhile is not ready and says Unavailable, and consumers keep what they have even
// when no other owner is left. Outages that last longer than an owner accepts are simulated, in the
// package of the source.
func TestAPIServerAway(t *testing.T) {
	s := newStage(t, "away")
	api := s.west.Cluster.API
	restarts(t, api.Process)
	api.Kill()
	s.each(func(o *domain.Owner) { away(t, o, true) })
	for i, o := range s.west.Owners {
		restarts(t, o.Process)
		must.Do(t, o.Restart(t.Context()))
		eventually(t, func() string { // it may serve its catalog a moment before its metrics
			if code, body := get(t, o, "/readyz"); code != http.StatusServiceUnavailable {
				return fmt.Sprintf("/readyz of %s, which knows nothing, is %d, %s", o.Name, code, body)
			}
			return ""
		})
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

// One of two owners is killed, and the other replaced by a newer one as an upgrade does it.
// What changes meanwhile is told by the one that is left.
func TestOwnersReplaced(t *testing.T) {
	s := newStage(t, "replaced")
	newer := filepath.Join(s.west.Dir, "federationctl-new") // stays for the tests that follow
	copyFile(t, s.west.Owners[0].Path, newer)
	for i, end := range []func(*domain.Owner){
		func(o *domain.Owner) { o.Kill() },
		func(o *domain.Owner) {
			must.Do(t, o.Stop())
			o.Path = newer
		},
	} {
		o := s.west.Owners[i]
		restarts(t, o.Process)
		end(o)
		s.change(t)
		must.Do(t, o.Start(t.Context()))
		isReady(t, o)
		s.followers[i].synced(t)
		s.change(t)
		s.settled(t)
	}
	s.check(t)
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	must.Do(t, err)
	must.Do(t, os.WriteFile(to, text, 0o700))
}
