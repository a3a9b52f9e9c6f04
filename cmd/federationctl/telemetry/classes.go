package telemetry

import (
	"strconv"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation/owner"
)

// Bounds of the classes of a catalog that are shown one by one, and of their names.
const (
	maxClasses   = 100
	maxClassName = 64 // in bytes
)

// otherClasses stands for the classes beyond the bounds.
const otherClasses = "other"

// class is what consumers for whom the same rules are see of a catalog.
type class struct {
	name      string // the numbers of the rules, such as 1+3; none where there is no rule for them
	consumers int
	services  int // that each of them is told; for the other classes, added up
}

// classes returns the classes of a catalog in the order of their rules, the other
// classes last. There are none while it has no exports.
func classes(of owner.CatalogStats) []class {
	var shown []class
	other := class{name: otherClasses}
	more := false
	for _, c := range of.Classes {
		name := className(c.Rules)
		if len(shown) == maxClasses || len(name) > maxClassName {
			other.consumers, other.services, more = other.consumers+c.Consumers, other.services+c.Services, true
			continue
		}
		shown = append(shown, class{name, c.Consumers, c.Services})
	}
	if more {
		shown = append(shown, other)
	}
	return shown
}

func className(rules []int) string {
	if len(rules) == 0 {
		return "none"
	}
	numbers := make([]string, len(rules))
	for i, rule := range rules {
		numbers[i] = strconv.Itoa(rule)
	}
	return strings.Join(numbers, "+")
}
