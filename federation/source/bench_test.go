package source

import (
	"fmt"
	"log/slog"
	"strconv"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// filled returns a catalog of two sources that share a tenth of their fqdns, and the
// services of the second.
func filled(b *testing.B, n int) (*Catalog, []*wire.Encoded) {
	b.Helper()
	c := NewCatalog(Config{
		Registry: registry.New(), Logger: slog.New(slog.DiscardHandler), Sources: []Entry{{Name: "1", Source: newPuppet()}, {Name: "2", Source: newPuppet()}},
	})
	var parts [2][]*wire.Encoded
	for i := range n / 2 {
		parts[0] = append(parts[0], encoded(fmt.Sprint("one/", i), fmt.Sprint("h", i), 0))
		parts[1] = append(parts[1], encoded(fmt.Sprint("two/", i), fmt.Sprint("h", i+n/2-n/20), 0))
	}
	c.parts[0].Replace(parts[0])
	c.parts[1].Replace(parts[1])
	return c, parts[1]
}

// BenchmarkUpdate changes a service of the second source, its fqdn included.
func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			c, _ := filled(b, n)
			versions := [][]*wire.Encoded{
				{encoded("two/0", "h0", 1)}, {encoded("two/0", "free", 2)}, {encoded("two/0", "free", 3)},
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				c.parts[1].Update(versions[i%len(versions)], nil)
			}
		})
	}
}

// BenchmarkTakeOver removes a service that hides another one, and adds it again.
func BenchmarkTakeOver(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			c, _ := filled(b, n)
			last := encoded(fmt.Sprint("one/", n/2-1), fmt.Sprint("h", n/2-1), 0)
			b.ReportAllocs()
			for b.Loop() {
				c.parts[0].Update(nil, []string{last.Name()})
				c.parts[0].Update([]*wire.Encoded{last}, nil)
			}
		})
	}
}

// BenchmarkReplace gives the same services again but for one, as a file does.
func BenchmarkReplace(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			c, services := filled(b, n)
			middle := len(services) / 2
			name, host := services[middle].Name(), fmt.Sprint("h", middle+n/2-n/20)
			versions := []*wire.Encoded{encoded(name, host, 1), encoded(name, host, 2)}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				services[middle] = versions[i%2]
				c.parts[1].Replace(services)
			}
		})
	}
}
