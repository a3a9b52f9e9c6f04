package consumer_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/snapshot"
)

// saves is a consumer.Store that notes whose catalogs are saved, and can fail.
type saves struct {
	consumer.Store

	owners []string
	err    error
}

func (s *saves) Save(_ string, of *snapshot.Snapshot) error {
	if s.err == nil {
		s.owners = append(s.owners, of.Owner)
	}
	return s.err
}

// A mirror goes on saving its catalog until the one in its place has saved another, and
// then saves nothing any more.
func TestSharedFile(t *testing.T) {
	t.Parallel()
	disk := &saves{}
	var file consumer.SharedFile
	before, after := file.Store(disk), file.Store(disk)
	save := func(store consumer.Store, owner string, want error) {
		t.Helper()
		if err := store.Save("file", &snapshot.Snapshot{Owner: owner}); !errors.Is(err, want) {
			t.Errorf("the catalog of %s is saved with %v, expected %v", owner, err, want)
		}
	}
	save(before, "before", nil)
	disk.err = errors.New("no space")
	save(after, "after", disk.err)
	disk.err = nil
	save(before, "before", nil)
	save(after, "after", nil)
	save(before, "before", nil)
	save(after, "after", nil)
	if want := []string{"before", "before", "after", "after"}; !slices.Equal(disk.owners, want) {
		t.Errorf("saved are the catalogs of %q, expected %q", disk.owners, want)
	}
}
