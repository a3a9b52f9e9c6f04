package consul

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/source/internal/sourcetest"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// fakeConsul answers blocking queries as Consul's documentation says, for a catalog in memory, and
// misbehaves where a test says so. The real one is in test/suites/register/consul.
type fakeConsul struct {
	t *testing.T

	mu       sync.Mutex
	listener *pipeListener // nil while it is down
	server   *http.Server
	serving  sync.WaitGroup
	moved    chan struct{} // is closed when the index moves
	index    uint64
	list     uint64                       // the index of the last change of the list
	indexes  map[string]uint64            // of the services
	services map[string]map[string]string // addresses and their states, by the name
	tags     map[string][]string

	header   map[string]string // instead of what is right
	status   int               // instead of 200
	body     string
	only     string // the path that these are for; empty for all
	token    string // that must be shown
	filtered bool   // the token must read nothing
	stalled  bool   // nothing is answered any more

	unreadable bool // the token must read no node
	requests   []string
	waiting    int // queries
	most       int // of queries at a time that do not wait
	reading    int
	slow       time.Duration // for an answer to a query that does not wait
}

func newFakeConsul(t *testing.T) *fakeConsul {
	t.Helper()
	f := &fakeConsul{
		t: t, index: 10, list: 10, moved: make(chan struct{}), indexes: make(map[string]uint64), services: make(map[string]map[string]string), tags: make(map[string][]string),
	}
	f.start()
	t.Cleanup(f.stop)
	return f
}

func (f *fakeConsul) start() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listener = &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	f.server = &http.Server{Handler: f, ReadHeaderTimeout: time.Hour}
	listener, server := f.listener, f.server
	f.serving.Go(func() { _ = server.Serve(listener) })
}

func (f *fakeConsul) stop() {
	f.mu.Lock()
	server := f.server
	f.listener, f.server = nil, nil
	f.mu.Unlock()
	if server != nil {
		_ = server.Close()
		f.serving.Wait()
	}
}

func (f *fakeConsul) dial(context.Context, string, string) (net.Conn, error) {
	f.mu.Lock()
	listener := f.listener
	f.mu.Unlock()
	if listener == nil {
		return nil, errors.New("connection refused")
	}
	near, far := net.Pipe()
	select {
	case listener.conns <- far:
		return near, nil
	case <-listener.closed:
		return nil, errors.New("connection refused")
	}
}

// pipeListener listens in memory.
type pipeListener struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (*pipeListener) Addr() net.Addr { return new(net.TCPAddr) }

// set changes what it does.
func (f *fakeConsul) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	close(f.moved)
	f.moved = make(chan struct{})
}

// put registers an instance of a service at an address, as address or address=status.
func (f *fakeConsul) put(service string, instances ...string) {
	f.set(func() {
		f.index++
		if f.services[service] == nil {
			f.services[service] = make(map[string]string)
		}
		for _, instance := range instances {
			address, state, _ := strings.Cut(instance, "=")
			if _, known := f.services[service][address]; !known {
				f.list = f.index
			}
			f.services[service][address] = cmp.Or(state, "passing")
		}
		f.indexes[service] = f.index
	})
}

// remove deregisters an instance, or with no address the service.
func (f *fakeConsul) remove(service, address string) {
	f.set(func() {
		f.index++
		f.list, f.indexes[service] = f.index, f.index
		if delete(f.services[service], address); len(f.services[service]) == 0 || address == "" {
			delete(f.services, service)
		}
	})
}

// lose makes it begin anew without its data.
func (f *fakeConsul) lose() {
	f.set(func() {
		clear(f.services)
		clear(f.indexes)
		f.index, f.list = 5, 5
	})
}

func (f *fakeConsul) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	after, _ := strconv.ParseUint(query.Get("index"), 10, 64)
	wait, _ := time.ParseDuration(query.Get("wait"))
	if isList := r.URL.Path == "/v1/catalog/services"; query.Has("consistent") != (isList && after == 0) {
		f.t.Errorf("request %s", r.URL)
	}
	f.mu.Lock()
	f.requests = append(f.requests, r.URL.Path)
	if after > 0 {
		f.waiting++
	} else {
		f.reading++
		f.most = max(f.most, f.reading)
	}
	slow := f.slow
	f.mu.Unlock()
	if after == 0 && slow > 0 {
		time.Sleep(slow)
	}
	timer := time.NewTimer(wait + wait/16)
	defer timer.Stop()
	for {
		f.mu.Lock()
		index, moved, failing := f.indexOf(r.URL.Path), f.moved, f.status > 0 && (f.only == "" || f.only == r.URL.Path)
		done := !f.stalled && (index > after || failing)
		if done {
			break
		}
		f.mu.Unlock()
		select {
		case <-moved:
			continue
		case <-r.Context().Done():
		case <-timer.C:
		}
		f.mu.Lock()
		if f.stalled {
			f.mu.Unlock()
			<-r.Context().Done()
			f.mu.Lock()
		}
		break
	}
	if after > 0 {
		f.waiting--
	} else {
		f.reading--
	}
	f.answer(w, r)
	f.mu.Unlock()
}

func (f *fakeConsul) indexOf(path string) uint64 {
	if name, ok := strings.CutPrefix(path, "/v1/health/service/"); ok {
		return cmp.Or(f.indexes[name], f.list)
	}
	return f.list
}

// answer answers. The mutex is held.
func (f *fakeConsul) answer(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Consul-Index", strconv.FormatUint(f.indexOf(r.URL.Path), 10))
	h.Set("X-Consul-Knownleader", "true")
	h.Set("X-Consul-Lastcontact", "0")
	for key, value := range f.header {
		h.Set(key, value)
	}
	switch {
	case f.status > 0 && (f.only == "" || f.only == r.URL.Path):
		w.WriteHeader(f.status)
		fmt.Fprint(w, f.body)
		return
	case f.token != "" && r.Header.Get("X-Consul-Token") != f.token:
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, "ACL not found")
		return
	}
	name, isService := strings.CutPrefix(r.URL.Path, "/v1/health/service/")
	if f.unreadable && isService || f.filtered && (f.only == "" || f.only == r.URL.Path) {
		h.Set("X-Consul-Results-Filtered-By-Acls", "true")
		for key, value := range f.header {
			h.Set(key, value)
		}
		fmt.Fprint(w, map[bool]string{true: "[]", false: "{}"}[isService])
		return
	}
	if !isService {
		all := map[string][]string{"consul": {}}
		for service := range f.services {
			all[service] = f.tags[service]
		}
		_, _ = w.Write(must.Get(json.Marshal(all))(f.t))
		return
	}
	var entries []any
	for address, status := range f.services[name] {
		entries = append(entries, map[string]any{
			"Node":    map[string]any{"Node": "n", "Address": "192.0.2.200", "Datacenter": "dc1"},
			"Service": map[string]any{"ID": address, "Service": name, "Address": address, "Port": 80, "Tags": f.tags[name]},
			"Checks":  []any{map[string]any{"Status": status}},
		})
	}
	_, _ = w.Write(must.Get(json.Marshal(entries))(f.t))
}

// stand is a source in a bubble that follows a fake Consul.
type stand struct {
	*fakeConsul
	*sourcetest.Stand
}

// showAddresses shows the addresses of a service, without what they begin with.
func showAddresses(s *federation.Service) string {
	var all []string
	for _, e := range s.Endpoints {
		all = append(all, strings.TrimPrefix(e.Address.String(), "192.0.2."))
	}
	return strings.Join(all, " ")
}

// runStand runs test in a bubble, with a source that follows Consul from the moment at which
// prepare has returned.
func runStand(t *testing.T, c Config, prepare func(*fakeConsul), test func(*testing.T, *stand)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &stand{newFakeConsul(t), sourcetest.NewStand(showAddresses)}
		if prepare != nil {
			prepare(s.fakeConsul)
		}
		c.Zone = services.FQDN("consul.example")
		src := New(c)
		src.dial = s.dial
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer s.set(func() { s.stalled = false })
		defer cancel()
		running.Go(func() { src.Run(ctx, s.Part) })
		synctest.Wait()
		test(t, s)
	})
}

// requested returns how many requests there were since the last call.
func (s *stand) requested() []string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.requests
	s.requests = nil
	return all
}
