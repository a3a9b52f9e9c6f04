package buildinfo

import (
	"runtime/debug"
	"testing"
)

func TestOf(t *testing.T) {
	const revision = "c33c1088fc0143442a84cd2cdc5487074ce871b9"
	for _, tc := range []struct {
		name, want string
		info       debug.BuildInfo
	}{
		{"a release", "v1.2.0, commit c33c1088fc01", debug.BuildInfo{
			Main:     debug.Module{Path: module, Version: "v1.2.0"},
			Settings: []debug.BuildSetting{{Key: "-compiler", Value: "gc"}, {Key: "vcs.revision", Value: revision}, {Key: "vcs.modified", Value: "false"}},
		}},
		{"with changes", "v1.2.0+dirty, commit c33c1088fc01, modified", debug.BuildInfo{
			Main:     debug.Module{Path: module, Version: "v1.2.0+dirty"},
			Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: revision}, {Key: "vcs.modified", Value: "true"}},
		}},
		{"a short revision", "v1.2.0, commit 42", debug.BuildInfo{
			Main:     debug.Module{Path: module, Version: "v1.2.0"},
			Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "42"}},
		}},
		{"git was not asked", "(devel)", debug.BuildInfo{Main: debug.Module{Path: module, Version: "(devel)"}}},
		{"in another binary, whose commit it is not", "v1.1.0", debug.BuildInfo{
			Main:     debug.Module{Path: "github.com/coredns/coredns", Version: "v1.15.0"},
			Deps:     []*debug.Module{{Path: "example.org/other", Version: "v3.0.0"}, {Path: module, Version: "v1.1.0"}},
			Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: revision}},
		}},
		{"replaced by a version", "v1.1.1", debug.BuildInfo{
			Deps: []*debug.Module{{Path: module, Version: "v1.1.0", Replace: &debug.Module{Path: "example.org/fork", Version: "v1.1.1"}}},
		}},
		{"replaced by a folder", "v1.1.0", debug.BuildInfo{
			Deps: []*debug.Module{{Path: module, Version: "v1.1.0", Replace: &debug.Module{Path: "../plugin"}}},
		}},
		{"in no module", "unknown", debug.BuildInfo{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := versionOf(&tc.info); got != tc.want {
				t.Errorf("version is %q, want %q", got, tc.want)
			}
		})
	}
}
