package journal

import (
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation/source/registration/store"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/store/storetest"
)

func TestStore(t *testing.T) {
	configs := make(map[*testing.T]Config)
	storetest.Test(t, func(t *testing.T) store.Store {
		if _, ok := configs[t]; !ok {
			configs[t] = configIn(t)
		}
		return New(configs[t])
	})
}
