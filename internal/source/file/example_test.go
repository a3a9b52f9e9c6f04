package file_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/source/file"
)

// A registry gets what a catalog file says.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "catalog.yaml")
	const text = `services:
- name: shop
  fqdn: shop.fed.example
  endpoints:
  - address: 192.0.2.1
    port: 443
  instances:
  - id: v1
    protocol: TLS
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		fmt.Println(err)
		return
	}

	registry := registry.New() // which an owner.Server serves
	quiet := slog.New(slog.DiscardHandler)
	catalog := source.NewCatalog(source.Config{Registry: registry, Logger: quiet, Sources: []source.Entry{{
		Name: "file catalog.yaml", Source: file.New(file.Config{Path: path, Logger: quiet}), Lifetime: time.Hour,
	}}})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { _ = catalog.Run(ctx) })

	<-catalog.Published()
	subscription := registry.Subscribe()
	defer subscription.Close()
	event, err := subscription.NextEvent(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(event.Service.FQDN, "is at", event.Service.Endpoints[0].Address)
	// Output:
	// shop.fed.example. is at 192.0.2.1
}
