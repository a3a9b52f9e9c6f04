package directives_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/cmd/coredns/directives"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// The order of this build is that of plugin.cfg, of the CoreDNS version in go.mod,
// with one more line. Whoever builds from an unmodified tree adds that line by hand,
// and must get the same server.
func TestInsertFollowsPluginCfg(t *testing.T) {
	got := must.Get(directives.Insert(dnsserver.Directives))(t)
	var want []string
	for _, directive := range pluginCfg(t) {
		want = append(want, directive)
		if directive == "kubernetes" {
			want = append(want, "federation")
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order of directives (-plugin.cfg +ours):\n%s", diff)
	}
}

// pluginCfg returns the directives of upstream's plugin.cfg, in its order.
func pluginCfg(t *testing.T) []string {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/coredns/coredns").Output()
	if err != nil {
		t.Fatalf("find CoreDNS in the module cache: %v", err)
	}
	cfg := must.Get(os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "plugin.cfg")))(t)
	var names []string
	for line := range strings.Lines(string(cfg)) {
		if name, _, ok := strings.Cut(line, ":"); ok && !strings.HasPrefix(line, "#") {
			names = append(names, name)
		}
	}
	return names
}

func TestInsertLeavesUpstreamAlone(t *testing.T) {
	upstream := []string{"hosts", "kubernetes", "file"}
	before := slices.Clone(upstream)
	got := must.Get(directives.Insert(upstream))(t)
	if diff := cmp.Diff([]string{"hosts", "kubernetes", "federation", "file"}, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, upstream); diff != "" {
		t.Errorf("the argument was written to (-before +after):\n%s", diff)
	}
}

func TestInsertFails(t *testing.T) {
	for _, tc := range []struct {
		name     string
		upstream []string
		want     string
	}{
		{"no predecessor", []string{"hosts", "file"}, `no directive "kubernetes" to put "federation" after`},
		{"empty", nil, `no directive "kubernetes" to put "federation" after`},
		{"twice", []string{"kubernetes", "federation"}, `directive "federation" is there already`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := directives.Insert(tc.upstream); err == nil || err.Error() != tc.want {
				t.Errorf("Insert = %v, want %q", err, tc.want)
			}
		})
	}
}
