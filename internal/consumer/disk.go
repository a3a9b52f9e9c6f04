package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/snapshot"
)

// Store keeps snapshots of catalogs. Its methods are those of package snapshot, and several
// goroutines may call them for different paths. Any of them may block for as long as the disk does.
type Store interface {
	// Check reports why no snapshot can be kept at path, and returns the path of
	// the file that path leads to.
	Check(path string) (file string, err error)

	Load(path string, o snapshot.ReadOptions) (*snapshot.Snapshot, error)
	Save(path string, s *snapshot.Snapshot) error

	// SetAside renames a file that Load refused, and returns its new name.
	SetAside(path string) (name string, err error)
}

// Files returns the Store of the machine, which is package snapshot.
func Files() Store { return fileStore{} }

type fileStore struct{}

func (fileStore) Check(path string) (string, error) { return snapshot.CheckPath(path) }

func (fileStore) Load(path string, o snapshot.ReadOptions) (*snapshot.Snapshot, error) {
	return snapshot.Load(path, o)
}

func (fileStore) Save(path string, s *snapshot.Snapshot) error { return snapshot.Save(path, s) }
func (fileStore) SetAside(path string) (string, error)         { return snapshot.SetAside(path) }

// How long a mirror waits for a disk. A disk that takes longer hangs. Nothing can end a
// call to it, so its goroutine is left behind.
const (
	checkPatience = 10 * time.Second // for the answer whether a catalog can be kept
	loadPatience  = 10 * time.Second // for some progress with a catalog that is restored
	savePatience  = 5 * time.Second  // for the last save
)

// CheckFile returns the path of the file that path leads to, or why no catalog can be kept there.
// It waits ten seconds for a disk that hangs.
func CheckFile(ctx context.Context, store Store, path string) (file string, err error) {
	type checked struct {
		file string
		err  error
	}
	result, ok := callWithin(ctx, checkPatience, nil, func() checked {
		file, err := store.Check(path)
		return checked{file, err}
	})
	if !ok {
		return "", fmt.Errorf("no answer from the disk of %q within %v", path, checkPatience)
	}
	return result.file, result.err
}

// callWithin returns the result of f, which asks a disk. It returns false when ctx ends, or when f
// takes longer than the limit, which begins anew with every progress. Then f goes on in its
// goroutine until the disk answers, and its result is lost. callWithin calls each function that it
// gets from progress.
func callWithin[T any](ctx context.Context, limit time.Duration, progress <-chan func(), f func() T) (result T, ok bool) {
	results := make(chan T, 1)
	go func() { results <- f() }()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case result = <-results:
			return result, true
		case step := <-progress:
			step()
			timer.Reset(limit)
		case <-timer.C:
			return result, false
		case <-ctx.Done():
			return result, false
		}
	}
}

// awaitLastSave waits until the catalog has been saved for the last time, or for savePatience.
func (k *snapshotKeeper) awaitLastSave() {
	timer := time.NewTimer(savePatience)
	defer timer.Stop()
	select {
	case <-k.done:
	case <-timer.C:
		k.abandon()
	}
}
