package wire

import (
	"testing"
	"time"

	grpcmetadata "google.golang.org/grpc/metadata"
)

func TestLostTrailer(t *testing.T) {
	for value, want := range map[string]time.Duration{
		FormatLost(7900 * time.Millisecond): 7 * time.Second, "0": 0, "": 0, "-3": 0, "5s": 0, "99999999999": 0, "2147483647": 2147483647 * time.Second,
	} {
		if got := ParseLost(grpcmetadata.Pairs(LostTrailer, value)); got != want {
			t.Errorf("ParseLost(%q) = %v, want %v", value, got, want)
		}
	}
	if got := ParseLost(nil); got != 0 {
		t.Errorf("ParseLost without a trailer = %v, want 0", got)
	}
}
