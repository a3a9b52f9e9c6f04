package registration

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/hamlet-federation/coredns-federation/internal/source/internal/reconnect"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/store"
)

// mostChanges are committed at once, so that providers of later changes wait less.
const mostChanges = 4096

// newBackoff returns the delays after errors. They stay short, because a store that is away says so at
// once.
func newBackoff() wait.Backoff {
	return wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 10, Cap: time.Second / 2}
}

// commitAll commits changes to the store until ctx ends. No change waits for a timer: the first one
// is committed at once, and those that come meanwhile are the next batch.
func (s *Source) commitAll(ctx context.Context) {
	delay := newBackoff()
	for ctx.Err() == nil {
		more, err := s.commitRound(ctx)
		switch {
		case err != nil: // what comes meanwhile waits as well
			reconnect.WaitFor(ctx, delay.Step())
		case more:
			delay = newBackoff()
		default:
			select {
			case <-ctx.Done():
			case <-s.commits:
			}
		}
	}
}

// commitRound commits the changes that wait, and reports whether there were any.
func (s *Source) commitRound(ctx context.Context) (more bool, err error) {
	changes := s.takeChanges()
	if len(changes) == 0 {
		s.publishAndAnswer() // changes that turned out to be none have answers
		return false, nil
	}
	outcomes, err := s.config.Store.Commit(ctx, changes)
	s.mu.Lock()
	defer s.unlockAndPublish()
	s.commitError = err
	if err != nil {
		s.table.RetryTaken()
	} else {
		s.table.ApplyOutcomes(outcomes, time.Now())
	}
	return true, err
}

// takeChanges returns the next changes to commit.
func (s *Source) takeChanges() []store.Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if known, _ := s.table.KnownState(now); !known {
		return nil
	}
	return s.table.TakeChanges(mostChanges, now)
}
