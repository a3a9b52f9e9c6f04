package wire

import (
	"net/netip"
	"slices"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// everywhere opens every range of addresses.
var everywhere = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}

// Check tells why no consumer takes the service; nil where one can. The error is
// always a [*federation.InvalidError], for the first rule that the service
// breaks. The rules are those of [DecodeService] for the message that
// [EncodeService] makes of it, with a policy that opens every address: which of
// them an owner may publish is for each of its consumers to say.
func Check(s *federation.Service) error {
	if s == nil {
		return broken("service", federation.ReasonMissing, "required")
	}
	if invalid := checkPairs(s); invalid != nil {
		invalid.Service = cut(s.Name, MaxNameBytes)
		return invalid
	}
	m := EncodeService(s)
	// A decoder may write to the lists of its message, and s shares these.
	m.Tags, m.Sans = slices.Clone(m.GetTags()), slices.Clone(m.GetSans())
	for _, e := range m.GetEndpoints() {
		e.Labels = slices.Clone(e.GetLabels())
	}
	for _, in := range m.GetInstances() {
		in.EndpointSelector = slices.Clone(in.GetEndpointSelector())
	}
	_, err := DecodeService(m, Policy{AllowAddresses: everywhere})
	return err
}

// checkPairs refuses a key that is there twice. The message has a map in place
// of the list, and would silently keep one of the two.
func checkPairs(s *federation.Service) *federation.InvalidError {
	if invalid := uniqueKeys("labels", s.Labels); invalid != nil {
		return invalid
	}
	for i := range s.Instances {
		if invalid := uniqueKeys("metadata", s.Instances[i].Metadata); invalid != nil {
			return within(invalid, "instances[%d]", i)
		}
	}
	return nil
}

func uniqueKeys(field string, pairs []federation.Pair) *federation.InvalidError {
	if len(pairs) < 2 {
		return nil
	}
	keys := make(map[string]struct{}, len(pairs))
	for _, pair := range pairs {
		if _, twice := keys[pair.Key]; twice {
			return broken(field, federation.ReasonUndecodable, "key %s is there twice", federation.Quote(pair.Key))
		}
		keys[pair.Key] = struct{}{}
	}
	return nil
}
