package kube

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
)

// Queue has the names of objects that are to be written. Workers call [DrainQueue].
type Queue = workqueue.TypedRateLimitingInterface[types.NamespacedName]

// NewQueue returns a queue. A name that could not be written waits for a second, then for twice as long each
// time, up to a minute.
func NewQueue() Queue {
	return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](time.Second, time.Minute))
}

// DrainQueue writes the names in a queue until ctx ends and the queue is shut down. Write reports whether the
// name is to be written again after a pause; otherwise it returns when to look again although nothing has
// changed, or 0 for never.
func DrainQueue(ctx context.Context, queue Queue, write func(ctx context.Context, name types.NamespacedName) (again time.Duration, failed bool)) {
	for {
		name, end := queue.Get()
		if end || ctx.Err() != nil {
			return
		}
		again, failed := write(ctx, name)
		if failed {
			queue.AddRateLimited(name)
		} else if queue.Forget(name); again > 0 {
			queue.AddAfter(name, again)
		}
		queue.Done(name)
	}
}
