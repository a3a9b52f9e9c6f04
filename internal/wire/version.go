package wire

import "fmt"

// APIVersion is a version of the API. The zero value is the default.
type APIVersion uint8

// The versions.
const (
	V1Alpha2 APIVersion = iota
	V1Alpha1            // the draft of 2019, which has no instances
)

// ParseVersion returns the version that s names, as [APIVersion.String] writes it.
func ParseVersion(s string) (APIVersion, error) {
	for _, v := range []APIVersion{V1Alpha2, V1Alpha1} {
		if s == v.String() {
			return v, nil
		}
	}
	return 0, fmt.Errorf("%q is not %s or %s", s, V1Alpha2, V1Alpha1)
}

// String returns the name of the version, as it stands in the names of packages.
func (v APIVersion) String() string {
	return [...]string{V1Alpha2: "v1alpha2", V1Alpha1: "v1alpha1"}[v]
}
