package subtree_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/record"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/subtree"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

// member says something of a shared name: endpoints as ADDRESS@TIER, and instances as ID/PROTOCOL. It is stale if
// that begins with "stale".
func member(owner int, text string) subtree.Member {
	s := &federation.Service{Name: fmt.Sprint("s", owner)}
	m := subtree.Member{Owner: uint32(owner), Tree: new(subtree.Subtree)}
	for field := range strings.FieldsSeq(text) {
		id, protocol, isInstance := strings.Cut(field, "/")
		address, tier, _ := strings.Cut(field, "@")
		switch p, _ := federation.ParseProtocol(protocol); {
		case field == "stale":
			m.Stale = true
		case isInstance:
			id, selector, _ := strings.Cut(id, "=")
			in := federation.Instance{ID: id, Protocol: p}
			if selector != "" {
				in.EndpointSelector = []string{selector}
			}
			s.Instances = append(s.Instances, in)
		default:
			s.Endpoints = append(s.Endpoints, endpoint(address, 80, tier, address))
		}
	}
	m.Service = packed.PackService(s)
	m.Tree.Compile(s, fqdn, func(_, _ string) subtree.Fault { return "" })
	return m
}

// TestJoin has what members say, and what they are together.
func TestJoin(t *testing.T) {
	const a, b, c = "192.0.2.1", "192.0.2.2", "192.0.2.3"
	for name, tt := range map[string]struct {
		members   []string
		endpoints string            // each with its rank and who says it
		names     map[string]string // to the endpoints, and the texts by who tells them
	}{
		"one": {
			[]string{a + "@1 v1/HTTP"},
			a + " 1 [0]",
			map[string]string{"v1": "[0] 1", "_http._tcp": "[0]", "_http._tcp.v1": "[0]", "_grpc._tcp": "missing", "v2": "missing"},
		},
		"an endpoint of both is of both": {
			[]string{a + "@3 " + b + "@3 v1/HTTP", b + "@1 " + c + "@2 v2/HTTP"},
			a + " 3 [0], " + b + " 1 [0 1], " + c + " 2 [1]",
			map[string]string{"v1": "[0 1] 1", "v2": "[1 2] 1", "_http._tcp": "[0 1 2]"},
		},
		"what is stale is behind what is live, whatever its tier": {
			[]string{"stale " + a + "@0 " + b + "@0 v1/HTTP", b + "@9 v1/HTTP"},
			a + " 10 [0], " + b + " 9 [0 1]",
			map[string]string{"v1": "[0 1] 1"},
		},
		"case is not told apart in IDs": {
			[]string{a + "@0 v1/HTTP", b + "@0 V1/HTTP"},
			a + " 0 [0], " + b + " 0 [1]",
			map[string]string{"v1": "[0 1] 1", "_http._tcp.v1": "[0 1]"},
		},
		"an ID in two protocols": {
			[]string{a + "@0 v1/HTTP", b + "@0 v1/GRPC"},
			a + " 0 [0], " + b + " 0 [1]",
			map[string]string{
				"v1": "[0 1] 2", "_http._tcp.v1": "[0]", "_grpc._tcp.v1": "[1]", "_http._tcp": "[0]", "_grpc._tcp": "[1]", "_tcp.v1": "[]", "_tls._tcp.v1": "missing",
			},
		},
		"instances select among what their owner says": {
			[]string{a + "@0 " + b + "@0 v1=" + a + "/HTTP", a + "@0 " + c + "@0 v1=none/HTTP"},
			a + " 0 [0 1], " + b + " 0 [0], " + c + " 0 [1]",
			map[string]string{"v1": "[0 2] 1"},
		},
		"a host that is the name of an address": {
			[]string{"192-0-2-1.addr.s.fed.example@2 v1/HTTP", a + "@1 v1/HTTP"},
			a + " 1 [0 1]",
			map[string]string{"v1": "[0] 1", "192-0-2-1.addr": "[]"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var members []subtree.Member
			for i, text := range tt.members {
				members = append(members, member(i, text))
			}
			whole := subtree.NewShared(fqdn, members, 1, func(_ uint32, labels []string) int { return int(labels[0][0] - '0') })
			joined := whole.Joined()
			s := joined.SharedName()
			var got []string
			for _, i := range joined.SelectAll() {
				got = append(got, fmt.Sprint(joined.Endpoint(i).Address, " ", s.EndpointRank(i), " ", slices.Collect(s.MembersSaying(i).Each)))
			}
			if d := cmp.Diff(tt.endpoints, strings.Join(got, ", ")); d != "" {
				t.Errorf("endpoints (-want +got):\n%s", d)
			}
			for labels, want := range tt.names {
				m, got := joined.MatchLabels(labels), "missing"
				if m.Role != domain.Missing {
					got = fmt.Sprint([]uint16(m.Endpoints))
				}
				if m.Role == domain.Instance {
					got += fmt.Sprint(" ", len(joined.Texts(packed.Service{}, m.Instance, record.MaxSet)))
				}
				if got != want || whole.HasLabels(labels) != (want != "missing") {
					t.Errorf("%s has %s, want %s", labels, got, want)
				}
			}
			names := slices.Sorted(whole.RecordLabels())
			for labels := range whole.ClaimedLabels() {
				if !whole.HasLabels(labels) {
					t.Errorf("%s is claimed, and there is no such name", labels)
				}
			}
			for _, labels := range names {
				if joined.MatchLabels(labels).Role == domain.Missing {
					t.Errorf("%s is listed, and there is no such name", labels)
				}
			}
		})
	}
}
