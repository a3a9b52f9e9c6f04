package federation

// Operation is what an owner says in one message.
type Operation uint8

const (
	// Alive says no more than that the owner is there: a response without a
	// resource. It may be a heartbeat, or an owner that has not loaded its
	// services yet.
	Alive Operation = iota
	// Upsert carries a whole service, new or changed.
	Upsert
	// Delete names a service that the owner offers no longer.
	Delete
	// End marks the end of the full catalog. Only an owner that announced it
	// sends one.
	End
)

// String returns the operation in lower case, as metrics and logs show it.
func (o Operation) String() string {
	return [...]string{Alive: "alive", Upsert: "upsert", Delete: "delete", End: "end"}[o]
}

// Event is one message of an owner in the terms of this package.
type Event struct {
	Operation Operation
	Name      string // of the service, for Upsert and Delete; the ID where a Delete has nothing else

	// ID is the resource_id of an Upsert that has another one than the name of
	// its service, and of a Delete that names no service but by it. Otherwise it
	// is empty.
	ID string

	Service *Service // for Upsert
}
