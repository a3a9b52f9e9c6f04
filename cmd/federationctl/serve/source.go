package serve

import (
	"context"
	"fmt"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/source/file"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// openSource returns the source that the configuration describes, for the catalog that is
// published in r. It does not run yet.
// This is the one place that knows all kinds of sources.
func (p *Publisher) openSource(ctx context.Context, s config.Source, r *registry.Registry) (source.Source, error) {
	policy := wire.AddressPolicy{AllowAddresses: p.config.AllowAddresses}
	var opened source.Source
	var err error
	switch {
	case s.File != nil:
		opened, err = p.openFile(ctx, s.File, policy)
	case s.Kubernetes != nil:
		opened, err = p.openKubernetes(s)
	case s.Registration != nil:
		opened, err = p.openRegistration(ctx, s, r, policy)
	case s.Consul != nil:
		opened = p.openConsul(s, policy)
	case s.NSM != nil:
		opened, err = p.openNSM(s, policy)
	case s.Relay != nil:
		opened, err = p.openRelay(ctx, s, policy)
	}
	switch {
	case err == nil:
		return opened, nil
	case p.file != "":
		err = fmt.Errorf("source %s: %w", s.Name, err)
	}
	return nil, err // opened may be one that is not nil
}

// openFile returns the source of a catalog file. Where no configuration file is
// followed, the catalog file must be in order.
func (p *Publisher) openFile(ctx context.Context, f *config.File, policy wire.AddressPolicy) (source.Source, error) {
	opened := file.New(file.Config{Path: f.Path, Policy: policy, MaxBytes: f.MaxSize, Logger: p.logger, Group: p.edits})
	if p.file != "" {
		return opened, nil
	}
	return opened, opened.Load(ctx)
}
