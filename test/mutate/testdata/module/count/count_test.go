package count_test

import (
	"testing"

	"example.test/module/count"
)

func TestCount(t *testing.T) {
	if got := count.Count(3); got != 3 {
		t.Errorf("Count(3) = %d", got)
	}
}
