package broken_test

import (
	"testing"

	"example.test/module/broken"
)

func TestOne(t *testing.T) {
	if broken.One() != 2 {
		t.Error("One is not 2")
	}
}
