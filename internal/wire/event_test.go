package wire_test

import (
	"slices"
	"testing"

	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

func TestOperationString(t *testing.T) {
	var got []string
	for o := wire.Alive; o <= wire.End; o++ {
		got = append(got, o.String())
	}
	if want := []string{"alive", "upsert", "delete", "end"}; !slices.Equal(got, want) {
		t.Errorf("operations are written %q, expected %q", got, want)
	}
}
