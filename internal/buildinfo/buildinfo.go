// Package buildinfo says which build of the project a process is.
package buildinfo

import (
	"runtime/debug"
	"strings"
)

// module is the path of the module that this package is in.
const module = "github.com/hamlet-federation/coredns-federation"

// Version returns the version of this module in the binary, and, where it was built from
// a git tree, the commit and whether the tree had changes that are in no commit:
// "v1.2.0, commit c33c1088fc01, modified". A build that was not told has the version
// "(devel)", and one without modules "unknown".
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return versionOf(info)
}

// versionOf returns what Version does. Only the main module has a commit: in a binary of
// another module, this one is a dependency.
func versionOf(info *debug.BuildInfo) string {
	if info.Main.Path != module {
		for _, dependency := range info.Deps {
			if dependency.Path != module {
				continue
			}
			if dependency.Replace != nil && dependency.Replace.Version != "" {
				return dependency.Replace.Version
			}
			return dependency.Version
		}
		return "unknown"
	}
	text := []string{info.Main.Version}
	for _, setting := range info.Settings {
		switch {
		case setting.Key == "vcs.revision" && setting.Value != "":
			text = append(text, "commit "+setting.Value[:min(12, len(setting.Value))])
		case setting.Key == "vcs.modified" && setting.Value == "true":
			text = append(text, "modified")
		}
	}
	return strings.Join(text, ", ")
}
