package federation

// The limits of one service. A service beyond any of them is refused as a whole.
const (
	MaxEndpoints = 1000
	MaxInstances = 1000
	MaxTags      = 64
	MaxLabels    = 64 // of a service, and of each endpoint
	MaxSANs      = 64
	MaxSelectors = 64 // entries of an instance's endpoint_selector
	MaxMetadata  = 64 // entries of an instance's metadata
)

// The limits of strings, in bytes. The lengths of DNS names are those of
// [ParseFQDN].
const (
	MaxNameBytes        = 512 // of a service, and of the ID of an instance
	MaxDescriptionBytes = 4096
	MaxTagBytes         = 512       // of a tag, of an endpoint's label and of a selector's entry
	MaxSANBytes         = 2048      // SPIFFE-ID section 2.3
	MaxKeyBytes         = 512       // of a label, and of metadata
	MaxValueBytes       = 16 * 1024 // of a label, and of metadata: known owners put a PEM certificate there
)
