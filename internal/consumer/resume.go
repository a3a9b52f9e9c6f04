package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/stream"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
	"github.com/hamlet-federation/coredns-federation/internal/wire/resume"
)

// adoptTogether is how many services of an earlier stream are adopted at a time: as many as one
// batch of updates has at most. The mirror is locked meanwhile.
const adoptTogether = 64

// errChanged ends a resumed stream when services that it resumed with are gone, because their
// retention has ended or the rules have changed.
var errChanged = errors.New("the catalog has changed since the owner was told what this consumer holds")

// heldDigests are the digests that the owner was sent of the catalog, or would be sent.
type heldDigests struct {
	digests resume.Digests   // nil: of nothing
	told    []packed.Service // the services in the digests
	edits   uint64           // EditCount of the catalog then
}

// HeldDigests implements stream.Sink. It leaves out services that came by v1alpha1, because that
// version says less of them, and so they come again. The digests of a large catalog take a while,
// and are kept for the next attempts: until the catalog changes, an attempt costs nothing.
func (m mirrorSink) HeldDigests(ctx context.Context) resume.Digests {
	m.mu.Lock()
	edits := m.catalog.EditCount()
	if h := m.heldDigests; h.digests != nil && h.edits == edits {
		m.mu.Unlock()
		return h.digests
	}
	services := m.catalog.ResumableServices()
	m.mu.Unlock()

	digests, told := digestsOf(ctx, services)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heldDigests = heldDigests{digests, told, edits} // a change since then shows when it counts
	return digests
}

// digestsOf returns the digests of services, and the services that are in them. The digests are nil
// when there are no services, or when ctx ends. The caller must not use the slice afterwards.
func digestsOf(ctx context.Context, services []packed.Service) (resume.Digests, []packed.Service) {
	var sum resume.CatalogSum
	var message []byte
	told := services[:0]
	for i, p := range services {
		if i%1024 == 0 && ctx.Err() != nil {
			return nil, nil
		}
		var ok bool
		if message, ok = p.AppendMessage(message[:0]); ok { // it has no unnamed instance
			sum.Add(p.Name(), message)
			told = append(told, p)
		}
	}
	if sum.Len() == 0 {
		return nil, nil
	}
	return sum.Digests().FoldTo(resume.BucketCount(sum.Len())), told
}

// AcceptHeader implements stream.Sink.
func (m mirrorSink) AcceptHeader(ctx context.Context, a stream.Announcement) error {
	if err := m.checkPath(a.Path, a.PathErr); err != nil {
		return err
	}
	var held heldDigests
	m.changeAndPublish(func(time.Time) {
		held, m.heldDigests = m.heldDigests, heldDigests{} // only an owner that is away is told the same again
		m.own.Path, m.outdated = a.Path.Header(), true
		if a.Marked {
			m.catalog.ExpectEndMarker()
		}
	})
	if !a.Resumed {
		return nil
	}
	return m.adoptServices(ctx, held, a.Whole)
}

// adoptServices marks the services that the owner was told of as announced by the open stream,
// except those in the buckets that the owner sends whole.
func (m mirrorSink) adoptServices(ctx context.Context, held heldDigests, whole resume.BucketSelection) (err error) {
	next := make([]packed.Service, 0, adoptTogether)
	for i := 0; i < len(held.told) && err == nil; {
		next = next[:0]
		for ; i < len(held.told) && len(next) < adoptTogether; i++ {
			if !whole.HasName(held.told[i].Name()) {
				next = append(next, held.told[i])
			}
		}
		m.changeAndPublish(func(time.Time) {
			if err = ctx.Err(); err == nil && m.catalog.EditCount() != held.edits {
				err = errChanged
			}
			if err == nil {
				m.catalog.AdoptServices(next)
			}
		})
	}
	if err == nil {
		m.changeAndPublish(func(time.Time) {
			m.own.Resumed, m.outdated = true, true
			m.own.Resumes++
		})
	}
	return err
}
