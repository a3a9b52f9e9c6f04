package federation

// Operation is what an owner says in one message.
type Operation uint8

const (
	// Alive is a response without a resource. It says only that the owner is
	// there: it may be a heartbeat, or come from an owner that has not loaded its
	// services yet.
	Alive Operation = iota
	// Upsert carries a whole service, new or changed.
	Upsert
	// Delete names a service that the owner no longer offers.
	Delete
	// End marks the end of the full catalog. Only an owner that announced it
	// sends one.
	End
	// Unavailable says that the owner cannot tell its catalog as a whole for now. What
	// the consumer has is what a lost stream leaves, until the owner is Available.
	Unavailable
	// Available says through which owners the services come from now on. After an
	// Unavailable, what has changed and another End follow.
	Available
)

// String returns the operation in lower case, as metrics and logs show it.
func (o Operation) String() string {
	return [...]string{Alive: "alive", Upsert: "upsert", Delete: "delete", End: "end", Unavailable: "unavailable", Available: "available"}[o]
}

// Event is one message of an owner.
type Event struct {
	Operation Operation
	Name      string // of the service, for Upsert and Delete; equal to ID for a Delete that has only an ID

	// ID is the resource_id of an Upsert where it differs from the name of the
	// service, and of a Delete that names no service. Otherwise it is empty.
	ID string

	Service *Service // for Upsert

	// Header is for Available: what the header of a stream that opened now would say.
	Header Header
}

// Header is what an owner says of a stream besides its messages, as package wire has it. It
// may be malformed.
type Header struct {
	Path   string // through which owners the services come
	Resume string // which part of its catalog the owner sends, if not all
}
