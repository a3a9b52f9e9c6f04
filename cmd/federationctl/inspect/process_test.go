package inspect_test

import (
	"context"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/inspect"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// process is a process with catalogs, by their names.
type process struct {
	role     status.ProcessRole
	catalogs map[string][]*federation.Service
}

func (p *process) Status() status.Status {
	s := status.Status{Role: p.role, Version: "test", Now: time.Now(), Ready: true}
	for name := range p.catalogs {
		if p.role == status.Consumer {
			s.Owners = append(s.Owners, status.FollowedOwner{ID: name, State: "synced"})
		} else {
			s.Catalogs = append(s.Catalogs, status.Catalog{Name: name})
		}
	}
	return s
}

func (p *process) Why(_ context.Context, name string, _ uint16) (status.NameExplanation, error) {
	return status.NameExplanation{Role: p.role, Now: time.Now(), Name: name, Type: "A"}, nil
}

func (p *process) Catalog(of string) iter.Seq2[status.CatalogService, error] {
	services := p.catalogs[of]
	return func(yield func(status.CatalogService, error) bool) {
		for _, s := range services {
			if !yield(status.NewService(s, time.Now(), false)) {
				return
			}
		}
	}
}

// start serves a handler, and returns its endpoint.
func start(t testing.TB, handler http.Handler) *inspect.Endpoint {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return endpoint(t, server.URL, time.Minute)
}

func endpoint(t testing.TB, at string, timeout time.Duration) *inspect.Endpoint {
	t.Helper()
	return must.Get(inspect.NewEndpoint(at, mtls.Files{}, timeout))(t)
}

// service returns a service with an instance and these endpoints, all on port 443.
func service(t testing.TB, name, at string, addresses ...string) *federation.Service {
	t.Helper()
	s := &federation.Service{Name: name, FQDN: services.FQDN(at), Instances: []federation.Instance{{ID: "v1", Protocol: federation.HTTPS}}}
	for _, text := range addresses {
		address := must.Get(federation.ParseAddress(text))(t)
		s.Endpoints = append(s.Endpoints, federation.Endpoint{Address: address, Port: 443})
	}
	return s
}

// oneLine fails if an error has anything that a terminal obeys, or is long.
func oneLine(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		t.Fatal("there is no error")
	}
	if text := err.Error(); len(text) > 2000 || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
		t.Errorf("the error is not a short printable line: %.3000q", text)
	}
}
