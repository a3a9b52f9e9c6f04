package serve

import (
	"sync"

	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/snapshot"
)

// sharedFile is a file in which relays keep their catalogs one after the other. A relay that is
// changed in the configuration is another one, and the old one goes on until the new one
// has a catalog.
type sharedFile struct {
	relays int // that were opened for it

	mu    sync.Mutex // guards the field below, and is held while the file is written
	saved int        // the last relay that has saved its catalog
}

// sharedStore is a consumer.Store for one of the relays of a file: it saves nothing once a later
// one has saved its catalog.
type sharedStore struct {
	consumer.Store

	file  *sharedFile
	relay int // from 1, in the order in which they were opened
}

// keep returns the Store for another relay of the file.
func (k *sharedFile) keep(store consumer.Store) consumer.Store {
	k.relays++
	return sharedStore{store, k, k.relays}
}

// Save implements consumer.Store.
func (k sharedStore) Save(path string, s *snapshot.Snapshot) error {
	k.file.mu.Lock()
	defer k.file.mu.Unlock()
	if k.relay < k.file.saved {
		return nil
	}
	err := k.Store.Save(path, s)
	if err == nil {
		k.file.saved = k.relay
	}
	return err
}
