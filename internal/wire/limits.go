package wire

// The limits of a service are those of package limits. These are the limits
// of what only messages have.
const (
	MaxProtocols    = 64   // of a service of v1alpha1, equal ones included
	MaxContextBytes = 512  // of the context of a request
	MaxRefusalBytes = 2048 // of the message of a NACK; a longer one is cut

	// MaxMessageBytes is the size of a response with a new or changed service. A deletion may be
	// larger, because public implementations repeat in it the service that they withdraw.
	MaxMessageBytes = 16 << 20
)
