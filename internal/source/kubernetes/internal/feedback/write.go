package feedback

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// manager is the field manager of the conditions.
const manager = "hamlet-federation"

const (
	perSecond    = 100 // requests that write, on the average
	burst        = 200
	oneRequest   = 5 * time.Second
	pause        = time.Second     // before a request that failed is made again
	longestPause = time.Minute     // the same, of one that fails because of its object
	serverPause  = 5 * time.Second // before the next request of any Service, after one that was not answered or not allowed

	leaseDuration = 15 * time.Second // until others take a lease that is not renewed
	renewDeadline = 10 * time.Second // until a leader that cannot renew the lease stops leading
	retryPeriod   = 2 * time.Second  // between attempts to renew the lease, or to get it
)

// apiServer has the clients for the API server.
type apiServer struct {
	exports rest.Interface // nil: ServiceExports are not served
	version string         // of ServiceExports
	leases  coordinationv1.LeasesGetter
}

// SetServer replaces the clients for the API server. Exports is nil where the server has no
// ServiceExports.
func (w *Writer) SetServer(exports rest.Interface, version string, leases coordinationv1.LeasesGetter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.server
	w.server = apiServer{exports: exports, version: version, leases: leases}
	if before.leases == nil {
		close(w.ready)
	}
	if before.version != version {
		w.compareAll()
	}
}

// Run takes part in the election, and writes while this replica leads, until ctx ends. Then it
// gives the lease up.
func (w *Writer) Run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-w.ready:
	}
	w.queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](pause, longestPause))
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { w.drainQueue(ctx) })
	defer w.queue.ShutDown()
	host, _ := os.Hostname()
	election := leaderelection.LeaderElectionConfig{
		Lock: loggedLock{w, &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: w.lease.Namespace, Name: w.lease.Name}, Client: w,
			LockConfig: resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())},
		}},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: w.startLeading, OnStoppedLeading: w.stopLeading},
	}
	for ctx.Err() == nil {
		leaderelection.RunOrDie(ctx, election) // until ctx ends, or the lease is lost
	}
}

// startLeading makes this replica lead, unless ctx has ended already.
func (w *Writer) startLeading(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leads = ctx.Err() == nil
	w.compareAll()
}

// stopLeading makes this replica stop leading.
func (w *Writer) stopLeading() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leads = false
}

// Leases implements [coordinationv1.LeasesGetter], with the current client.
func (w *Writer) Leases(namespace string) coordinationv1.LeaseInterface {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.server.leases.Leases(namespace)
}

// loggedLock is a lease that logs why it cannot be had.
type loggedLock struct {
	*Writer
	*resourcelock.LeaseLock
}

// Get returns the record of the lease.
func (l loggedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, text, err := l.LeaseLock.Get(ctx)
	return record, text, l.logDenied(err)
}

// Create makes the lease.
func (l loggedLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.logDenied(l.LeaseLock.Create(ctx, record))
}

// Update changes the lease.
func (l loggedLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.logDenied(l.LeaseLock.Update(ctx, record))
}

// logDenied returns err, and logs it if somebody has to change rights or the namespace.
func (l loggedLock) logDenied(err error) error {
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) && strings.HasPrefix(err.Error(), "namespaces") {
		l.reportError(err)
	}
	return err
}

// drainQueue writes the conditions of Services in the queue, until the queue is shut down.
func (w *Writer) drainQueue(ctx context.Context) {
	limit := flowcontrol.NewTokenBucketRateLimiter(perSecond, burst)
	defer limit.Stop()
	for {
		of, end := w.queue.Get()
		if end {
			return
		}
		if w.writeConditions(ctx, limit, of) {
			w.queue.Forget(of)
		} else if ctx.Err() == nil {
			w.queue.AddRateLimited(of)
		}
		w.queue.Done(of)
	}
}

// writeConditions writes the conditions of a Service, and reports whether nothing is left to do for
// it.
func (w *Writer) writeConditions(ctx context.Context, limit flowcontrol.RateLimiter, of types.NamespacedName) bool {
	to, conditions, server := w.nextWrite(of)
	if conditions == nil {
		return true
	}
	err := server.applyConditions(ctx, limit, to, conditions)
	switch {
	case err == nil, apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		w.noteWritten(of, to, conditions) // or it never will be
	case apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict):
		if w.noteWritten(of, to, conditions) {
			w.log.Warn("another controller writes the conditions of a ServiceExport", "export", of.String(), "error", oneLine(err))
		}
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err): // the object was deleted or replaced, and others need not wait
		return false
	case ctx.Err() == nil:
		w.reportError(err)
		paused, end := context.WithTimeout(ctx, serverPause)
		<-paused.Done()
		end()
		return false
	}
	w.reportError(nil)
	return true
}

// applyConditions applies conditions of a ServiceExport.
func (s apiServer) applyConditions(ctx context.Context, limit flowcontrol.RateLimiter, to *mcsv1beta1.ServiceExport, conditions []metav1.Condition) error {
	body, err := json.Marshal(map[string]any{
		"apiVersion": mcsv1beta1.GroupName + "/" + s.version, "kind": mcsv1beta1.ServiceExportKindName,
		"metadata": map[string]any{"name": to.Name, "namespace": to.Namespace, "uid": to.UID}, "status": map[string]any{"conditions": conditions},
	})
	if err != nil {
		return err
	}
	return s.exports.Patch(types.ApplyYAMLPatchType).Namespace(to.Namespace).Resource(mcsv1beta1.ServiceExportPluralName).
		Name(to.Name).SubResource("status").Param("fieldManager", manager).Body(body).Throttle(limit).Timeout(oneRequest).Do(ctx).Error()
}

// reportError logs an error when it is of another kind than the one before.
func (w *Writer) reportError(err error) {
	class := metav1.StatusReason("")
	if err != nil {
		class = "failed " + apierrors.ReasonForError(err)
	}
	w.mu.Lock()
	news := class != "" && class != w.problem
	w.problem = class
	w.mu.Unlock()
	if news {
		text := oneLine(err)
		if _, of, ok := strings.Cut(text, "forbidden: "); ok {
			text = "RBAC: " + of
		}
		w.log.Warn("conditions cannot be written; trying again", "error", text)
	}
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
