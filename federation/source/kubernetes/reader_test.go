package kubernetes

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// A server lets objects be listed and not watched: the lists that go well in between do
// not end the problem, or it would never last.
func TestListDoesNotEndProblemOfWatch(t *testing.T) {
	var watches atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") != "" {
			watches.Add(1)
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403,
				"message": "services is forbidden: User \"a\" cannot watch resource \"services\""}`)
			return
		}
		fmt.Fprint(w, `{"kind": "ServiceList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}`)
	}))
	defer server.Close()
	scheme := newScheme()
	c, err := newClient(&rest.Config{Host: server.URL}, scheme, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	s := &Source{world: newWorld(time.Hour), selector: labels.Everything()}
	r, id := newReader(s), watched{kind: kindService}
	s.world.begin(id)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.watch(ctx, id, c, schema.GroupVersion{Version: "v1"}) })
	defer running.Wait()
	defer cancel()
	current := func() problem {
		s.world.mu.Lock()
		defer s.world.mu.Unlock()
		return s.world.health.watches[id].problem
	}
	await(t, "the problem", func() bool { return current().reason != nil })
	first := current()
	seen := watches.Load()
	await(t, "more attempts", func() bool {
		if now := current(); now.since != first.since {
			t.Fatalf("the problem is %+v, and was %+v", now, first)
		}
		return watches.Load() >= seen+6
	})
}
