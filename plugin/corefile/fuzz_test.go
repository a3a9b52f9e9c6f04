package corefile

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coredns/caddy/caddyfile"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/status/page"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// FuzzParse checks that Parse returns whatever the tokens are, that what it accepts
// is in every documented range, and that this means the same when it is written out
// as a Corefile.
func FuzzParse(f *testing.F) {
	f.Fuzz(func(t *testing.T, input string) {
		blocks, err := parse(input, around)
		if err != nil {
			if blocks != nil {
				t.Errorf("blocks beside the error %v", err)
			}
			return
		}
		for i, b := range blocks {
			checkRanges(t, b)
			for _, other := range blocks[:i] {
				if err := b.conflictWith(&other); err != nil {
					t.Errorf("accepted, although %v", err)
				}
			}
		}
		var written []caddyfile.Token
		for _, b := range blocks {
			written = appendBlock(written, b)
		}
		again, _, err := Parse(caddyfile.NewDispenserTokens("Testfile", written), around)
		if err != nil {
			t.Fatalf("what Parse accepted, written out: %v\n%v", err, written)
		}
		if diff := cmp.Diff(blocks, again, compareValues, cmpopts.IgnoreFields(Block{}, "Position")); diff != "" {
			t.Errorf("what Parse accepted, written out (-first +second):\n%s", diff)
		}
	})
}

func checkRanges(t *testing.T, b Block) {
	t.Helper()
	var froms []any
	for _, rename := range b.Zone.Renames {
		froms = append(froms, rename.From)
	}
	for property, values := range map[string][]any{
		"zones":           anys(b.Zone.Origins),
		"owner":           anys(b.Owner.Subscription.Addresses),
		"owner_id":        anys(b.Owner.Consumer.IDs),
		"rename":          froms,
		"allow_addresses": anys(b.Owner.Policy.AllowAddresses),
		"spiffe":          anys(b.Owner.Identity.SPIFFE.TrustDomains),
		"import_names":    anys(b.Zone.Import),
		"share":           anys(b.Zone.Sharing.Names),
	} {
		for i, value := range values {
			if slices.Contains(values[:i], value) {
				t.Errorf("%s has %v twice", property, value)
			}
		}
	}
	files, spiffe := b.Owner.Identity.Files, b.Owner.Identity.SPIFFE.Socket != ""
	sharing := &b.Zone.Sharing
	for rule, ok := range map[string]bool{
		"zones":           len(b.Zone.Origins) > 0,
		"owner":           len(b.Owner.Subscription.Addresses) > 0,
		"tls":             spiffe || files.Cert != "" && files.Key != "" && files.CA != "",
		"owner_id":        !spiffe || slices.ContainsFunc(b.Owner.Consumer.IDs, federation.ID.IsSPIFFE),
		"spiffe":          !spiffe || files == mtls.Files{},
		"api":             b.Owner.Subscription.Version == wire.V1Alpha1 || b.Owner.Subscription.Version == wire.V1Alpha2,
		"ttl":             1 <= b.Zone.TTL && b.Zone.TTL <= 3600,
		"negative_ttl":    1 <= b.Zone.NegativeTTL && b.Zone.NegativeTTL <= 3600,
		"retention":       b.Owner.Rules.Retention == catalog.Forever || b.Owner.Rules.Retention >= time.Second,
		"settle":          100*time.Millisecond <= b.Owner.Rules.Settle && b.Owner.Rules.Settle <= 10*time.Minute,
		"max_catalog":     1<<20 <= b.Owner.Rules.MaxCatalog && b.Owner.Rules.MaxCatalog <= 1<<40,
		"tier":            !slices.ContainsFunc(sharing.Tiers, func(t zone.TierRule) bool { return t.N < 0 || t.N > 9 }),
		"min":             sharing.Min >= 1,
		"status":          b.Status == page.Config{} || b.Status.Validate() == nil,
		"allow_addresses": !slices.ContainsFunc(b.Owner.Policy.AllowAddresses, func(p netip.Prefix) bool { return p != p.Masked() }),
	} {
		if !ok {
			t.Errorf("%s is out of range: %+v", rule, b)
		}
	}
	for i, rename := range b.Zone.Renames {
		if slices.ContainsFunc(b.Zone.Renames[:i], func(r zone.Rename) bool { return rename.From.Within(r.From) }) {
			t.Errorf("rename of %s stands behind a less specific one", rename.From)
		}
	}
}

// appendBlock appends the tokens of b, written out. Text would not do: not every
// string can be quoted in a Corefile.
func appendBlock(tokens []caddyfile.Token, b Block) []caddyfile.Token {
	number := 1
	if len(tokens) > 0 {
		number = tokens[len(tokens)-1].Line + 1
	}
	line := func(words ...any) {
		for _, word := range words {
			text := fmt.Sprint(word)
			tokens = append(tokens, caddyfile.Token{Line: number, Text: text})
			number += strings.Count(text, "\n")
		}
		number++
	}
	line(append(append([]any{"federation"}, anys(b.Zone.Origins)...), "{")...)
	line(append([]any{"owner"}, anys(b.Owner.Subscription.Addresses)...)...)
	if files, spiffe := b.Owner.Identity.Files, b.Owner.Identity.SPIFFE; spiffe.Socket != "" {
		line(append([]any{"spiffe", spiffe.Socket}, anys(spiffe.TrustDomains)...)...)
	} else {
		line("tls", files.Cert, files.Key, files.CA)
	}
	if b.Owner.Consumer.ServerName != "" {
		line("tls_servername", b.Owner.Consumer.ServerName)
	}
	if len(b.Owner.Consumer.IDs) > 0 {
		line(append([]any{"owner_id"}, anys(b.Owner.Consumer.IDs)...)...)
	}
	line("api", b.Owner.Subscription.Version.String())
	line("ttl", b.Zone.TTL)
	line("negative_ttl", b.Zone.NegativeTTL)
	if r := b.Owner.Rules.Retention; r == catalog.Forever {
		line("retention", "forever")
	} else {
		line("retention", r)
	}
	line("settle", b.Owner.Rules.Settle)
	if b.Owner.Subscription.File != "" {
		line("persist", b.Owner.Subscription.File)
	}
	for _, rename := range b.Zone.Renames {
		line("rename", rename.From, rename.To)
	}
	line("max_catalog", b.Owner.Rules.MaxCatalog)
	for _, prefix := range b.Owner.Policy.AllowAddresses {
		line("allow_addresses", prefix)
	}
	for _, name := range b.Zone.Import {
		line("import_names", name)
	}
	if s := b.Zone.Sharing; len(s.Names) > 0 {
		line(append([]any{"share"}, anys(s.Names)...)...)
		for _, t := range s.Tiers {
			if t.Label == "" {
				line("tier", t.N)
			} else {
				line("tier", t.N, t.Label)
			}
		}
		line("min", s.Min)
	}
	if len(b.Fall.Zones) > 0 {
		line(append([]any{"fallthrough"}, anys(b.Fall.Zones)...)...)
	}
	if files := b.Status.Files; files != (mtls.Files{}) {
		line("status", b.Status.Address, files.Cert, files.Key, files.CA)
	} else if b.Status.Address != "" {
		line("status", b.Status.Address)
	}
	line("}")
	return tokens
}

func anys[T any](values []T) []any {
	list := make([]any, len(values))
	for i, value := range values {
		list[i] = value
	}
	return list
}
