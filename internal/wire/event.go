package wire

import (
	"github.com/hamlet-federation/coredns-federation/federation"
)

// Operation is what an owner says in one message. The zero value is none.
type Operation uint8

// The operations.
const (
	// Alive is a response without a resource. It says only that the owner is
	// there: it may be a heartbeat, or come from an owner that has not loaded its
	// services yet.
	Alive Operation = iota + 1
	// Upsert carries a whole service, new or changed.
	Upsert
	// Delete names a service that the owner no longer offers.
	Delete
	// End marks the end of the full catalog. Only an owner that announced it
	// sends one.
	End
)

// String returns the operation in lower case, as metrics and logs show it, or "" for none.
func (o Operation) String() string {
	return [...]string{Alive: "alive", Upsert: "upsert", Delete: "delete", End: "end"}[o]
}

// Event is one message of an owner. The zero value says nothing.
type Event struct {
	Operation Operation
	Name      string // of the service, for Upsert and Delete; equal to ID for a Delete that has only an ID

	// ID is the resource_id of an Upsert where it differs from the name of the
	// service, and of a Delete that names no service. Otherwise it is empty.
	ID string

	Service *federation.Service // for Upsert
}
