package federation

import (
	"errors"
	"net/url"
	"strings"
	"testing"
)

func TestParseID(t *testing.T) {
	for _, tc := range []struct {
		in, want string
		err      error  // that the error wraps
		text     string // in an error of package spiffeid, which exports none
	}{
		{in: "owner.example.org", want: "owner.example.org"},
		{in: "Owner.Example.ORG.", want: "owner.example.org"},
		{in: "bücher.example", want: "xn--bcher-kva.example"},
		{in: "spiffe://example.org/owner", want: "spiffe://example.org/owner"},
		{in: "spiffe://example.org/ns/a/sa/B_c.d-e", want: "spiffe://example.org/ns/a/sa/B_c.d-e"},
		{in: "spiffe://a_b.c-1/x", want: "spiffe://a_b.c-1/x"},
		{in: "spiffe://" + strings.Repeat("d", maxTrustDomain) + "/x", want: "spiffe://" + strings.Repeat("d", maxTrustDomain) + "/x"},
		{in: spiffeOfLength(maxSPIFFE), want: spiffeOfLength(maxSPIFFE)},

		{in: "", err: errNameEmpty},
		{in: "*.example.org", err: errLabelCharacter},
		{in: "192.0.2.1", err: errNameNumeric},
		{in: "2001:db8::1", err: errLabelCharacter},
		{in: "owner.example.org:8008", err: errLabelCharacter},
		{in: "owner example", err: errLabelCharacter},
		{in: "https://owner.example.org/", err: errScheme},
		{in: "SPIFFE://example.org/owner", err: errScheme},
		{in: "spiffe://", text: "trust domain is missing"},
		{in: "spiffe:///owner", text: "trust domain is missing"},
		{in: "spiffe://Example.org/owner", text: "trust domain characters"},
		{in: "spiffe://user@example.org/owner", text: "trust domain characters"},
		{in: "spiffe://example.org:8008/owner", text: "trust domain characters"},
		{in: "spiffe://exämple.org/owner", text: "trust domain characters"},
		{in: "spiffe://" + strings.Repeat("d", maxTrustDomain+1) + "/x", err: errTrustDomain},
		{in: "spiffe://example.org", err: errNoPath},
		{in: "spiffe://example.org/", text: "trailing slash"},
		{in: "spiffe://example.org/owner/", text: "trailing slash"},
		{in: "spiffe://example.org//owner", text: "empty segments"},
		{in: "spiffe://example.org/./owner", text: "dot segments"},
		{in: "spiffe://example.org/../owner", text: "dot segments"},
		{in: "spiffe://example.org/owner?a=b", text: "path segment characters"},
		{in: "spiffe://example.org/owner#a", text: "path segment characters"},
		{in: "spiffe://example.org/own%65r", text: "path segment characters"},
		{in: "spiffe://example.org/owner\n", text: "path segment characters"},
		{in: spiffeOfLength(maxSPIFFE + 1), err: errTooLong},
	} {
		id, err := ParseID(tc.in)
		if tc.text != "" {
			if id != (ID{}) || err == nil || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("ParseID(%q) = %q, %v; want an error with %q", tc.in, id, err, tc.text)
			}
			continue
		}
		if id.String() != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("ParseID(%q) = %q, %v; want %q, %v", tc.in, id, err, tc.want, tc.err)
		}
	}
}

func spiffeOfLength(n int) string {
	const start = "spiffe://example.org/"
	return start + strings.Repeat("x", n-len(start))
}

func FuzzParseID(f *testing.F) {
	for _, s := range []string{"owner.example", "spiffe://example.org/owner", "spiffe://a@b:1/c?d#e", "://", "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseID(s)
		if (err == nil) == (id == ID{}) {
			t.Fatalf("ParseID(%q) = %q, %v: want either an identity or an error", s, id, err)
		}
		if err != nil {
			return
		}
		if again, err := ParseID(id.String()); again != id || err != nil {
			t.Fatalf("ParseID(%q) = %q, %v: an identity must spell itself", id, again, err)
		}
		if strings.HasPrefix(id.String(), "spiffe://") {
			u, err := url.Parse(id.String())
			if err != nil || u.User != nil || u.Port() != "" || u.RawQuery != "" || u.Fragment != "" {
				t.Fatalf("ParseID(%q) = %q: %v", s, id, err)
			}
		}
	})
}
