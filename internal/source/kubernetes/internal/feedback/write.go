package feedback

import (
	"cmp"
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/internal/kube"
)

// manager is the field manager of the conditions.
const manager = "hamlet-federation"

const (
	perSecond   = 100 // requests that write, on the average
	burst       = 200
	serverPause = 5 * time.Second // before the next request of any Service, after one that was not answered or not allowed
)

// apiServer has the clients for the API server.
type apiServer struct {
	client  *kube.Client
	exports rest.Interface
	version string // of ServiceExports; empty: they are not served
	leases  coordinationv1.LeasesGetter
}

// SetServer replaces the client for the API server. Version is that of ServiceExports, and "" where the
// server has none.
func (w *Writer) SetServer(client *kube.Client, version string) error {
	leases, err := client.Leases()
	exports, failed := client.Group(schema.GroupVersion{Group: mcsv1beta1.GroupName, Version: version})
	if err = cmp.Or(err, failed); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.server
	w.server = apiServer{client, exports, version, leases}
	if before.leases == nil {
		close(w.ready)
	}
	if before.version != version {
		w.compareAll()
	}
	return nil
}

// Run takes part in the election, and writes while this replica leads, until ctx ends. Then it
// gives the lease up.
func (w *Writer) Run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-w.ready:
	}
	election := kube.Election{Lease: w.lease, Leases: w, Lead: w.lead, Noted: w.noteLease}
	election.Run(ctx)
}

// lead compares all records with the objects, and writes the differences and what changes, until ctx
// ends.
func (w *Writer) lead(ctx context.Context) {
	queue, limit := kube.NewQueue(), flowcontrol.NewTokenBucketRateLimiter(perSecond, burst)
	defer limit.Stop()
	defer context.AfterFunc(ctx, queue.ShutDown)()
	w.setQueue(queue)
	kube.DrainQueue(ctx, queue, func(ctx context.Context, of types.NamespacedName) (time.Duration, bool) {
		return 0, !w.writeConditions(ctx, limit, of)
	})
	w.setQueue(nil)
}

// setQueue sets where Services to compare go from now on, all of them at first.
func (w *Writer) setQueue(queue kube.Queue) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = queue
	w.compareAll()
}

// noteLease logs why the lease cannot be had, if somebody has to change rights or the namespace.
func (w *Writer) noteLease(err error) {
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		w.reportError(err)
	}
}

// Leases implements [coordinationv1.LeasesGetter], with the current client.
func (w *Writer) Leases(namespace string) coordinationv1.LeaseInterface {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.server.leases.Leases(namespace)
}

// writeConditions writes the conditions of a Service, and reports whether nothing is left to do for
// it.
func (w *Writer) writeConditions(ctx context.Context, limit flowcontrol.RateLimiter, of types.NamespacedName) bool {
	to, conditions, server := w.nextWrite(of)
	if conditions == nil {
		return true
	}
	version := schema.GroupVersion{Group: mcsv1beta1.GroupName, Version: server.version}
	request, err := kube.ApplyStatus(server.exports, to, version, mcsv1beta1.ServiceExportKindName, manager, map[string]any{"conditions": conditions})
	if err == nil {
		err = request.Namespace(of.Namespace).Resource(mcsv1beta1.ServiceExportPluralName).Throttle(limit).Do(ctx).Error()
	}
	switch {
	case err == nil, apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		w.noteWritten(of, to, conditions) // or it never will be
	case apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict):
		if w.noteWritten(of, to, conditions) {
			w.log.Warn("another controller writes the conditions of a ServiceExport", "export", of.String(), "error", server.client.ExplainError(err))
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

// reportError logs an error when it is of another kind than the one before.
func (w *Writer) reportError(err error) {
	w.mu.Lock()
	err = w.server.client.ExplainError(err)
	news := err != nil && (w.problem == nil || kube.ReasonClass(err) != kube.ReasonClass(w.problem))
	w.problem = err
	w.mu.Unlock()
	if news {
		w.log.Warn("conditions cannot be written; trying again", "error", err)
	}
}
