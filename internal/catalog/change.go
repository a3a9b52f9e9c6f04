package catalog

import "github.com/hamlet-federation/coredns-federation/internal/wire/packed"

// Change is what happened to one service. The changes of one name are in order, so the last one
// holds.
type Change struct {
	Name       string         // the owner's name of the service
	Packed     packed.Service // the service in little memory; zero when it is gone
	Was        packed.Service // the one before; zero when there was none
	Cause      RemovalCause   // why it is gone
	Updated    uint32         // when this version came, in seconds since 1970; 0: it was restored
	Generation uint64         // of the stream that announced it; 0 when it is gone, or was restored
}

// ChangeKind is what a change does to its service.
type ChangeKind uint8

// What a change can do to a service.
const (
	Offered   ChangeKind = iota + 1 // the service is new, or another version of it is offered
	Confirmed                       // the service is the one before: only its generation is new
	Gone                            // the service is gone
)

// Kind returns what happened to the service.
func (c *Change) Kind() ChangeKind {
	switch c.Packed {
	case packed.Service{}:
		return Gone
	case c.Was:
		return Confirmed
	}
	return Offered
}
