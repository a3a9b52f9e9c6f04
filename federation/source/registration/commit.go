package registration

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/hamlet-federation/coredns-federation/federation/source/registration/store"
)

// The committer takes at most mostChanges at once: what comes meanwhile is told sooner.
// After an error it waits from firstDelay to longestDelay.
const (
	mostChanges  = 4096
	firstDelay   = 50 * time.Millisecond
	longestDelay = 5 * time.Second
)

// committer gives the store what is to change. Nothing waits for a timer: the first change goes
// at once, and those that come meanwhile are the next batch.
type committer struct {
	*Source

	delay wait.Backoff
}

func newCommitter(s *Source) *committer { return &committer{s, newBackoff()} }

func newBackoff() wait.Backoff {
	return wait.Backoff{Duration: firstDelay, Factor: 2, Jitter: 0.5, Steps: 10, Cap: longestDelay}
}

// run commits until ctx ends.
func (c *committer) run(ctx context.Context) {
	timer := time.NewTimer(tick)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.commits:
		case <-timer.C:
			c.unblock()
		}
		pause := tick
		for ctx.Err() == nil {
			again, err := c.round(ctx)
			if err != nil {
				pause = c.delay.Step()
				c.rest(ctx, pause)
				continue
			}
			if !again {
				break
			}
		}
		timer.Reset(pause)
	}
}

// rest waits after an error, or until the store says that it is back.
func (c *committer) rest(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-c.back:
	}
}

// unblock has changes tried again that were in conflict, in case that the store has
// nothing to tell.
func (c *committer) unblock() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.table.Unblock()
}

// round commits what waits, and reports whether there was anything.
func (c *committer) round(ctx context.Context) (again bool, err error) {
	changes := c.take()
	if len(changes) == 0 {
		rouse(c.publish) // changes that turned out to be none have answers
		return false, nil
	}
	outcomes, err := c.config.Store.Commit(ctx, changes)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.commit = err
	if err != nil {
		c.table.Retry()
	} else {
		c.table.Settle(outcomes, time.Now())
		c.delay = newBackoff()
	}
	rouse(c.publish)
	return true, err
}

func (c *committer) take() []store.Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if known, _ := c.table.Known(now); !known {
		return nil
	}
	return c.table.Take(mostChanges, now)
}
