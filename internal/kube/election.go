package kube

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/retry"
)

const (
	leaseDuration = 15 * time.Second // until others take a lease that is not renewed
	renewDeadline = 10 * time.Second // until a leader that cannot renew the lease stops leading
	retryPeriod   = 2 * time.Second  // between attempts to renew the lease, or to get it
)

// Election lets one of several replicas lead, which is the one that holds a lease. Its fields stay as
// they are while it runs. The functions among them are called one after the other, but for Lead,
// during which the others are called.
type Election struct {
	Lease  types.NamespacedName
	Leases coordinationv1client.LeasesGetter // see [Client.Leases]

	// Lead does what one replica does at a time, until its context ends: when the lease could not be
	// renewed, some seconds before another replica may take it, or when the context of Run ends. Then
	// Lead returns soon: before that, this replica neither gives the lease up nor asks for it again.
	Lead func(context.Context)

	// Noted is told how each request of the lease ended. A lease that does not exist yet
	// is an answer like others, and a conflict says that the lease is not as this replica knows it.
	Noted func(error)

	// Observed is told who holds the lease, when that changes; "" is nobody. A nil function is not told.
	Observed func(holder string)

	name   sync.Once
	self   string
	holder string // that was observed last; Run alone uses it
}

// Identity returns the name by which this replica holds the lease. It has the name of the host, and
// is another one in each process.
func (e *Election) Identity() string {
	e.name.Do(func() {
		host, _ := os.Hostname()
		e.self = host + "_" + string(uuid.NewUUID())
	})
	return e.self
}

// Run takes part in the election until ctx ends. Then it gives the lease up, so that the next leader
// need not wait until it expires.
func (e *Election) Run(ctx context.Context) {
	lock := notedLock{election: e, LeaseLock: &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: e.Lease.Namespace, Name: e.Lease.Name}, Client: e.Leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: e.Identity()},
	}}
	leading := make(chan struct{}, 1) // has a token while Lead runs
	lead := func(ctx context.Context) {
		leading <- struct{}{}
		defer func() { <-leading }()
		if ctx.Err() == nil { // otherwise the term has ended already
			e.Lead(ctx)
		}
	}
	for ctx.Err() == nil {
		leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{ // until ctx ends, or the lease is lost
			Lock: lock, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
			Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: lead, OnStoppedLeading: func() {}},
		})
		leading <- struct{}{} // when Lead has returned
		<-leading
	}
	if e.holder == e.Identity() {
		e.releaseLease(context.WithoutCancel(ctx), lock)
	}
}

// releaseLease gives the lease up, if this replica has it. (The elector would do that with
// ReleaseOnCancel, but before the context of Lead ends, and so two replicas could lead.)
func (e *Election) releaseLease(ctx context.Context, lock notedLock) {
	ctx, cancel := context.WithTimeout(ctx, renewDeadline)
	defer cancel()
	_ = retry.RetryOnConflict(retry.DefaultRetry, func() error { // a last renewal may arrive meanwhile
		record, _, err := lock.Get(ctx)
		if err != nil || record.HolderIdentity != e.Identity() {
			return err
		}
		record.HolderIdentity = ""
		return lock.Update(ctx, *record)
	})
}

// notedLock is a lease of which the election notes each request.
type notedLock struct {
	*resourcelock.LeaseLock

	election *Election
}

// Get returns the record of the lease.
func (l notedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, text, err := l.LeaseLock.Get(ctx)
	return record, text, l.election.noteRequest(record, err)
}

// Create makes the lease.
func (l notedLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.election.noteRequest(&record, l.LeaseLock.Create(ctx, record))
}

// Update changes the lease.
func (l notedLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.election.noteRequest(&record, l.LeaseLock.Update(ctx, record))
}

// noteRequest notes how a request ended and, without an error, what the lease says now. It returns the error.
func (e *Election) noteRequest(record *resourcelock.LeaderElectionRecord, err error) error {
	switch {
	case err == nil:
		e.Noted(nil)
		if e.holder != record.HolderIdentity && e.Observed != nil {
			e.Observed(record.HolderIdentity)
		}
		e.holder = record.HolderIdentity
	case apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err) && !strings.HasPrefix(err.Error(), "namespaces"):
		e.Noted(nil)
	case !errors.Is(err, context.Canceled): // because this replica ends
		e.Noted(err)
	}
	return err
}
