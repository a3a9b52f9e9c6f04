package catalog_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// TestCovers has an owner with the services a and b, and rules whose words are the names that they
// admit. Behind each step stands what Omits and Covers are then.
func TestCovers(t *testing.T) {
	t.Parallel()
	for _, steps := range [][][2]string{
		{{"rules a", "false a"}, {"open", "false a"}, {"services", "true a"}, {"rules a b", "true a"}, {"open", "true a"}, {"services", "false a b"}},
		{{"rules a b", "false a b"}, {"open", "false a b"}, {"services", "false a b"}, {"rules a", "true a"}, {"rules a b", "true a"}, {"open", "true a"}, {"services", "false a b"}},
		{{"rules a", "false a"}, {"open", "false a"}, {"services", "true a"}, {"rules b", "true none"}, {"open", "true none"}, {"services", "true b"}},
		{{"rules a b", "false a b"}, {"open", "false a b"}, {"services", "false a b"}, {"rules a b c", "false a b c"}},
		{{"rules a", "false a"}, {"open", "false a"}, {"rules a b", "false a b"}, {"services", "false a"}},
		{{"rules a b", "false a b"}, {"open", "false a b"}, {"rules b", "false b"}, {"services", "true b"}, {"rules a b", "true b"}},
		{{"rules a", "false a"}, {"restore", "true a"}, {"rules a b", "true a"}},
		{{"rules a b", "false a b"}, {"restore", "false a b"}, {"rules b", "true b"}},
		{{"rules a b", "false a b"}, {"restore a", "true a"}, {"open", "true a"}, {"services", "false a b"}},
	} {
		c, now := catalog.New(catalog.Rules{}), time.Now()
		for i, step := range steps {
			do, words, _ := strings.Cut(step[0], " ")
			switch do {
			case "rules":
				c.SetRules(catalog.Rules{Admits: words, Admit: func(s *federation.Service) *federation.InvalidError {
					if !strings.Contains(words, s.Name) {
						return catalog.ErrNotImported
					}
					return nil
				}}, now)
			case "restore":
				c.BeginRestore(now, now)
				c.RestoreOmitted(words)
				c.RestoreMore([]packed.Service{packed.PackService(services.At("a.fed.example", "192.0.2.1")), packed.PackService(services.At("b.fed.example", "192.0.2.2"))})
				c.EndRestore(true)
			case "open":
				c.OpenStream(now)
			case "services":
				for _, name := range []string{"a", "b"} {
					must.Do(t, c.ApplyEvent(wire.Event{Operation: wire.Upsert, Name: name, ID: name, Service: services.At(name+".fed.example", "192.0.2.1")}, now))
				}
				must.Do(t, c.ApplyEvent(wire.Event{Operation: wire.End}, now))
			}
			if s := c.Summary(); fmt.Sprint(s.Omits, " ", s.Covers) != step[1] {
				t.Errorf("%v: after step %d they are %v %s", steps, i, s.Omits, s.Covers)
			}
		}
	}
}
