package whole_test

import (
	"testing"

	"example.test/module/whole"
)

func TestTwice(t *testing.T) {
	if got := whole.Twice(1); got != 3 {
		t.Errorf("Twice(1) = %d", got)
	}
}
