package owner

// Refusal is what a consumer says of a service that it does not take.
type Refusal struct {
	Service  string // its name
	Consumer string // the identity by which it was let in, or "without identity"
	Field    string // that the consumer blames, as in the metrics
	Rule     string // the consumer's words, quoted and bounded; empty when it takes the service now
}
