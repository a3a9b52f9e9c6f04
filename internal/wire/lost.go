package wire

import (
	"strconv"
	"time"

	grpcmetadata "google.golang.org/grpc/metadata"
)

// LostTrailer is the trailer of a stream that ends because its owner has no catalog any more: for
// how many whole seconds the origin of the services has been lost already. Consumers count grace
// and retention from there, so that the bound is the same behind any number of relays.
const LostTrailer = "federation-lost"

// FormatLost returns the value of LostTrailer.
func FormatLost(already time.Duration) string {
	return strconv.FormatInt(int64(already/time.Second), 10)
}

// ParseLost returns the value of LostTrailer, or 0 where it makes no sense.
func ParseLost(trailer grpcmetadata.MD) time.Duration {
	for _, value := range trailer.Get(LostTrailer) {
		if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
			return time.Duration(seconds) * time.Second
		}
	}
	return 0
}
