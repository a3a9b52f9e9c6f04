package wire

// The limits of one service. Beyond them it is refused as a whole.
const (
	MaxEndpoints = 1000
	MaxInstances = 1000
	MaxTags      = 64
	MaxLabels    = 64 // of a service, and of each endpoint
	MaxSANs      = 64
	MaxSelectors = 64 // entries of an instance's endpoint_selector
	MaxMetadata  = 64 // entries of an instance's metadata
	MaxProtocols = 64 // of a service of v1alpha1; equal ones are one
)

// The limits of strings, in bytes. The lengths of DNS names are those of
// [federation.ParseFQDN].
const (
	MaxNameBytes        = 512 // of a service, and of the ID of an instance
	MaxDescriptionBytes = 4096
	MaxTagBytes         = 512       // of a tag, and of an endpoint's label
	MaxSANBytes         = 2048      // SPIFFE-ID section 2.3
	MaxKeyBytes         = 512       // of a label, and of metadata
	MaxValueBytes       = 16 * 1024 // of a label, and of metadata: known owners send a PEM certificate there
)

// The limits of requests, in bytes.
const (
	MaxContextBytes = 512
	MaxRefusalBytes = 2048 // of the message of a NACK; a longer one is cut
)
