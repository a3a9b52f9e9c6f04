package source

import (
	"log/slog"
	"strconv"
	"testing"

	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// TestManyShareAnFqdn has a source take an fqdn, with many services at once, that as many of
// another source have. Were each of these looked at for each of those, this would take many
// seconds.
func TestManyShareAnFqdn(t *testing.T) {
	const n = 5_000
	c := NewCatalog(Config{
		Registry: registry.New(), Logger: slog.New(slog.DiscardHandler), Sources: []Entry{{Name: "1", Source: newPuppet()}, {Name: "2", Source: newPuppet()}},
	})
	var parts [2][]*wire.EncodedService
	var names []string
	for i := range n {
		parts[0] = append(parts[0], encoded("one/"+strconv.Itoa(i), "same", 0))
		parts[1] = append(parts[1], encoded("two/"+strconv.Itoa(i), "same", 0))
		names = append(names, parts[0][i].Name())
	}
	c.parts[0].Replace(nil)
	c.parts[1].Replace(parts[1])
	for range 2 {
		c.parts[0].Update(parts[0], nil)
		if hidden := c.Status().Sources[1].Hidden; hidden != n || c.registry.Stats().Services != n {
			t.Fatalf("%d services are published, and %d of the second source hidden", c.registry.Stats().Services, hidden)
		}
		c.parts[0].Update(nil, names)
		if hidden := c.Status().Sources[1].Hidden; hidden != 0 || c.registry.Stats().Services != n {
			t.Fatalf("%d services are published, and %d of the second source hidden", c.registry.Stats().Services, hidden)
		}
	}
}
