package federationplugin

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

	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// FuzzParse: whatever the tokens are, parse returns. What it accepts is in
// every documented range, and written out as a Corefile it means the same.
func FuzzParse(f *testing.F) {
	f.Fuzz(func(t *testing.T, input string) {
		configs, err := parse(controller(input))
		if err != nil {
			if configs != nil {
				t.Errorf("configs beside the error %v", err)
			}
			return
		}
		for i, cfg := range configs {
			checkRanges(t, cfg)
			for _, other := range configs[:i] {
				if err := cfg.clash(other); err != nil {
					t.Errorf("accepted, although %v", err)
				}
			}
		}
		var written []caddyfile.Token
		for _, cfg := range configs {
			written = appendBlock(written, cfg)
		}
		c := controller("")
		c.Dispenser = caddyfile.NewDispenserTokens("Testfile", written)
		again, err := parse(c)
		if err != nil {
			t.Fatalf("what parse accepted, written out: %v\n%v", err, written)
		}
		if diff := cmp.Diff(configs, again, compareValues, cmpopts.IgnoreFields(Config{}, "Position")); diff != "" {
			t.Errorf("what parse accepted, written out (-first +second):\n%s", diff)
		}
	})
}

func checkRanges(t *testing.T, cfg Config) {
	t.Helper()
	var froms []any
	for _, rename := range cfg.Renames {
		froms = append(froms, rename.From)
	}
	for property, values := range map[string][]any{
		"zones":           anys(cfg.Zones),
		"owner":           anys(cfg.Addresses),
		"owner_id":        anys(cfg.OwnerIDs),
		"rename":          froms,
		"allow_addresses": anys(cfg.AllowAddresses),
	} {
		for i, value := range values {
			if slices.Contains(values[:i], value) {
				t.Errorf("%s has %v twice", property, value)
			}
		}
	}
	for rule, ok := range map[string]bool{
		"zones":           len(cfg.Zones) > 0,
		"owner":           len(cfg.Addresses) > 0,
		"tls":             cfg.TLS.Cert != "" && cfg.TLS.Key != "" && cfg.TLS.CA != "",
		"api":             cfg.API == wire.V1Alpha1 || cfg.API == wire.V1Alpha2,
		"ttl":             1 <= cfg.TTL && cfg.TTL <= 3600,
		"negative_ttl":    1 <= cfg.NegativeTTL && cfg.NegativeTTL <= 3600,
		"retention":       cfg.Retention == 0 || cfg.Retention >= time.Second,
		"settle":          100*time.Millisecond <= cfg.Settle && cfg.Settle <= 10*time.Minute,
		"keepalive":       10*time.Second <= cfg.Keepalive && cfg.Keepalive <= 24*time.Hour,
		"max_services":    cfg.MaxServices >= 1,
		"max_catalog":     1<<20 <= cfg.MaxCatalog && cfg.MaxCatalog <= 1<<40,
		"max_message":     64<<10 <= cfg.MaxMessage && cfg.MaxMessage <= 1<<30,
		"allow_addresses": !slices.ContainsFunc(cfg.AllowAddresses, func(p netip.Prefix) bool { return p != p.Masked() }),
	} {
		if !ok {
			t.Errorf("%s is out of range: %+v", rule, cfg)
		}
	}
	for i, rename := range cfg.Renames {
		if slices.ContainsFunc(cfg.Renames[:i], func(r Rename) bool { return rename.From.Within(r.From) }) {
			t.Errorf("rename of %s stands behind a less specific one", rename.From)
		}
	}
}

// appendBlock appends the tokens of a block that says all that cfg does. Text
// would not do: not every string can be quoted in a Corefile.
func appendBlock(tokens []caddyfile.Token, cfg Config) []caddyfile.Token {
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
	line(append(append([]any{"federation"}, anys(cfg.Zones)...), "{")...)
	line(append([]any{"owner"}, anys(cfg.Addresses)...)...)
	line("tls", cfg.TLS.Cert, cfg.TLS.Key, cfg.TLS.CA)
	if cfg.ServerName != "" {
		line("tls_servername", cfg.ServerName)
	}
	if len(cfg.OwnerIDs) > 0 {
		line(append([]any{"owner_id"}, anys(cfg.OwnerIDs)...)...)
	}
	line("api", cfg.API.String())
	line("ttl", cfg.TTL)
	line("negative_ttl", cfg.NegativeTTL)
	line("retention", cfg.Retention)
	line("settle", cfg.Settle)
	line("keepalive", cfg.Keepalive)
	if cfg.Persist != "" {
		line("persist", cfg.Persist)
	}
	for _, rename := range cfg.Renames {
		line("rename", rename.From, rename.To)
	}
	line("max_services", cfg.MaxServices)
	line("max_catalog", cfg.MaxCatalog)
	line("max_message", cfg.MaxMessage)
	for _, prefix := range cfg.AllowAddresses {
		line("allow_addresses", prefix)
	}
	if len(cfg.Fall.Zones) > 0 {
		line(append([]any{"fallthrough"}, anys(cfg.Fall.Zones)...)...)
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
