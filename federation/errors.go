package federation

import "fmt"

// Reason is the kind of rule that a refused message broke. It is the value of
// a metric label, so the set is small and fixed.
type Reason string

// The reasons for which a message is refused.
const (
	ReasonUndecodable  Reason = "undecodable"   // not the resource it says it is, or an unknown operation
	ReasonMissing      Reason = "missing"       // a required field is not there
	ReasonName         Reason = "name"          // fqdn is no usable DNS name, or two instances have one ID
	ReasonAddress      Reason = "address"       // malformed endpoint address, or one in a refused range
	ReasonPort         Reason = "port"          // port out of range
	ReasonProtocol     Reason = "protocol"      // unknown protocol
	ReasonLimit        Reason = "limit"         // over a limit of wire/limits.go, or the owner's max_services or max_catalog
	ReasonOutOfZone    Reason = "out_of_zone"   // fqdn outside the zones given to this owner
	ReasonReservedName Reason = "reserved_name" // fqdn that the zone itself uses
)

// InvalidError says why a message was refused. Its text is what the owner gets
// in the NACK, and what is logged here; both quote and bound what the peer sent.
type InvalidError struct {
	Service string // name of the service, as far as it is known
	Field   string // path of the field, such as endpoints[2].address
	Reason  Reason
	Rule    string // the rule that was broken, with the value
}

// Error returns the service, the field and the rule.
func (e *InvalidError) Error() string {
	switch {
	case e.Service == "" && e.Field == "":
		return e.Rule
	case e.Field == "":
		return fmt.Sprintf("service %s: %s", Quote(e.Service), e.Rule)
	case e.Service == "":
		return fmt.Sprintf("%s: %s", e.Field, e.Rule)
	}
	return fmt.Sprintf("service %s: %s: %s", Quote(e.Service), e.Field, e.Rule)
}

// maxQuoted bounds what Quote shows of a peer's string, in bytes.
const maxQuoted = 128

// Quote returns s in double quotes with everything but printable ASCII escaped, cut
// to a length that is safe in a log line and a status message. Nothing that a peer
// sent is shown in any other way.
func Quote(s string) string {
	if len(s) > maxQuoted {
		return fmt.Sprintf("%+q... (%d bytes)", s[:maxQuoted], len(s))
	}
	return fmt.Sprintf("%+q", s)
}
