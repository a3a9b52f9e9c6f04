package wire

import (
	"testing"

	grpcmetadata "google.golang.org/grpc/metadata"
)

func TestParseWindow(t *testing.T) {
	for value, want := range map[string]int{
		"1": 1, "256": 256, "1024": 1024, "1025": MaxWindow, "18446744073709551615": MaxWindow, "18446744073709551616": MaxWindow,
		"": 1, "0": 1, "-1": 1, "many": 1, "7 8": 1, "1e3": 1,
	} {
		if got := ParseWindow(grpcmetadata.Pairs(WindowHeader, value)); got != want {
			t.Errorf("%q: %d, expected %d", value, got, want)
		}
	}
	if got := ParseWindow(nil); got != 1 {
		t.Errorf("without the header: %d, expected 1", got)
	}
}
