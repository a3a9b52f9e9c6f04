package export

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// wants returns the verdict of an export of the given age that can be published.
func wants(name string, since int64) Verdict {
	return Verdict{Service: &federation.Service{FQDN: services.FQDN(name)}, Kind: LoadBalancer, Claim: Claim{Since: time.Unix(since, 0)}}
}

// TestClaimsRank has exports that are ever later, and go ever further before the others.
func TestClaimsRank(t *testing.T) {
	var c Claims
	name := "api.pay.west.fed.example"
	for i, claim := range []Claim{{Granted: true, Labelled: true}, {Granted: true}, {Labelled: true}, {}} {
		key := fmt.Sprintf("shop/%d", i)
		v := wants(name, int64(i))
		claim.Since = v.Claim.Since
		v.Claim = claim
		c.Set(key, v)
		if judged := c.Judge(key, v); judged.Refusal != nil {
			t.Errorf("%+v does not have the name: %s", claim, judged.Refusal.Message)
		}
	}
	for claim, holder := range map[Claim]string{
		{Granted: true}:                      "shop/3 has it, which belongs to its namespace",
		{Labelled: true}:                     "shop/3 has it, by a ServiceExport, which goes before a label",
		{Since: time.Unix(math.MaxInt32, 0)}: "shop/3 has it, which is older",
	} {
		v := wants(name, 0)
		v.Claim = claim
		c.Set("shop/x", v)
		want := Verdict{Claim: claim, Refusal: &Finding{Conflict, `shop/x cannot have the name "api.pay.west.fed.example.": ` + holder, "shop/3 has the name"}}
		if diff := cmp.Diff(want, c.Judge("shop/x", v), byValue); diff != "" {
			t.Errorf("%+v: verdict (-want +got):\n%s", claim, diff)
		}
	}
	v := wants(name, math.MaxInt32)
	c.Set("sho/x", v)
	want := Finding{Conflict, `sho/x cannot have the name "api.pay.west.fed.example.": an export of another namespace has it, which is older`, "shop/3 has the name"}
	if got := c.Judge("sho/x", v).Refusal; got == nil || *got != want {
		t.Errorf("what another namespace is told: %+v, want %+v", got, want)
	}
}

// rank returns what decides between two claims: the lesser goes first.
func rank(v Verdict, key string) []string {
	bit := map[bool]string{false: "0", true: "1"}
	return []string{bit[v.Claim.Granted], bit[v.Claim.Labelled], v.Claim.Since.Format(time.RFC3339), key}
}

// TestClaimsRandom compares with a search through all exports, and checks that
// whoever is judged otherwise after a change was named.
func TestClaimsRandom(t *testing.T) {
	var (
		c        Claims
		random   = rand.New(rand.NewPCG(1, 2))
		verdicts = make(map[string]Verdict)
		keys     = []string{"a/a", "a/b", "b/a", "b/b", "c/c"}
		judged   = make(map[string]string)
	)
	for range 5000 {
		key := keys[random.IntN(len(keys))]
		var changed []string
		if random.IntN(3) == 0 {
			delete(verdicts, key)
			changed = c.Remove(key)
		} else {
			v := wants([]string{"x.fed.example", "y.fed.example"}[random.IntN(2)], random.Int64N(3))
			v.Claim.Granted, v.Claim.Labelled = random.IntN(2) == 0, random.IntN(2) == 0
			verdicts[key] = v
			changed = c.Set(key, v)
		}
		for _, other := range keys {
			v, ok := verdicts[other]
			if !ok {
				delete(judged, other)
				continue
			}
			holder := other
			for k, rival := range verdicts {
				h := verdicts[holder]
				if rival.Service.FQDN == v.Service.FQDN && slices.Compare(rank(rival, k), rank(h, holder)) < 0 {
					holder = k
				}
			}
			if got := c.Judge(other, v); (got.Refusal == nil) != (holder == other) {
				t.Fatalf("%s is judged %v, and %s has the name", other, got.Refusal, holder)
			}
			if before, ok := judged[other]; ok && before != holder && other != key && !slices.Contains(changed, other) {
				t.Fatalf("%s lost to %s before and to %s now, and was not named: %v", other, before, holder, changed)
			}
			judged[other] = holder
		}
		if slices.Contains(changed, key) {
			t.Fatalf("%s was named for its own change", key)
		}
	}
}
