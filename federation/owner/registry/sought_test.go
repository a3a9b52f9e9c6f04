package registry_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/policy"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// holder is a subscriber with all that it has been told.
type holder struct {
	*registry.Subscription

	ids []federation.ID
	has map[string]string // addresses by the name of the service
}

func (h *holder) take(n int) {
	for _, u := range h.Take(nil, n) {
		switch u.Operation {
		case federation.Upsert:
			h.has[u.Name] = u.Decoded().Service.Endpoints[0].Address.String()
		case federation.Delete:
			delete(h.has, u.Name)
		}
	}
}

// question is a Sought with the address that it is about.
type question struct {
	*registry.Sought

	address string
}

func ask(r *registry.Registry, address string) question {
	return question{r.Seek(func(e *wire.Encoded) bool { return e.Service().Endpoints[0].Address.String() == address }), address}
}

// need returns the number of the version that a subscriber has to reach.
func (q question) need(h *holder) uint64 {
	told, since := q.Tells(h.ids)
	if told {
		_, since = q.Found()
	}
	return since
}

// TestSought changes a catalog and its policy at random while subscribers follow, and compares
// what follows for them from what is sought with what they have.
func TestSought(t *testing.T) {
	t.Parallel()
	gone := 0
	for seed := range uint64(unlessShort(120, 40)) {
		random := rand.New(rand.NewPCG(seed, 3))
		r := registry.New()
		var holders []*holder
		for i := range 4 {
			ids := []federation.ID{must.Value(federation.ParseID(fmt.Sprintf("c%d.example", i)))}
			h := &holder{r.SubscribeAs(registry.Consumer{IDs: ids, Patient: true}), ids, make(map[string]string)}
			defer h.Close()
			holders = append(holders, h)
		}
		var questions []question
		release := func() {}
		held := false
		steps := 200
		if seed%8 == 0 {
			steps = 1500 // more changes than are remembered
		}
		for range steps {
			name, address := fmt.Sprintf("s%d", random.IntN(3)), fmt.Sprintf("192.0.2.%d", random.IntN(6))
			switch random.IntN(16) {
			case 0, 1, 2, 3:
				must.Get(r.Upsert(services.At(name+".example", address)))(t)
			case 4, 5, 6:
				r.Delete(name)
			case 7:
				r.SetPolicy(soughtPolicy(t, random))
			case 8:
				if held {
					release()
				} else {
					release = r.Hold()
				}
				held = !held
			case 9:
				questions = append(questions, ask(r, address))
			default:
				holders[random.IntN(4)].take(1 + random.IntN(3))
			}
			if len(questions) > 4 {
				questions = questions[1:]
			}
			for _, q := range questions {
				if random.IntN(3) > 0 {
					continue
				}
				q.Look()
				if n, _ := q.Found(); n > 0 {
					continue
				}
				for i, h := range holders {
					if h.Reached(h.Taken()) < q.need(h) {
						continue
					}
					gone++
					for name, address := range h.has {
						if address == q.address {
							t.Fatalf("seed %d: %s is gone for %d, which has it in %s", seed, address, i, name)
						}
					}
				}
			}
		}
		if held {
			release()
		}
		for _, q := range questions {
			q.Look()
			for i, h := range holders {
				h.take(100)
				if n, _ := q.Found(); n == 0 && h.Reached(h.Taken()) < q.need(h) {
					t.Errorf("seed %d: %d has taken all, and has not reached %s", seed, i, q.address)
				}
			}
		}
	}
	if gone == 0 {
		t.Error("nothing was ever gone")
	}
	t.Logf("%d times something was gone", gone)
}

func soughtPolicy(t *testing.T, random *rand.Rand) *policy.Policy {
	t.Helper()
	if random.IntN(3) == 0 {
		return nil
	}
	var rules []policy.Rule
	for i := range 3 {
		rule := policy.Rule{FQDNs: []string{fmt.Sprintf("s%d.example", i)}, To: []string{"nobody.example"}}
		for j := range 4 {
			if random.IntN(2) == 0 {
				rule.To = append(rule.To, fmt.Sprintf("c%d.example", j))
			}
		}
		rules = append(rules, rule)
	}
	p, mistakes := policy.New(rules)
	if len(mistakes) > 0 {
		t.Fatal(mistakes)
	}
	return p
}
