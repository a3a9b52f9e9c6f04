package setting_test

import (
	"slices"
	"testing"

	"github.com/hamlet-federation/coredns-federation/internal/setting"
)

// TestFind finds settings by a path or the end of one: a whole path goes first, and each is found by
// its short name.
func TestFind(t *testing.T) {
	all := []setting.Setting{
		{Paths: []string{"ttl"}},
		{Paths: []string{"rules.ttl"}},
		{Paths: []string{"a.file.path", "a.cluster.path"}},
		{Paths: []string{"a.cluster.zone"}},
		{Paths: []string{"a.mesh.zone"}},
	}
	for path, want := range map[string]int{"ttl": 1, "rules.ttl": 1, "path": 1, "cluster.path": 1, "zone": 2, "mesh.zone": 1, "one": 0, "": 0} {
		if found := setting.Find(all, path); len(found) != want {
			t.Errorf("%q finds %v, expected %d", path, found, want)
		}
	}
	for i, want := range []string{"ttl", "rules.ttl", "path", "cluster.zone", "mesh.zone"} {
		if got := all[i].ShortName(all); got != want {
			t.Errorf("the short name of %s is %s, expected %s", all[i].Paths[0], got, want)
		}
	}
}

func TestNearest(t *testing.T) {
	names := []string{"zone", "kubernetes.zone", "zones", "window"}
	for word, want := range map[string][]string{
		"zoen": {"zone", "kubernetes.zone"}, "x.ZONES": {"zones", "zone", "kubernetes.zone"}, "windwo": {"window"}, "port": nil, "": nil,
	} {
		if got := setting.Nearest(word, names); !slices.Equal(got, want) {
			t.Errorf("%q is near to %q, expected %q", word, got, want)
		}
	}
}

// TestAccepts counts arguments by what a property takes.
func TestAccepts(t *testing.T) {
	for takes, want := range map[string]string{
		"FILE": ".x..", "FROM TO": "..x.", "NAME...": ".xxx", "[ZONES...]": "xxxx", "N [LABEL]": ".xx.", "A [B C]": ".x.x", "S [D...]": ".xxx",
	} {
		for n := range len(want) {
			if got := (setting.Property{Takes: takes}).Accepts(n); got != (want[n] == 'x') {
				t.Errorf("%s with %d arguments: %t", takes, n, got)
			}
		}
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{"1": 1, "1B": 1, "64KiB": 64 << 10, "512MiB": 512 << 20, "1GiB": 1 << 30, "2TiB": 2 << 40, "1536": 1536} {
		got, err := setting.ParseSize(text)
		if err != nil || got != want {
			t.Errorf("%s is %d, %v, expected %d", text, got, err, want)
		}
		if again, err := setting.ParseSize(setting.FormatSize(got)); again != got || err != nil {
			t.Errorf("%d is formatted as %s", got, setting.FormatSize(got))
		}
	}
	for _, text := range []string{"", "0", "-1", "+1", "1K", "1M", "KiB", "1 KiB", "1mib", "1iMB", "0x10", "1.5MiB", "9999999TiB", "99999999999999999999"} {
		if got, err := setting.ParseSize(text); err == nil {
			t.Errorf("%q is a size, %d", text, got)
		}
	}
}
