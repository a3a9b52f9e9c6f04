package source_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/registrytest"
)

// directory is a source: each file of a directory is a service, its name is what stands
// before .<zone>, and its content is the address.
type directory struct {
	path, zone string
}

// Run implements source.Source.
func (d directory) Run(ctx context.Context, part source.Part) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		services, refused, err := d.read()
		if err == nil {
			part.SetRefused(refused)
			part.Replace(services) // publishes what is different
		}
		part.SetAway(err) // nil when the directory can be read
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// read returns what the directory says, and counts the files that say nothing valid.
func (d directory) read() ([]*wire.EncodedService, map[string]int, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, nil, err
	}
	var services []*wire.EncodedService
	refused := make(map[string]int)
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(d.path, entry.Name()))
		if err != nil {
			return nil, nil, err
		}
		service, err := d.service(entry.Name(), strings.TrimSpace(string(text)))
		if err != nil {
			invalid, _ := errors.AsType[*federation.InvalidError](err)
			refused[string(invalid.Reason)]++
			continue
		}
		services = append(services, service)
	}
	return services, refused, nil
}

func (d directory) service(name, text string) (*wire.EncodedService, error) {
	fqdn, err := federation.ParseFQDN(name + "." + d.zone)
	if err != nil {
		return nil, federation.Invalidf("fqdn", federation.ReasonName, "%v", err)
	}
	address, err := federation.ParseAddress(text)
	if err != nil {
		return nil, federation.Invalidf("address", federation.ReasonAddress, "%v", err)
	}
	return wire.NewEncoded(&federation.Service{
		Name: d.path + "/" + name, FQDN: fqdn, // no other source has such names
		Endpoints: []federation.Endpoint{{Address: address, Port: 443}},
		Instances: []federation.Instance{{ID: name, Protocol: federation.TLS}},
	})
}

// Two directories fill one catalog. The first one wins where both have a name.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	for name, text := range map[string]string{
		"new/shop": "192.0.2.1", "old/shop": "192.0.2.2", "old/mail": "192.0.2.3", "old/news": "none yet!",
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			panic(err)
		}
	}

	registry := registry.New() // which an owner.Server serves
	catalog := source.NewCatalog(source.Config{Registry: registry, Logger: slog.New(slog.DiscardHandler), Sources: []source.Entry{
		{Name: "new services", Source: directory{filepath.Join(dir, "new"), "fed.example"}, Lifetime: time.Hour},
		{Name: "old services", Source: directory{filepath.Join(dir, "old"), "fed.example"}, Lifetime: time.Hour},
	}})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { _ = catalog.Run(ctx) })

	<-catalog.Published()
	subscription := registrytest.Listen(registry)
	defer subscription.Close()
	next := func() {
		switch event, err := subscription.NextEvent(ctx); {
		case err != nil:
			fmt.Println(err)
		case event.Operation == wire.Upsert:
			fmt.Println(event.Service.FQDN, "is at", event.Service.Endpoints[0].Address)
		case event.Operation == wire.Delete:
			fmt.Println(filepath.Base(event.Name), "is gone")
		}
	}
	next()
	next()
	for _, s := range catalog.Status().Sources {
		fmt.Printf("%s: %d services, %d hidden, refused %v\n", s.Name, s.Services, s.Hidden, s.Refused)
	}
	// Output:
	// shop.fed.example. is at 192.0.2.1
	// mail.fed.example. is at 192.0.2.3
	// new services: 1 services, 0 hidden, refused map[]
	// old services: 2 services, 1 hidden, refused map[address:1]
}
