package provider_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/provider"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// changes are the statuses that a provider tells.
type changes chan provider.Status

// await waits for a status of a node, and returns it.
func (c changes) await(t *testing.T, uri string, state provider.State) provider.Status {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	for {
		select {
		case s := <-c:
			if s.Node.URI == uri && s.State == state {
				return s
			}
		case <-deadline.C:
			t.Fatalf("%s is not %v", uri, state)
		}
	}
}

// A provider of two real owners moves from one that ends to the other at once, although
// the first one says that it should be left alone.
func TestRealOwners(t *testing.T) {
	authority := must.Get(mtls.NewAuthority("test", 24*time.Hour))(t)
	stops := make(map[string]func())
	var addresses []string
	for range 2 {
		address, _, stop := exampleOwner(authority)
		stops[address] = sync.OnceFunc(stop)
		t.Cleanup(stops[address])
		addresses = append(addresses, address)
	}
	told := make(changes, 100)
	p := must.Get(provider.New(provider.Config{
		Addresses: addresses,
		Identity: mtls.Consumer{
			Source: certificates(authority, "spiffe://shop.example/web"), IDs: []federation.ID{must.Value(federation.ParseID("spiffe://owner.example/owner"))},
		},
		OnChange: func(s provider.Status) { told <- s },
	}))(t)
	const one, two, other = "https://:8443", "tcp://:1", "tcp://192.0.2.1:1"
	for _, uri := range []string{one, other} {
		must.Do(t, p.Set(provider.Node{Service: "web.shop.example", URI: uri, TTL: 5 * time.Second}))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)

	first := told.await(t, one, provider.Registered)
	if first.TTL != 5*time.Second || first.URI != "https://127.0.0.1:8443" {
		t.Errorf("the status is %+v", first)
	}
	stops[first.Owner]()
	if s := told.await(t, one, provider.Registered); s.Owner == first.Owner {
		t.Errorf("it is registered with %s still", s.Owner)
	}
	must.Do(t, p.Set(provider.Node{Service: "web.shop.example", URI: two}))
	told.await(t, two, provider.Registered)
	p.Clear("web.shop.example", one)
	statuses := p.Statuses()
	if len(statuses) != 2 || statuses[0].Rule != "address" || statuses[1].Node.URI != two {
		t.Errorf("the status is %+v", statuses)
	}
}

// What the end of Run has cleared is not registered any more when Run returns.
func TestRealOwnerIsCleared(t *testing.T) {
	authority := must.Get(mtls.NewAuthority("test", 24*time.Hour))(t)
	address, source, stop := exampleOwner(authority)
	t.Cleanup(stop)
	identity := mtls.Consumer{
		Source: certificates(authority, "spiffe://shop.example/web"), IDs: []federation.ID{must.Value(federation.ParseID("spiffe://owner.example/owner"))},
	}
	told := make(changes, 100)
	p := must.Get(provider.New(provider.Config{Addresses: []string{address}, Identity: identity, OnChange: func(s provider.Status) { told <- s }}))(t)
	must.Do(t, p.Set(provider.Node{Service: "web.shop.example", URI: "https://:8443"}))
	var running sync.WaitGroup
	running.Go(func() { _ = p.Run(t.Context()) })
	told.await(t, "https://:8443", provider.Registered)
	if n := source.Stats().Nodes; n != 1 {
		t.Errorf("%d nodes are registered", n)
	}
	if err := p.Drain(t.Context(), 0); err != nil {
		t.Error(err)
	}
	if n := source.Stats().Nodes; n != 0 {
		t.Errorf("after the end %d nodes are registered", n)
	}
	running.Wait()
}
