package federation

import (
	"cmp"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// Validate returns an error unless s is a service that this package describes:
// every required field is set, every string is valid UTF-8, and nothing is over
// the limits that the fields name. The error is always an [*InvalidError], for the first
// rule that s breaks, in the order in which the fields are declared here. Its
// Field is the path of the field in the protocol, such as endpoints[2].address.
//
// Whatever makes a Service calls it once: package consumer for what an owner sent,
// and package owner for what a program publishes. Nothing downstream checks a service
// again. A nil service is not valid.
//
// What depends on the configuration of a consumer is not checked here: the zones
// that an owner may publish in, and the addresses that it may publish.
func (s *Service) Validate() error {
	if s == nil {
		return Invalidf("service", ReasonMissing, "required")
	}
	if invalid := s.checkFields(); invalid != nil {
		invalid.Service = s.Name
		if len(s.Name) > limits.NameBytes {
			invalid.Service = strings.Clone(s.Name[:limits.NameBytes]) // without holding on to the rest
		}
		return invalid
	}
	return nil
}

// The internal functions return the concrete error, since the one that knows the
// enclosing field adds its path.
func (s *Service) checkFields() *InvalidError {
	if invalid := cmp.Or(
		limitError("name", limits.CheckRequired(s.Name, limits.NameBytes)),
		checkText("description", s.Description, limits.DescriptionBytes),
		checkTexts("tags", s.Tags, limits.Tags, limits.TagBytes),
		checkTexts("sans", s.SANs, limits.SANs, limits.SANBytes),
		checkFQDN(s.FQDN),
		checkPairs("labels", s.Labels, limits.Labels),
		checkCount("endpoints", len(s.Endpoints), limits.Endpoints),
	); invalid != nil {
		return invalid
	}
	for i := range s.Endpoints {
		if invalid := s.Endpoints[i].checkFields(); invalid != nil {
			return invalid.In("endpoints[%d]", i)
		}
	}
	// The IDs come before the rules for each instance: whoever tries the instances
	// one by one to find every mistake then learns of this one as well.
	if invalid := cmp.Or(
		checkCount("instances", len(s.Instances), limits.Instances),
		checkIDs(s.Instances),
	); invalid != nil {
		return invalid
	}
	for i := range s.Instances {
		if invalid := s.Instances[i].checkFields(); invalid != nil {
			return invalid.In("instances[%d]", i)
		}
	}
	return nil
}

func (e Endpoint) checkFields() *InvalidError {
	switch {
	case e.Address == Address{}:
		return Invalidf("address", ReasonMissing, "required")
	case e.Port == 0:
		return Invalidf("port", ReasonPort, "0 is not in 1 to 65535")
	}
	return cmp.Or(
		checkTexts("labels", e.Labels, limits.Labels, limits.TagBytes),
		checkText("description", e.Description, limits.DescriptionBytes),
	)
}

func (i Instance) checkFields() *InvalidError {
	return cmp.Or(
		i.checkID(),
		checkTexts("endpoint_selector", i.EndpointSelector, limits.Selectors, limits.TagBytes),
		checkText("description", i.Description, limits.DescriptionBytes),
		checkProtocol(i.Protocol),
		checkPairs("metadata", i.Metadata, limits.Metadata),
	)
}

func (i Instance) checkID() *InvalidError {
	switch {
	case !i.Unnamed:
		return limitError("id", limits.CheckRequired(i.ID, limits.NameBytes))
	case i.ID != "":
		return Invalidf("id", ReasonName, "an unnamed instance has none, and this one has %s", safetext.Quote(i.ID))
	}
	return nil
}

// checkIDs refuses two instances with one ID: the ID is how an update, a client
// and a DNS name refer to an instance. IDs that differ only in case are two.
func checkIDs(instances []Instance) *InvalidError {
	if len(instances) < 2 {
		return nil
	}
	first := make(map[string]int, len(instances))
	for i := range instances {
		id := instances[i].ID
		if id == "" {
			continue // unnamed, or another mistake
		}
		if j, ok := first[id]; ok {
			return Invalidf(fmt.Sprintf("instances[%d].id", i), ReasonName, "%s is the ID of instances[%d] as well", safetext.Quote(id), j)
		}
		first[id] = i
	}
	return nil
}

// checkFQDN refuses no name, and the names that ParseOrigin accepts and ParseFQDN
// does not: they are origins of zones, not of services.
func checkFQDN(name FQDN) *InvalidError {
	if name.IsZero() {
		return Invalidf("fqdn", ReasonMissing, "required")
	}
	if err := checkHostname(strings.TrimSuffix(name.String(), ".")); err != nil {
		return Invalidf("fqdn", ReasonName, "%v: %s", err, safetext.Quote(name.String()))
	}
	return nil
}

func checkProtocol(p Protocol) *InvalidError {
	switch {
	case p == 0:
		return Invalidf("protocol", ReasonMissing, "required")
	case int(p) >= len(protocolNames):
		return Invalidf("protocol", ReasonProtocol, "there is no protocol %d", p)
	}
	return nil
}

// limitError returns the error for a field that breaks a limit, or nil where none is broken.
func limitError(field string, broken *limits.RuleError) *InvalidError {
	if broken == nil {
		return nil
	}
	return &InvalidError{Field: field, Reason: Reason(broken.Reason), Rule: broken.Rule}
}

func checkText(field, s string, most int) *InvalidError {
	return limitError(field, limits.CheckText(s, most))
}

// checkCount checks the length of a list that has at least one entry.
func checkCount(field string, n, most int) *InvalidError {
	if n == 0 {
		return Invalidf(field, ReasonMissing, "at least one is required")
	}
	return limitError(field, limits.CheckCount(n, most))
}

// checkTexts checks a list of strings, its length first. No entry may be empty: it
// would say nothing, and take as much memory as one that does.
func checkTexts(field string, list []string, entries, bytes int) *InvalidError {
	if invalid := limitError(field, limits.CheckCount(len(list), entries)); invalid != nil {
		return invalid
	}
	for i, s := range list {
		if s != "" && len(s) <= bytes && utf8.ValidString(s) {
			continue // the usual case, without the path of the entry
		}
		path := fmt.Sprintf("%s[%d]", field, i)
		if s == "" {
			return Invalidf(path, ReasonMissing, "is empty; leave it out")
		}
		return checkText(path, s, bytes)
	}
	return nil
}

// checkPairs checks the entries of a map: their number, their strings, and that they
// are sorted by key without a key that is there twice.
func checkPairs(field string, list []Pair, entries int) *InvalidError {
	if invalid := limitError(field, limits.CheckCount(len(list), entries)); invalid != nil {
		return invalid
	}
	for i, pair := range list {
		if invalid := cmp.Or(
			checkText("key", pair.Key, limits.KeyBytes),
			checkText("value", pair.Value, limits.ValueBytes),
		); invalid != nil {
			return invalid.In("%s[%s]", field, safetext.Quote(pair.Key))
		}
		if i == 0 {
			continue
		}
		switch previous := list[i-1].Key; strings.Compare(previous, pair.Key) {
		case 0:
			return Invalidf(field, ReasonUndecodable, "key %s is there twice", safetext.Quote(pair.Key))
		case 1:
			return Invalidf(field, ReasonUndecodable, "keys are not sorted: %s stands before %s", safetext.Quote(previous), safetext.Quote(pair.Key))
		}
	}
	return nil
}
