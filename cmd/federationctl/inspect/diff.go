package inspect

import (
	"fmt"
	"io"
	"strings"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/policy"
)

// Diff writes what differs between two catalogs, a service a line in the order of their
// names: - is one that only before has, + one that only after has, and ~ one that is
// another, with its fields. It reports whether there is any.
func Diff(w io.Writer, before, after *Catalog) (differ bool, err error) {
	show := func(format string, args ...any) {
		differ = true
		if err == nil {
			_, err = fmt.Fprintf(w, format, args...)
		}
	}
	a, b := before.services, after.services
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].Name() < b[0].Name():
			show("- %s (%s)\n", plain(a[0].Name()), short(a[0].FQDN()))
			a = a[1:]
		case len(a) == 0 || b[0].Name() < a[0].Name():
			show("+ %s (%s)\n", plain(b[0].Name()), short(b[0].FQDN()))
			b = b[1:]
		default:
			if !a[0].Equal(b[0]) {
				var fields []string
				for _, field := range policy.Compare(a[0].Service(), b[0].Service()) {
					fields = append(fields, field.String())
				}
				show("~ %s (%s): %s\n", plain(b[0].Name()), short(b[0].FQDN()), strings.Join(fields, ", "))
			}
			a, b = a[1:], b[1:]
		}
	}
	return differ, err
}

// short returns a name without its final dot.
func short(name string) string { return plain(strings.TrimSuffix(name, ".")) }
