package clamp_test

import (
	"testing"

	"example.test/module/clamp"
)

func TestClamp(t *testing.T) {
	for _, tt := range []struct{ n, limit, want int }{{1, 2, 1}, {3, 2, 2}} {
		if got := clamp.Clamp(tt.n, tt.limit); got != tt.want {
			t.Errorf("Clamp(%d, %d) = %d, want %d", tt.n, tt.limit, got, tt.want)
		}
	}
}
