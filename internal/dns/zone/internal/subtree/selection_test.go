package subtree_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/subtree"
)

// TestSelections compares what instances and protocols select with a walk over
// the endpoints of the service, for sets of less and more than 64 endpoints.
func TestSelections(t *testing.T) {
	protocols := []federation.Protocol{federation.HTTP, federation.GRPC}
	for _, size := range []int{1, 2, 63, 64, 65, 129, 200} {
		r := rand.New(rand.NewPCG(7, uint64(size)))
		s := service("s")
		s.Endpoints = nil
		for i := range size {
			// The addresses come in descending order, so that the order of the
			// service is not that of the subtree.
			labels := []string{fmt.Sprint("only", i)}
			for _, l := range []string{"a", "b", "c"} {
				if r.IntN(3) == 0 {
					labels = append(labels, l)
				}
			}
			s.Endpoints = append(s.Endpoints, endpoint(fmt.Sprintf("192.0.2.%d", size-i), 80, labels...))
		}
		selectors := [][]string{
			nil,
			{"none"},
			{"a"},
			{"b", "c"},
			{"a", "b", "c"},
			{"none", "a"},
			{"only0"},
			{fmt.Sprint("only", size-1)},
			{fmt.Sprint("only", size/2), "only0"},
			{"only0", "a"},
		}
		for i, selector := range selectors {
			s.Instances = append(s.Instances, federation.Instance{
				ID: fmt.Sprint("i", i), Protocol: protocols[i%2], EndpointSelector: selector, Unnamed: i == 2,
			})
		}
		tree := compiled(s)
		byProtocol := make(map[federation.Protocol][]string)
		for i := range s.Instances {
			in := &s.Instances[i]
			want := chosen(s, in.EndpointSelector)
			byProtocol[in.Protocol] = append(byProtocol[in.Protocol], want...)
			m := tree.MatchLabels(in.ID)
			if in.Unnamed {
				if m.Endpoints != nil {
					t.Errorf("%d endpoints: %s has a name", size, in.ID)
				}
			} else if d := cmp.Diff(want, ips(tree, m.Endpoints)); d != "" {
				t.Errorf("%d endpoints, selector %v (-want +got):\n%s", size, in.EndpointSelector, d)
			}
		}
		for labels, p := range map[string]federation.Protocol{"_http._tcp": federation.HTTP, "_grpc._tcp": federation.GRPC} {
			want := byProtocol[p]
			slices.Sort(want)
			if d := cmp.Diff(slices.Compact(want), ips(tree, tree.MatchLabels(labels).Endpoints)); d != "" {
				t.Errorf("%d endpoints, %s (-want +got):\n%s", size, labels, d)
			}
		}
	}
}

// chosen returns the addresses of the endpoints with one of the labels, and all
// of them when none has one.
func chosen(s *federation.Service, selector []string) (addresses []string) {
	all := make([]string, 0, len(s.Endpoints))
	for _, ep := range s.Endpoints {
		ip, _ := ep.Address.IP()
		all = append(all, ip.String())
		if slices.ContainsFunc(selector, func(l string) bool { return slices.Contains(ep.Labels, l) }) {
			addresses = append(addresses, ip.String())
		}
	}
	if len(addresses) == 0 {
		addresses = all
	}
	slices.Sort(addresses)
	return addresses
}

// ips returns the addresses of a selection, and checks that it is in ascending
// order.
func ips(tree tree, selection subtree.Selection) (addresses []string) {
	if !slices.IsSorted(selection) {
		return []string{fmt.Sprint("not sorted: ", selection)}
	}
	for _, i := range selection {
		ip, _ := tree.Endpoint(i).Address.IP()
		addresses = append(addresses, ip.String())
	}
	slices.Sort(addresses)
	return addresses
}
