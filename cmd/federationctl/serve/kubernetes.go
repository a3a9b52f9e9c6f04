package serve

import (
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes"
	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes/export"
)

// openKubernetes returns the source of a cluster, which is not connected yet.
func (p *Publisher) openKubernetes(s config.Source) (source.Source, error) {
	k := s.Kubernetes
	return kubernetes.New(kubernetes.Config{
		Rules: rulesOf(k), Kubeconfig: k.Kubeconfig, Context: k.Context, Namespaces: k.Namespaces, Selector: k.Selector,
		Logger: p.logger.With("source", s.Name),
	})
}

// rulesOf returns by what rules a cluster is translated.
func rulesOf(k *config.Kubernetes) export.Rules {
	rules := export.Rules{
		Cluster: k.Cluster, Zone: k.Zone, Order: k.Endpoints, RoutablePods: k.Routable, Labels: k.Publish.Labels, Annotations: k.Publish.Annotations,
	}
	for _, of := range k.Names {
		rules.Grants = append(rules.Grants, export.Grant(of))
	}
	return rules
}
