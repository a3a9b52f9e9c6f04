package consumer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/consumer/snapshot"
)

// Store keeps snapshots of catalogs. Its methods are those of package snapshot,
// and may be called by several goroutines for different paths. Any of them may
// take as long as a disk pleases.
type Store interface {
	// Check reports why no snapshot can be kept at path, and returns the path of
	// the file that path leads to.
	Check(path string) (file string, err error)

	Load(path string, o snapshot.Options) (*snapshot.Snapshot, error)
	Save(path string, s *snapshot.Snapshot) error

	// SetAside renames a file that Load refused, and returns its new name.
	SetAside(path string) (name string, err error)
}

// Files is the Store of the machine: package snapshot.
func Files() Store { return files{} }

type files struct{}

func (files) Check(path string) (string, error) { return snapshot.Check(path) }

func (files) Load(path string, o snapshot.Options) (*snapshot.Snapshot, error) {
	return snapshot.Load(path, o)
}

func (files) Save(path string, s *snapshot.Snapshot) error { return snapshot.Save(path, s) }
func (files) SetAside(path string) (string, error)         { return snapshot.SetAside(path) }

// SharedFile is a file in which mirrors keep their catalogs one after the other: each goes on
// until the one in its place has a catalog. The zero value is ready to use.
type SharedFile struct {
	mirrors int // that there are Stores for

	mu    sync.Mutex // guards the field below, and is held while the file is written
	saved int        // the last mirror that has saved its catalog
}

// Store returns the Store of the next mirror. Once that has saved its catalog, those of the
// mirrors before it save nothing more.
func (f *SharedFile) Store(store Store) Store {
	f.mirrors++
	return shared{store, f, f.mirrors}
}

type shared struct {
	Store

	file   *SharedFile
	mirror int // from 1
}

func (s shared) Save(path string, snapshot *snapshot.Snapshot) error {
	s.file.mu.Lock()
	defer s.file.mu.Unlock()
	if s.mirror < s.file.saved {
		return nil
	}
	err := s.Store.Save(path, snapshot)
	if err == nil {
		s.file.saved = s.mirror
	}
	return err
}

// How long a disk is waited for. One that takes longer hangs; nothing can end a
// call to it, so it is left to itself.
const (
	checkPatience = 10 * time.Second // for the answer whether a catalog can be kept
	loadPatience  = 10 * time.Second // for some progress with a catalog that is restored
	savePatience  = 5 * time.Second  // for the last save
)

// CheckFile reports why no catalog can be kept at path, and returns the path of the
// file that path leads to. It waits ten seconds for a disk that hangs.
func CheckFile(ctx context.Context, store Store, path string) (file string, err error) {
	type checked struct {
		file string
		err  error
	}
	result, ok := within(ctx, checkPatience, nil, func() checked {
		file, err := store.Check(path)
		return checked{file, err}
	})
	if !ok {
		return "", fmt.Errorf("no answer from the disk of %q within %v", path, checkPatience)
	}
	return result.file, result.err
}

// within returns what f returns, which asks a disk. It returns false when that
// takes longer than the limit, which begins anew with every progress, or when ctx
// ends. Then f goes on in its goroutine until the disk answers, and what it returns
// is lost. A function that comes as progress is called.
func within[T any](ctx context.Context, limit time.Duration, progress <-chan func(), f func() T) (result T, ok bool) {
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

// await waits until the catalog has been saved for the last time, or for as long as
// a disk is waited for.
func (k *keeper) await() {
	timer := time.NewTimer(savePatience)
	defer timer.Stop()
	select {
	case <-k.done:
	case <-timer.C:
		k.abandon()
	}
}
