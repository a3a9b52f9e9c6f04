package registration

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/hamlet-federation/coredns-federation/internal/source/registration/store"
)

// The committer takes at most mostChanges at once, so that providers of later changes wait less.
// After an error it waits from firstDelay to longestDelay.
const (
	mostChanges  = 4096
	firstDelay   = 50 * time.Millisecond
	longestDelay = 5 * time.Second
)

func newBackoff() wait.Backoff {
	return wait.Backoff{Duration: firstDelay, Factor: 2, Jitter: 0.5, Steps: 10, Cap: longestDelay}
}

// commitAll commits changes to the store until ctx ends. No change waits for a timer: the first one
// is committed at once, and those that come meanwhile are the next batch.
func (s *Source) commitAll(ctx context.Context) {
	delay := newBackoff()
	timer := time.NewTimer(tick)
	defer timer.Stop()
	for ctx.Err() == nil {
		more, err := s.commitRound(ctx)
		pause, commits := tick, s.commits
		switch {
		case err != nil: // what comes meanwhile waits as well
			pause, commits = delay.Step(), nil
		case more:
			delay = newBackoff()
			continue
		}
		timer.Reset(pause)
		select {
		case <-ctx.Done():
		case <-commits:
		case <-s.back:
		case <-timer.C:
			s.retryConflicts()
		}
	}
}

// retryConflicts makes the table try changes again that were in conflict, in case that the store
// does not report any change to their keys.
func (s *Source) retryConflicts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.table.RetryConflicts()
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
