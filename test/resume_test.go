package test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/resume"
)

// What follows is the arithmetic of 'Resuming' in docs/protocol.md, written from that
// chapter alone, as another implementation would. It uses nothing of package resume.

// leafByHand returns the leaf of a name: the first nine bits of its SHA-256.
func leafByHand(name string) int {
	hash := sha256.Sum256([]byte(name))
	return int(hash[0])<<1 | int(hash[1]>>7)
}

// bucketByHand returns in which of so many buckets a name is.
func bucketByHand(name string, buckets int) int { return leafByHand(name) / (512 / buckets) }

// digestByHand returns the first 16 bytes of the SHA-256.
func digestByHand(of string) string {
	hash := sha256.Sum256([]byte(of))
	return string(hash[:16])
}

// leavesByHand returns the digests of all leaves.
func leavesByHand(held map[string][]byte) []string {
	services := make([][]string, 512)
	for name, resource := range held {
		leaf := leafByHand(name)
		services[leaf] = append(services[leaf], digestByHand(string(resource)))
	}
	leaves := make([]string, 512)
	for i := range leaves {
		slices.Sort(services[i])
		leaves[i] = digestByHand(strings.Join(services[i], ""))
	}
	return leaves
}

// digestsByHand returns the digests of so many buckets.
func digestsByHand(held map[string][]byte, buckets int) []string {
	leaves := leavesByHand(held)
	if buckets == 512 {
		return leaves
	}
	digests := make([]string, buckets)
	for i := range digests {
		digests[i] = digestByHand(strings.Join(leaves[i*512/buckets:(i+1)*512/buckets], ""))
	}
	return digests
}

// bucketsByHand returns how many digests a consumer of so many services sends.
func bucketsByHand(services int) int {
	buckets := 1
	for buckets < 512 && buckets*2 <= services/32 {
		buckets *= 2
	}
	return buckets
}

// resumeByHand returns the request header.
func resumeByHand(held map[string][]byte, buckets int) string {
	return base64.RawStdEncoding.EncodeToString([]byte(strings.Join(digestsByHand(held, buckets), "")))
}

// acceptByHand returns the response header of an owner that sends these buckets.
func acceptByHand(buckets int, selected ...int) string {
	bitmap := make([]byte, (buckets+7)/8)
	for _, i := range selected {
		bitmap[i/8] |= 1 << (7 - i%8)
	}
	return fmt.Sprintf("accepted %d/%s", buckets, base64.RawStdEncoding.EncodeToString(bitmap))
}

// selectedByHand reads the response header to a consumer that has sent so many digests.
func selectedByHand(t testing.TB, header string, buckets int) (selected []int) {
	t.Helper()
	bitmap, ok := strings.CutPrefix(header, "accepted "+strconv.Itoa(buckets)+"/")
	bits, err := base64.RawStdEncoding.DecodeString(bitmap)
	if !ok || err != nil || len(bits) != (buckets+7)/8 {
		t.Fatalf("the answer to %d digests is %q: %v", buckets, header, err)
	}
	for i := range buckets {
		if bits[i/8]>>(7-i%8)&1 == 1 {
			selected = append(selected, i)
		}
	}
	return selected
}

// exampleServices are those of the worked example, in v1alpha2.
func exampleServices() map[string][]byte {
	held := make(map[string][]byte)
	for i, name := range []string{"cart", "orders", "web"} {
		held[name] = slices.Concat(str(1, name), str(5, name+".fed.example"),
			msg(9, str(1, fmt.Sprintf("192.0.2.%d", i+2)), num(2, 443)), msg(11, str(1, "v1"), str(2, "HTTPS")))
	}
	return held
}

// workedExample returns the worked example as docs/protocol.md has it.
func workedExample(t testing.TB) string {
	t.Helper()
	held := exampleServices()
	names := slices.Sorted(maps.Keys(held))
	var text strings.Builder
	line := func(what, of, value string) {
		text.WriteString(strings.TrimRight(fmt.Sprintf("%-9s %-7s %s", what, of, value), " ") + "\n")
	}
	for _, name := range names {
		// The bytes stand in lines of at most 96 hexadecimal digits.
		digits := hex.EncodeToString(held[name])
		what := "resource"
		for of := name; digits != ""; what, of = "", "" {
			n := min(96, len(digits))
			line(what, of, digits[:n])
			digits = digits[n:]
		}
		line("digest", name, hex.EncodeToString([]byte(digestByHand(string(held[name])))))
		line("leaf", name, strconv.Itoa(leafByHand(name)))
	}
	leaves := leavesByHand(held)
	for _, leaf := range []int{leafByHand("cart"), leafByHand("web"), 511} { // nothing is in the last one
		line("digest", strconv.Itoa(leaf)+"/512", hex.EncodeToString([]byte(leaves[leaf])))
	}
	for _, name := range names {
		line("bucket", name, fmt.Sprintf("%d/4", bucketByHand(name, 4)))
	}
	for i, digest := range digestsByHand(held, 4) {
		line("digest", strconv.Itoa(i)+"/4", hex.EncodeToString([]byte(digest)))
	}
	line("request", "of 4", resumeByHand(held, 4))
	line("request", "of 1", resumeByHand(held, 1))
	line("response", "of 4", acceptByHand(4, bucketByHand("web", 4)))
	return text.String()
}

// TestDocumentedResume compares the worked example of docs/protocol.md with the arithmetic
// above, and both with package resume.
func TestDocumentedResume(t *testing.T) {
	var documented string
	for _, b := range documentAt(t, "docs/protocol.md").blocks {
		if strings.HasPrefix(b.text, "resource ") {
			documented = b.text
		}
	}
	if diff := cmp.Diff(workedExample(t), documented); diff != "" {
		t.Errorf("docs/protocol.md (-by hand +documented):\n%s", diff)
	}
	for _, n := range []int{0, 1, 700, 20_000} {
		held := make(map[string][]byte)
		var sum resume.CatalogSum
		for i := range n {
			name, resource := fmt.Sprintf("service-%d", i), []byte(strconv.Itoa(n*i))
			held[name] = resource
			sum.Add(name, resource)
			if got := resume.LeafOf(name); got != leafByHand(name) {
				t.Fatalf("the leaf of %q is %d, by hand %d", name, got, leafByHand(name))
			}
		}
		for buckets := 1; buckets <= 512; buckets *= 2 {
			if got, want := sum.Digests().FoldTo(buckets).Header(), resumeByHand(held, buckets); got != want {
				t.Errorf("%d buckets of %d services: the header is\n%s, by hand\n%s", buckets, n, got, want)
			}
		}
	}
	for n := range 20_000 {
		if got, want := resume.BucketCount(n), bucketsByHand(n); got != want {
			t.Fatalf("%d services have %d buckets, by hand %d", n, got, want)
		}
	}
	changed := exampleServices()
	changed["web"] = []byte("changed")
	var before, after resume.CatalogSum
	for name, resource := range exampleServices() {
		before.Add(name, resource)
		after.Add(name, changed[name])
	}
	got := after.Digests().DifferingBuckets(before.Digests().FoldTo(4)).Header()
	if want := acceptByHand(4, bucketByHand("web", 4)); got != want {
		t.Errorf("the answer is %q, by hand %q", got, want)
	}
	if selected := selectedByHand(t, got, 4); !slices.Equal(selected, []int{bucketByHand("web", 4)}) {
		t.Errorf("the buckets %v are selected", selected)
	}
}

// TestDocumentedHeaders compares the headers that docs/protocol.md lists with those of
// package wire.
func TestDocumentedHeaders(t *testing.T) {
	_, table, _ := strings.Cut(documentAt(t, "docs/protocol.md").prose, "\n## Headers\n")
	table, _, _ = strings.Cut(table, "\n## ")
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|").FindAllStringSubmatch(table, -1) {
		documented = append(documented, row[1])
	}
	declared := []string{wire.CatalogEndHeader, wire.LostTrailer, wire.PathHeader, wire.ResumeHeader, wire.WindowHeader}
	slices.Sort(documented)
	if diff := cmp.Diff(declared, documented); diff != "" {
		t.Errorf("headers (-declared +documented):\n%s", diff)
	}
}
