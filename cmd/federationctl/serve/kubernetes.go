package serve

import (
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes"
	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes/export"
)

// openKubernetes returns the source of a cluster, which is not connected yet.
func (p *Publisher) openKubernetes(s config.Source) (source.Source, error) {
	k := s.Kubernetes
	rules, err := rulesOf(k)
	if err != nil {
		return nil, err
	}
	return kubernetes.New(kubernetes.Config{
		Rules: rules, Kubeconfig: k.Kubeconfig, Context: k.Context, Namespaces: k.Namespaces, Selector: k.Selector,
		Logger: p.logger.With("source", s.Name),
	})
}

// rulesOf returns by what rules a cluster is translated.
func rulesOf(k *config.Kubernetes) (export.Rules, error) {
	zone, err := federation.ParseFQDN(k.Zone)
	if err != nil {
		return export.Rules{}, err
	}
	rules := export.Rules{Cluster: k.Cluster, Zone: zone, RoutablePods: k.Routable, Labels: k.Labels, Annotations: k.Annotations}
	for _, of := range k.Names {
		grant := export.Grant{Namespaces: of.Namespaces}
		for _, text := range of.Names {
			name, err := pattern.ParseName(text)
			if err != nil {
				return export.Rules{}, err
			}
			grant.Names = append(grant.Names, name)
		}
		rules.Grants = append(rules.Grants, grant)
	}
	for _, name := range k.Endpoints {
		if kind, ok := export.ParseKind(name); ok { // the configuration has been checked: it always is one
			rules.Order = append(rules.Order, kind)
		}
	}
	return rules, nil
}
