package registration

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/rules"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// What comes and goes while somebody who watches does not read takes no memory without
// bound, and ends the list.
func TestListThatIsNotRead(t *testing.T) {
	const nodes = 100
	l := &list{watch: true, wake: make(chan struct{}, 1), keys: make(map[node.Key]struct{})}
	for i := range maxBehind + nodes + 1 {
		uri := must.Get(node.ParseURI("tcp://:1", netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})))(t)
		if l.lost {
			t.Fatalf("lost after %d keys", i)
		}
		l.note(node.Key{URI: uri}, nodes)
	}
	l.note(node.Key{}, nodes)
	if !l.lost || len(l.keys) > 0 {
		t.Errorf("lost: %t, with %d keys", l.lost, len(l.keys))
	}
	id := must.Get(federation.ParseID("spiffe://acme.example/web"))(t)
	r, problems := rules.Parse([]byte("rules: []\nobservers: [\"spiffe://acme.example/web\"]"))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	s := must.Get(New(Config{Owner: "owner-1", Rules: r}))(t)
	if err := s.follow(context.Background(), l, []federation.ID{id}, nil); !errors.Is(err, errBehind) {
		t.Error(err)
	}
}
