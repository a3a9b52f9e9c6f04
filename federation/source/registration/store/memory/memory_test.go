package memory_test

import (
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation/source/registration/store"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/store/memory"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/store/storetest"
)

func TestStore(t *testing.T) {
	storetest.TestCommit(t, func(*testing.T) store.Store { return memory.New() })
}
