package publisher

import (
	"errors"

	"github.com/hamlet-federation/coredns-federation/federation/ownerconfig"
	"github.com/hamlet-federation/coredns-federation/federation/source"
)

// openKubernetes returns the source of a cluster.
func (*Publisher) openKubernetes(ownerconfig.Source) (source.Source, error) {
	return nil, errors.New("this build has no source for Kubernetes")
}
