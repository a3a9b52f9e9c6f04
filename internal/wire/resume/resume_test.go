package resume_test

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/internal/wire/resume"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// digests returns those of a catalog of n services, some of which are changed.
func digests(n int, changed map[int]string) resume.Digests {
	var s resume.CatalogSum
	for i := range n {
		name := fmt.Sprintf("shop/%d", i)
		s.Add(name, []byte(name+changed[i]))
	}
	return s.Digests()
}

// TestDiffer changes a service: its bucket differs, and no other one.
func TestDiffer(t *testing.T) {
	for _, n := range []int{1, 10, 100, 1_000, 10_000, 100_000} {
		buckets := resume.BucketCount(n)
		owner, consumer := digests(n, map[int]string{n / 2: "!"}), digests(n, nil).FoldTo(buckets)
		theirs := must.Get(resume.ParseDigests(consumer.Header()))(t)
		differ := must.Get(resume.ParseSelection(owner.DifferingBuckets(theirs).Header(), buckets))(t)
		if differ.Len() != 1 || differ.TotalBuckets() != buckets || !differ.HasName(fmt.Sprintf("shop/%d", n/2)) {
			t.Errorf("%d services: %d of %d buckets differ", n, differ.Len(), differ.TotalBuckets())
		}
		if same := digests(n, nil).DifferingBuckets(theirs); same.Len() != 0 || same.TotalBuckets() != buckets {
			t.Errorf("%d services: %d buckets of an equal catalog differ", n, same.Len())
		}
	}
}

// golden is a catalog of four services, small enough for other implementers to follow:
// their messages have no more than a name (field 1) and an fqdn (field 5).
// Two of them share a leaf, and come in another order than their digests have in its sum.
var golden = []struct {
	name, resource string
	leaf           int
	digest         string // of the leaf
}{
	{"shop/cart", "\x0a\x09shop/cart\x2a\x0ccart.example", 190, "c295449dcbb931ac1564a9483cee3b25"},
	{"pay/10370", "\x0a\x09pay/10370\x2a\x0bpay.example", 302, "85985276e6ce50292ed7f9b0e2437937"},
	{"shop/web", "\x0a\x08shop/web\x2a\x0bweb.example", 302, "85985276e6ce50292ed7f9b0e2437937"},
	{"bank/ledger", "\x0a\x0bbank/ledger\x2a\x0eledger.example", 303, "b95f935e2a6d4a3f805e2f3b395d4d67"},
}

// TestGolden takes the digests of the golden catalog, and compares them with those of one
// where shop/web is a byte longer. What it expects was computed without this package.
func TestGolden(t *testing.T) {
	var consumer, owner resume.CatalogSum
	for _, s := range golden {
		consumer.Add(s.name, []byte(s.resource))
		if s.name == "shop/web" {
			s.resource += "!"
		}
		owner.Add(s.name, []byte(s.resource))
	}
	ours, theirs := owner.Digests(), consumer.Digests()
	for _, s := range golden {
		if got := resume.LeafOf(s.name); got != s.leaf {
			t.Errorf("%s is in leaf %d, expected %d", s.name, got, s.leaf)
		}
		if got := hex.EncodeToString(theirs[s.leaf][:]); got != s.digest {
			t.Errorf("the digest of leaf %d is %s, expected %s", s.leaf, got, s.digest)
		}
	}
	if got, want := hex.EncodeToString(theirs[0][:]), "e3b0c44298fc1c149afbf4c8996fb924"; got != want {
		t.Errorf("the digest of an empty leaf is %s, expected %s", got, want)
	}
	for buckets, want := range map[int][2]string{
		1: {"M8AsmpAO+yuNdJwKnPRguQ", "accepted 1/gA"},
		2: {"zGq9PtTT0wdBRuUuJOPyQcydHplxdqa9lh/WW+sf2h4", "accepted 2/QA"},
		4: {
			"EPppMV6YWPTrwu3FgZNtDavMawUTcNS0BbAJDOA1u8zbmVkDkSXdO+fNFklJw2CXEPppMV6YWPTrwu3FgZNtDQ",
			"accepted 4/IA",
		},
	} {
		folded := theirs.FoldTo(buckets)
		if got := [2]string{folded.Header(), ours.DifferingBuckets(folded).Header()}; got != want {
			t.Errorf("the headers of %d buckets are %q, expected %q", buckets, got, want)
		}
	}
}

// TestBuckets folds to about 32 services in a bucket.
func TestBuckets(t *testing.T) {
	for services, want := range map[int]int{0: 1, 1: 1, 63: 1, 64: 2, 127: 2, 128: 4, 10_000: 256, 16_383: 256, 16_384: 512, 1 << 40: 512} {
		if got := resume.BucketCount(services); got != want {
			t.Errorf("%d services are in %d buckets, expected %d", services, got, want)
		}
	}
}

// TestParseRefuses reads headers that other versions or other programs could send.
func TestParseRefuses(t *testing.T) {
	one := digests(1, nil).FoldTo(1).Header()
	for name, header := range map[string]string{
		"nothing":          "",
		"not base64":       "@" + one[1:],
		"padding":          one + "==",
		"not canonical":    one[:len(one)-1] + "B",
		"a line end":       one[:8] + "\n" + one[8:],
		"a byte too few":   one[:len(one)-2],
		"three digests":    digests(1, nil)[:3].Header(),
		"too many digests": append(digests(1, nil), digests(1, nil)...).Header(),
	} {
		if d, err := resume.ParseDigests(header); err == nil {
			t.Errorf("%s: %d digests are read", name, len(d))
		}
	}
	selection := digests(1, nil).DifferingBuckets(digests(0, nil).FoldTo(4)).Header()
	for name, header := range map[string]string{
		"nothing":          "",
		"other words":      "refused",
		"another number":   "accepted 8/AA",
		"not base64":       "accepted 4/@@",
		"padding":          "accepted 4/AA==",
		"a bit too many":   "accepted 4/CA",
		"a byte too many":  "accepted 4/AAA",
		"no byte":          "accepted 4/",
		"a longer header":  selection + " and more",
		"a repeated value": selection + "," + selection,
	} {
		if s, err := resume.ParseSelection(header, 4); err == nil {
			t.Errorf("%s: %d buckets are read", name, s.TotalBuckets())
		}
	}
}

// FuzzParseDigests reads what a consumer sends. What can be read is written as it was.
func FuzzParseDigests(f *testing.F) {
	f.Add("")
	for _, n := range []int{1, 2, 512} {
		f.Add(digests(100, nil).FoldTo(n).Header())
	}
	f.Add(digests(100, nil).Header() + "AAAA")
	f.Fuzz(func(t *testing.T, header string) {
		d, err := resume.ParseDigests(header)
		if err != nil {
			return
		}
		if got := d.Header(); got != header {
			t.Errorf("%q is written as %q", header, got)
		}
		if n := len(d); n < 1 || n > resume.Leaves || n&(n-1) != 0 {
			t.Fatalf("there are %d digests", n)
		}
		same := d.DifferingBuckets(d)
		if s := digests(100, nil).DifferingBuckets(d); same.Len() != 0 || s.TotalBuckets() != len(d) || s.Len() > s.TotalBuckets() {
			t.Errorf("%d of %d buckets differ, and of the same %d", s.Len(), s.TotalBuckets(), same.Len())
		}
	})
}

// FuzzParseSelection reads what an owner answers. What can be read is written as it was.
func FuzzParseSelection(f *testing.F) {
	f.Add("accepted 1/gA", uint8(0))
	f.Add("accepted 4/IA", uint8(2))
	f.Add("accepted 512/"+strings.Repeat("A", 86), uint8(9))
	f.Fuzz(func(t *testing.T, header string, log uint8) {
		buckets := 1 << (log % 10)
		s, err := resume.ParseSelection(header, buckets)
		if err != nil {
			return
		}
		if got := s.Header(); got != header {
			t.Errorf("%q is written as %q", header, got)
		}
		selected := 0
		for leaf := 0; leaf < resume.Leaves; leaf += resume.Leaves / buckets {
			if s.HasLeaf(leaf) {
				selected++
			}
		}
		if s.TotalBuckets() != buckets || selected != s.Len() {
			t.Errorf("%d of %d buckets are selected, and %d are said to be", selected, s.TotalBuckets(), s.Len())
		}
	})
}

// TestZeroSelection selects nothing.
func TestZeroSelection(t *testing.T) {
	if s := (resume.BucketSelection{}); s.HasName("shop/web") || s.Len() != 0 || s.TotalBuckets() != 0 {
		t.Errorf("the zero value has %d of %d buckets", s.Len(), s.TotalBuckets())
	}
}

// TestAdd selects the bucket of a leaf.
func TestAdd(t *testing.T) {
	same := digests(100, nil)
	for _, buckets := range []int{1, 2, 8, 64, 512} {
		for _, leaf := range []int{0, 1, 255, 256, 511} {
			s := same.DifferingBuckets(same.FoldTo(buckets))
			s.AddLeaf(leaf)
			if !s.HasLeaf(leaf) || s.Len() != 1 {
				t.Errorf("%d of %d buckets are selected for leaf %d", s.Len(), buckets, leaf)
			}
		}
	}
}
