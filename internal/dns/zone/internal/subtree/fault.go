package subtree

import "github.com/hamlet-federation/coredns-federation/federation"

// Fault is a kind of name or record that a catalog asks for and that cannot be
// published, or not by this owner. It is the value of a metric label.
type Fault = string

// The faults of one service. Package precedence has those between services.
const (
	FaultOutOfZone    = Fault(federation.ReasonOutOfZone)
	FaultReservedName = Fault(federation.ReasonReservedName)
	FaultInstanceID   = "instance_id"       // the ID is no DNS name, so the instance has no name of its own
	FaultInstanceName = "instance_conflict" // an instance, or a service, wants a name that another one has
	FaultNameTooLong  = "name_too_long"     // a derived name is longer than DNS allows
	FaultTXT          = "txt_dropped"       // a string does not fit or is no DNS-SD pair
	FaultSize         = "rrset_too_large"   // an RRset does not fit a message
)

// Faults counts faults by kind, and has no zeros.
type Faults map[Fault]int

// Add adds n, which may be negative, to one kind.
func (f *Faults) Add(kind Fault, n int) {
	if *f == nil {
		*f = make(Faults)
	}
	if (*f)[kind] += n; (*f)[kind] == 0 {
		delete(*f, kind)
	}
}
