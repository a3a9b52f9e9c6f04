// Package limits has how much a service may hold: how many entries, and how many bytes. A service
// beyond any of these is refused as a whole.
//
// Federation checks services by them, wire counts the entries of a message by them before it
// decodes it, and sources cut by them what they publish. The package imports no other of this
// module, so that federation may import it.
package limits

// How many entries the lists of a service may have.
const (
	Endpoints = 1000
	Instances = 1000
	Tags      = 64
	Labels    = 64 // of a service, and of each endpoint
	SANs      = 64
	Selectors = 64 // entries of an instance's endpoint_selector
	Metadata  = 64 // entries of an instance's metadata
)

// How long the strings of a service may be, in bytes. The lengths of DNS names are those of
// federation.ParseFQDN.
const (
	NameBytes        = 512 // of a service, and of the ID of an instance
	DescriptionBytes = 4096
	TagBytes         = 512       // of a tag, of an endpoint's label and of a selector's entry
	SANBytes         = 2048      // SPIFFE-ID section 2.3
	KeyBytes         = 512       // of a label, and of metadata
	ValueBytes       = 16 * 1024 // of a label, and of metadata: known owners put a PEM certificate there
)
