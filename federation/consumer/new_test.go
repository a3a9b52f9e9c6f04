package consumer_test

import (
	"context"
	"errors"
	"iter"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/snapshot"
	"github.com/hamlet-federation/coredns-federation/federation/wire/packed"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// A mirror needs no more than a subscription and a function that publishes.
func TestDefaults(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		registry, _ := w.serve(services.At("web.fed.example", "192.0.2.1"), services.At("api.fed.example", "127.0.0.1"))
		path := filepath.Join(t.TempDir(), "catalog")
		full := w.config()
		m, stop := w.run(consumer.Config{
			Subscription: consumer.Subscription{Addresses: []string{ownerAddress}, Identity: w.identity, Dial: w.dial, File: path},
			Rules:        full.Rules, Publish: full.Publish,
		})
		if got := state(m); got != "synced 2/0" {
			t.Errorf("owner is %s", got)
		}
		if s := m.Status(); !s.LastSync.Equal(time.Now()) {
			t.Errorf("synced at %v", s.LastSync)
		}
		registry.Delete("api")
		if got := w.names(); got != "web" {
			t.Errorf("the services are %s", got)
		}
		stop()
		if s, err := snapshot.Load(path, snapshot.Options{Owner: ownerAddress}); err != nil || len(s.Services) != 1 || !s.LastUp.Equal(time.Now()) {
			t.Errorf("saved is %+v, %v", s, err)
		}
	})
}

// The methods of NoObserver do nothing.
func TestNoObserver(*testing.T) {
	var o consumer.Observer = consumer.NoObserver{}
	o.Responded(federation.Upsert, "web")
	o.Refused(nil)
	o.Ended(codes.OK)
	o.Published(0)
	o.FileFailed()
}

// Errors of a configuration name the field.
func TestErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		if err := w.config().Subscription.Validate(); err != nil {
			t.Errorf("a good subscription is refused: %v", err)
		}
		for want, change := range map[string]func(*consumer.Config){
			"no function to publish changes": func(c *consumer.Config) { c.Publish = nil },
			"no address":                     func(c *consumer.Config) { c.Subscription.Addresses = nil },
		} {
			config := w.config()
			change(&config)
			m, err := consumer.New(config)
			if m != nil || err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("New returns %v, %v; want %s", m, err, want)
			}
			if config.Publish == nil {
				continue
			}
			if err := config.Subscription.Validate(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Validate returns %v, want %s", err, want)
			}
		}
	})
}

// Before Run, a mirror has a status and no services, and has published nothing.
func TestBeforeRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m := must.Get(consumer.New(w.config()))(t)
		if got := state(m); got != "connecting 0/0" || !m.Status().LastAttempt.IsZero() || w.attempts() != 0 {
			t.Errorf("owner is %s, last attempt at %v", got, m.Status().LastAttempt)
		}
		m.Configure(catalog.Rules{Retention: time.Minute})
		if got := w.take(); len(got) != 0 {
			t.Errorf("published is %+v", got)
		}
	})
}

func TestStatusRemaining(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for expires, want := range map[time.Time]time.Duration{
		{}:                        0,
		now.Add(-time.Hour):       0,
		now:                       0,
		now.Add(61 * time.Second): 61 * time.Second,
	} {
		s := consumer.Status{Summary: catalog.Summary{Expires: expires}}
		if got := s.Remaining(now); got != want {
			t.Errorf("%v before the services are gone, %v are left, want %v", expires.Sub(now), got, want)
		}
	}
}

// Each attempt has its time, and each that fails is one change of the status.
func TestFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m, _ := w.run(w.config())
		if got := state(m); got != "connecting 0/0" || m.Status().Failure == nil {
			t.Errorf("after the first attempt the owner is %s: %v", got, m.Status().Failure)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		w.mu.Lock()
		last := w.dialed[len(w.dialed)-1]
		w.mu.Unlock()
		s := m.Status()
		if s.StateName() != "connecting" || s.Parked || s.Failure == nil || s.Failure.Error() != "dial tcp: connection refused" || !s.LastAttempt.Equal(last) {
			t.Errorf("status is %+v", s)
		}
		changes := w.take()
		if len(changes) != w.attempts() || w.counted("ended Unavailable") != len(changes) {
			t.Errorf("%d changes after %d attempts", len(changes), w.attempts())
		}
		for _, c := range changes {
			if c.Status.Failure == nil || len(c.Services) > 0 || !c.Status.LastAttempt.IsZero() {
				t.Errorf("published is %+v", c)
			}
		}
		w.serve(services.At("web.fed.example", "192.0.2.1"))
		w.await(m, "synced 1/0")
		if s := m.Status(); s.Failure != nil {
			t.Errorf("failure is %v while a stream is open", s.Failure)
		}
		w.take()
		time.Sleep(10 * time.Hour)
		if changes := w.take(); len(changes) > 0 {
			t.Errorf("although nothing has changed, %+v is published", changes)
		}
	})
}

// An owner that turns the mirror away is parked until its identity changes, or until
// it is subscribed to again.
func TestParked(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*world, *consumer.Mirror){
		"identity": func(w *world, _ *consumer.Mirror) { w.identity.Change() },
		"subscription": func(w *world, m *consumer.Mirror) {
			if err := m.Resubscribe(w.config().Subscription); err != nil {
				w.t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.misbehave("status Unauthenticated\n---\nupsert web web.fed.example 192.0.2.1\nhang")
				m, _ := w.run(w.config())
				time.Sleep(100 * time.Hour)
				s := m.Status()
				if got := state(m); got != "parked 0/0" || !s.Parked || s.State != catalog.Connecting || s.Failure == nil || w.attempts() != 1 {
					t.Errorf("after %d attempts the owner is %s: %v", w.attempts(), got, s.Failure)
				}
				if n := w.counted("ended Unauthenticated"); n != 1 {
					t.Errorf("%d ends are counted", n)
				}
				change(w, m)
				if got := state(m); got != "syncing 1/0" || m.Status().Failure != nil || w.attempts() != 2 {
					t.Errorf("after %d attempts the owner is %s", w.attempts(), got)
				}
			})
		})
	}
}

// A subscription before Run takes the place of the first one, and one that is wrong
// changes nothing.
func TestResubscribe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.serve(services.At("web.fed.example", "192.0.2.1"))
		config := w.config()
		config.Subscription.Addresses = []string{"other.example:8008"}
		m := must.Get(consumer.New(config))(t)
		must.Do(t, m.Resubscribe(w.config().Subscription))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		if got := state(m); got != "synced 1/0" || w.attempts() != 1 {
			t.Errorf("after %d attempts the owner is %s", w.attempts(), got)
		}
		if err := m.Resubscribe(consumer.Subscription{}); err == nil {
			t.Error("a wrong subscription is taken")
		}
		time.Sleep(time.Minute)
		if got := state(m); got != "synced 1/0" || w.attempts() != 1 {
			t.Errorf("after a wrong subscription, and %d attempts, the owner is %s", w.attempts(), got)
		}

		// Another one makes stale what the one before has brought.
		w.take()
		must.Do(t, m.Resubscribe(config.Subscription))
		time.Sleep(2 * time.Second)
		if changes := w.take(); len(changes) == 0 || changes[0].Status.State != catalog.Stale || changes[0].Status.Failure != nil {
			t.Errorf("published is %+v", changes)
		}
		if got := state(m); got != "stale 1/1" || w.names() != "web" {
			t.Errorf("owner is %s with %s", got, w.names())
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run returns %v", err)
		}
		if s := m.Status(); s.Failure != nil || s.Parked || s.StateName() != "stale" {
			t.Errorf("in the end the status is %+v", s)
		}
	})
}

// Rules hold at once, and are announced at once.
func TestConfigure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, stop := w.serve(services.At("web.fed.example", "192.0.2.1"), services.At("api.fed.example", "192.0.2.2"))
		config := w.config()
		m, _ := w.run(config)
		w.await(m, "synced 2/0")
		config.Rules.Admit = func(s *federation.Service) *federation.InvalidError {
			if s.Name == "api" {
				return &federation.InvalidError{Reason: federation.ReasonOutOfZone}
			}
			return nil
		}
		m.Configure(config.Rules)
		if s := m.Status(); s.Services != 1 || s.Refused != 1 || w.names() != "web" {
			t.Errorf("status is %+v with %s", s, w.names())
		}
		stop()
		w.await(m, "stale 1/1")
		time.Sleep(time.Minute)
		config.Rules.Retention = time.Minute + 2*time.Second
		m.Configure(config.Rules)
		if got := w.left(m); got > 2*time.Second || got == 0 {
			t.Errorf("%v are left", got)
		}
		time.Sleep(3 * time.Second)
		if got := state(m); got != "expired 0/0" {
			t.Errorf("owner is %s", got)
		}
	})
}

// A view has all services and what belongs to them.
func TestView(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, stop := w.serve(services.At("web.fed.example", "192.0.2.1"))
		m, _ := w.run(w.config())
		w.await(m, "synced 1/0")
		w.setClock(-time.Hour)
		stop()
		w.await(m, "stale 1/1")
		for range 2 {
			m.View(func(services iter.Seq2[packed.Service, catalog.Announced], s catalog.Summary) {
				n := 0
				for service, announced := range services {
					if n++; service.Name() != "web" || announced.Generation != s.Generation || announced.Updated == 0 {
						t.Errorf("%s is of generation %d", service.Name(), announced.Generation)
					}
				}
				if n != 1 || s.State != catalog.Stale || !s.Lost.Equal(w.wall()) {
					t.Errorf("%d services with the status %+v", n, s)
				}
			})
		}
	})
}

// A deletion or an update that comes with others is applied in order, and a refused
// one is told to the owner and counted.
func TestRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.misbehave(`upsert web web.fed.example 192.0.2.1
			upsert api api.other.example 192.0.2.2
			truncated web web.fed.example 192.0.2.3
			upsert old old.fed.example 192.0.2.4
			delete old
			hang`)
		config := w.config()
		config.Rules.Admit = func(s *federation.Service) *federation.InvalidError {
			if strings.HasSuffix(s.FQDN.String(), ".other.example.") {
				return &federation.InvalidError{Reason: federation.ReasonOutOfZone}
			}
			return nil
		}
		m, _ := w.run(config)
		w.await(m, "synced 1/0")
		var verdicts []string
		for _, answer := range w.heard() {
			verdict, _, _ := strings.Cut(answer, " ")
			verdicts = append(verdicts, verdict)
		}
		if got := strings.Join(verdicts, " "); got != "ack nack nack ack ack" {
			t.Errorf("the answers are %s", got)
		}
		for what, want := range map[string]int{
			"published": 3, "responded upsert": 2, "responded delete": 1, "refused out_of_zone": 1, "refused undecodable": 1,
		} {
			if got := w.counted(what); got != want {
				t.Errorf("%s is counted %d times, want %d: %v", what, got, want, w.told())
			}
		}
		if s := m.Status(); s.Refused != 1 || w.names() != "web" {
			t.Errorf("status is %+v with %s", s, w.names())
		}
	})
}

// A connection is opened with TCP unless the subscription says otherwise.
func TestDialsTCP(t *testing.T) {
	t.Parallel()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	w := newWorld(t)
	config := w.config()
	config.Subscription.Addresses, config.Subscription.Dial = []string{listener.Addr().String()}, nil
	w.run(config)
	conn := must.Get(listener.Accept())(t)
	if err := conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
