package status

import "fmt"

// UnknownError says that there is no owner or no catalog with that name.
type UnknownError struct {
	Of    string   // what was asked for
	Known []string // what there is
}

// Error names both.
func (e *UnknownError) Error() string {
	switch {
	case len(e.Known) > 0:
		return fmt.Sprintf("there is no owner or catalog %q; there are %q", e.Of, e.Known)
	case e.Of == "":
		return "no owner is followed here"
	}
	return fmt.Sprintf("there is no owner or catalog %q: there is none", e.Of)
}
