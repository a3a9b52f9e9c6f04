package registration_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/source/registration"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// inquired is an owner that is asked, and what it knows.
type inquired struct {
	gone  func(*wire.Encoded) bool // of the last inquiry
	begun int                      // inquiries
	now   atomic.Pointer[status.Settlement]
}

func (i *inquired) inquire(gone func(*wire.Encoded) bool) func() status.Settlement {
	i.gone = gone
	i.begun++
	return func() status.Settlement {
		s := *i.now.Load()
		s.Now = time.Now()
		return s
	}
}

// missing is a settlement for which consumers are missing.
func missing(consumers ...string) *status.Settlement {
	s := status.Settlement{Now: time.Now()}
	s.Add(status.Outstanding{Until: s.Now})
	for _, name := range consumers {
		s.Add(status.Outstanding{Consumer: name, Catalog: "west", Address: "192.0.2.99:1", Reason: "it sleeps", Until: s.Now.Add(5 * time.Second)})
	}
	s.Conclude()
	return &s
}

// ends fails unless the stream has ended in order.
func (p *provider) ends() {
	p.t.Helper()
	synctest.Wait()
	select {
	case <-p.ended:
		if p.err != nil {
			p.t.Error(p.err)
		}
	default:
		p.t.Error("the stream has not ended")
	}
}

// goes has a provider register nodes, clear them, and ask who has them.
func (w *world) goes(name string, nodes ...string) *provider {
	w.t.Helper()
	p := w.connect(name)
	for _, node := range nodes {
		p.active(web, node)
		p.expect(granted(web, node))
	}
	for _, node := range nodes {
		p.clear(web, node)
	}
	p.settle()
	return p
}

// A provider is told who may have what it has cleared, once a second at most, until nobody may.
func TestSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var i inquired
		w := settled(t, registration.Config{Inquire: i.inquire})
		stays := w.connect("stays")
		stays.active(web, three)
		stays.expect(granted(web, three))
		before := w.part.services["registration/"+web]
		i.now.Store(&status.Settlement{Published: 1})
		p := w.goes("web", one, two)
		p.expect("Settled WAITING web.acme.example: not yet, this owner publishes it in 1 service")
		w.expect("after the clear", web+" 192.0.2.3:8443")
		if i.begun != 1 || i.gone(before) {
			t.Errorf("%d inquiries, of which the last is about nodes that stay: %v", i.begun, i.gone(before))
		}
		other := w.connect("other")
		other.active(web, two)
		other.expect(granted(web, two))
		if !i.gone(w.part.services["registration/"+web]) {
			t.Error("the inquiry is not about nodes that were cleared")
		}

		i.now.Store(&status.Settlement{Away: []string{""}})
		time.Sleep(500 * time.Millisecond)
		p.expect()
		time.Sleep(time.Second)
		p.expect("Settled WAITING web.acme.example: not yet, consumers are told nothing: these catalogs are not available: (default)")
		time.Sleep(time.Minute)
		p.expect()
		i.now.Store(missing("a", "b", "c", "d", ""))
		time.Sleep(100 * time.Millisecond)
		p.expect("Settled WAITING web.acme.example: not yet, 1 of 6 consumers settled; it sleeps, 5 s more; a: it sleeps, 5 s more; b: it sleeps, 5 s more; and 2 more")
		time.Sleep(10 * time.Second)
		if told := p.told(); len(told) < 5 || len(told) > 10 {
			t.Errorf("in ten seconds the provider was told %q", told)
		}
		i.now.Store(missing())
		time.Sleep(100 * time.Millisecond)
		p.expect("Settled GONE")
		p.ends()
	})
}

// Where nobody can know who has the nodes, the provider is told why.
func TestSettleUnknown(t *testing.T) {
	const others = "Settled UNKNOWN this owner did not have all of the nodes"
	unknown := missing()
	unknown.Add(status.Outstanding{Consumer: "a", Reason: "it says nothing", Unknown: true})
	unknown.Conclude()
	for name, tc := range map[string]struct {
		store bool // that owners share
		deaf  bool // without receipts
		also  func(p *provider)
		now   *status.Settlement
		want  []string
	}{
		"a consumer that says nothing": {now: unknown, want: []string{"Settled UNKNOWN web.acme.example: it cannot be known, 1 of 2 consumers settled; a: it says nothing"}},
		"a shared store":               {store: true, want: []string{"Settled UNKNOWN several owners share what is registered, and each knows only its own consumers"}},
		"no receipts":                  {deaf: true, want: []string{"Settled UNKNOWN this owner keeps no receipts"}},
		"nodes that were not there":    {also: func(p *provider) { p.clear(web, two) }, want: []string{others}},
		"nodes that are none":          {also: func(p *provider) { p.clear("", "") }, want: []string{others}},
		"too many nodes": {also: func(p *provider) {
			for i := range 1000 {
				node := fmt.Sprintf("https://192.0.2.10:%d", i+1)
				p.active(web, node)
				p.expect(granted(web, node))
				p.clear(web, node)
			}
		}, want: []string{"Settled UNKNOWN the stream has cleared more than 1000 nodes"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var i inquired
				i.now.Store(tc.now)
				config := registration.Config{Inquire: i.inquire}
				if tc.deaf {
					config.Inquire = nil
				}
				if tc.store {
					config.Store = newCluster().store(true)
				}
				w := settled(t, config)
				p := w.connect("web")
				p.active(web, one)
				time.Sleep(time.Second)
				p.expect(granted(web, one))
				p.clear(web, one)
				if tc.also != nil {
					tc.also(p)
				}
				p.settle()
				time.Sleep(time.Second)
				p.expect(tc.want...)
				p.ends()
			})
		})
	}
}

// What is registered anew does not count, and a Close that does not ask has no answer.
func TestSettleOnlyWhatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var i inquired
		i.now.Store(missing())
		w := settled(t, registration.Config{Inquire: i.inquire})
		p, other := w.connect("web"), w.connect("other")
		p.active(web, one)
		p.expect(granted(web, one))
		p.clear(web, one)
		synctest.Wait()
		other.active(web, one)
		other.expect(granted(web, one))
		p.settle()
		p.expect("Settled GONE")
		p.ends()
		if service := w.part.services["registration/"+web]; i.gone(service) {
			t.Error("the inquiry is about a node that is registered")
		}
		p = w.connect("web")
		p.active(web, two)
		p.expect(granted(web, two))
		p.clear(web, two)
		p.close()
		p.expect()
		p.ends()
		if i.begun != 1 {
			t.Errorf("%d inquiries", i.begun)
		}
	})
}

// So many inquiries go on at a time. The others wait for their turn, and all end with the owner.
func TestSettleCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var i inquired
		i.now.Store(missing("a"))
		w := settled(t, registration.Config{Inquire: i.inquire, Rules: rulesOf(t, strings.Replace(anyone, "quota: 5", "quota: 1000", 1))})
		var all []*provider
		for n := range 130 {
			all = append(all, w.goes(fmt.Sprint("p", n), fmt.Sprintf("https://192.0.2.1:%d", n+1)))
			synctest.Wait()
		}
		waiting := []string{"Settled WAITING 128 other programs wait already"}
		for n, p := range all {
			if told := p.told(); slices.Equal(told, waiting) != (n >= 128) || len(told) == 0 {
				t.Errorf("provider %d was told %q", n, told)
			}
		}
		all[0].breakStream()
		synctest.Wait()
		if i.begun != 129 {
			t.Errorf("%d inquiries have begun", i.begun)
		}
		w.stop()
		for _, p := range all[1:] {
			p.ends()
		}
	})
}
