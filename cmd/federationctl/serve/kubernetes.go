package serve

import (
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes"
)

// openKubernetes returns the source of a cluster, which is not connected yet.
func (p *Publisher) openKubernetes(s config.Source) (source.Source, error) {
	c := s.Kubernetes.Config
	c.Logger = p.logger.With("source", s.Name)
	return kubernetes.New(c)
}
