package owner

import (
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/internal/registry"
)

// clearRefusal records that the consumer accepts a service.
func (s *streamSession) clearRefusal(service string) {
	s.catalog.registry.NoteAnswer(registry.Refusal{Service: service, Consumer: s.consumer})
}

// clearUnseenRefusals takes back the consumer's refusals of services that the policy has hidden
// from it while it was away. The consumer has a whole catalog now.
func (s *streamSession) clearUnseenRefusals() {
	for _, service := range s.catalog.registry.RefusedServices(s.consumer) {
		if !s.subscription.SeesService(service) {
			s.clearRefusal(service)
		}
	}
}

// refusalFields are the fields that a refusal can blame: those of a service in any version of the
// API, and those of a response. All others count as "other", because a consumer may write anything,
// and a metric must have few labels.
var refusalFields = []string{
	"name", "description", "tags", "labels", "fqdn", "endpoints", "sans", "instances",
	"id", "san", "protocols",
	"resource", "resource_url", "resource_id", "operation", "context",
}

// blamedField returns the field at the beginning of a rule, where consumers of this project put it,
// or "other".
func blamedField(rule string) string {
	field := rule
	if end := strings.IndexAny(rule, ".[:"); end >= 0 {
		field = rule[:end]
	}
	if !slices.Contains(refusalFields, field) {
		return "other"
	}
	return field
}
