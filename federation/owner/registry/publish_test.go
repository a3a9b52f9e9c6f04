package registry_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
)

// TestSetRefusesInvalidServices sets a catalog of which some services are not valid.
func TestSetRefusesInvalidServices(t *testing.T) {
	r := registry.New()
	set(t, r, []*federation.Service{service("a", 1)})
	s := r.Subscribe()
	defer s.Close()
	drain(s)
	catalog := []*federation.Service{service("a", 2), service("z", 1), nil}
	for i := range 2 * registry.MaxInvalid {
		catalog = append(catalog, unreadable(fmt.Sprintf("s%02d", i)))
	}
	d, err := r.Set(catalog)
	if err == nil || d != (registry.Difference{}) {
		t.Fatalf("difference is %+v, error is %v", d, err)
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != registry.MaxInvalid+1 || lines[0] != "service: required" ||
		lines[1] != `service "s00": description: not valid UTF-8: "\xff"` || lines[registry.MaxInvalid] != "other services: 11" {
		t.Errorf("the error has %d lines:\n%v", len(lines), err)
	}
	if first, ok := errors.AsType[*federation.InvalidError](err); !ok || first.Field == "" {
		t.Errorf("the error is no InvalidError")
	}
	if got := drain(s); got != nil || r.Len() != 1 {
		t.Errorf("a refused catalog told of %q, and the registry has %d services", got, r.Len())
	}
}

// unreadable returns a service that is not valid.
func unreadable(name string) *federation.Service {
	s := service(name, 1)
	s.Description = "\xff"
	return s
}
