package federation

import (
	"fmt"

	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// Reason is the kind of rule that a refused message broke. It is the value of a
// metric label, so that the set is small and fixed. The zero value is no reason.
type Reason string

// The reasons for which a message is refused.
const (
	ReasonUndecodable  Reason = "undecodable"   // not the resource it claims to be, or an unknown operation
	ReasonMissing      Reason = "missing"       // a required field is not set
	ReasonName         Reason = "name"          // fqdn is not a usable DNS name, or two instances have one ID
	ReasonAddress      Reason = "address"       // malformed endpoint address, or one in a refused range
	ReasonPort         Reason = "port"          // port out of range
	ReasonProtocol     Reason = "protocol"      // unknown protocol
	ReasonLimit        Reason = "limit"         // more entries or bytes than a service or a message may have, or than are taken of one owner
	ReasonOutOfZone    Reason = "out_of_zone"   // fqdn outside the zones given to this owner
	ReasonReservedName Reason = "reserved_name" // fqdn that the zone itself uses
)

// InvalidError is the rule that a message or a service breaks. Its text is what
// an owner gets in the NACK, and what is logged here; it quotes and bounds every
// string of the peer.
type InvalidError struct {
	Service string // name of the service, as far as it is known
	FQDN    string // of the service, as the owner says it, as far as it is known: absolute and in lower case if it is valid
	Field   string // path of the field, such as endpoints[2].address
	Reason  Reason
	Rule    string // the rule that was broken, with the value
}

// Invalidf returns the error for a field that breaks a rule, without the name of the service. A
// program that refuses services by a rule of its own uses it. The caller quotes strings of a peer
// in the rule, for example by %+q.
func Invalidf(field string, reason Reason, format string, args ...any) *InvalidError {
	return &InvalidError{Field: field, Reason: reason, Rule: fmt.Sprintf(format, args...)}
}

// In puts the path of the enclosing field before the field of e, and returns e.
func (e *InvalidError) In(format string, args ...any) *InvalidError {
	e.Field = fmt.Sprintf(format, args...) + "." + e.Field
	return e
}

// Error returns the service, the field and the rule.
func (e *InvalidError) Error() string {
	text := e.Rule
	if e.Field != "" {
		text = e.Field + ": " + text
	}
	if e.Service != "" {
		text = "service " + safetext.Quote(e.Service) + ": " + text
	}
	return text
}
