package feedback

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// The field managers of the conditions.
const (
	Manager          = "hamlet-federation"
	ConsumersManager = "hamlet-federation-consumers"
)

const (
	perSecond  = 100 // requests that write, on the average
	burst      = 200
	oneRequest = 10 * time.Second
	pause      = time.Second     // after a request that could not be made, or before one that failed because of its object
	longPause  = 5 * time.Second // after one that is not allowed
	maxTries   = 5               // of a request that fails because of its object
)

// server is how the API server is reached.
type server struct {
	exports rest.Interface // nil: ServiceExports are not served
	version string         // of ServiceExports
}

// Use says how the API server is reached from now on. exports is nil where it serves no ServiceExports.
func (w *Writer) Use(exports rest.Interface, version string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.server = server{exports: exports, version: version}
	w.rouse()
}

// Run writes until ctx ends.
func (w *Writer) Run(ctx context.Context) {
	limit := flowcontrol.NewTokenBucketRateLimiter(perSecond, burst)
	defer limit.Stop()
	for ctx.Err() == nil {
		of, t, server, ok, due := w.next()
		if ok {
			w.write(ctx, limit, of, t, server)
			continue
		}
		timer := time.NewTimer(due)
		select {
		case <-ctx.Done():
		case <-w.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// write does a task, or puts back what is left of it.
func (w *Writer) write(ctx context.Context, limit flowcontrol.RateLimiter, of types.NamespacedName, t task, s server) {
	for !t.nothing() {
		if limit.Wait(ctx) != nil {
			return // ctx has ended
		}
		err := w.one(ctx, of, &t, s)
		switch {
		case err == nil:
			w.report(nil)
			continue
		case passing(err):
			if t.tries++; t.tries <= maxTries {
				w.again(of, t, pause, false)
			}
		case ctx.Err() == nil:
			w.report(err)
			delay := pause
			if apierrors.IsForbidden(err) {
				delay = longPause
			}
			w.again(of, t, delay, true)
		}
		return
	}
}

// one makes the next request of a task, and takes it from the task unless it is to be
// made again.
func (w *Writer) one(ctx context.Context, of types.NamespacedName, t *task, s server) error {
	ctx, cancel := context.WithTimeout(ctx, oneRequest)
	defer cancel()
	var err error
	if t.conditions != nil {
		voice := voiceOf(t.export.UID, t.conditions)
		if err = s.apply(ctx, t.export, Manager, "", t.conditions); kept(err) {
			w.conflicts(of, voice.text, err)
			err = nil
		}
		if done(err) {
			w.wrote(of, voice)
			t.conditions = nil
			return nil
		}
		return err
	}
	// Another replica may be about to say something else: the first has it.
	err = s.apply(ctx, t.export, ConsumersManager, t.export.ResourceVersion, t.opinion)
	if done(err) || apierrors.IsConflict(err) {
		w.note(of, func(p *plan) { p.opinion = err == nil && len(t.opinion) > 0 })
		t.opinions = false
		return nil
	}
	return err
}

// done reports whether a request is not to be made again: it has worked, or it is not
// what the API server takes, or the namespace goes.
func done(err error) bool {
	return err == nil || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// kept reports whether another field manager has what was to be applied.
func kept(err error) bool {
	return apierrors.IsConflict(err) && apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict)
}

// passing reports whether an error is about the object, which may have been replaced
// or deleted, and of which the next note tells.
func passing(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsConflict(err) }

// apply applies conditions of a ServiceExport.
func (s server) apply(ctx context.Context, to *mcsv1beta1.ServiceExport, manager, version string, conditions []metav1.Condition) error {
	metadata := map[string]any{"name": to.Name, "namespace": to.Namespace, "uid": to.UID}
	if version != "" {
		metadata["resourceVersion"] = version
	}
	if conditions == nil {
		conditions = []metav1.Condition{}
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": mcsv1beta1.GroupName + "/" + s.version, "kind": mcsv1beta1.ServiceExportKindName,
		"metadata": metadata, "status": map[string]any{"conditions": conditions},
	})
	if err != nil {
		return err
	}
	return s.exports.Patch(types.ApplyYAMLPatchType).Namespace(to.Namespace).Resource(mcsv1beta1.ServiceExportPluralName).
		Name(to.Name).SubResource("status").Param("fieldManager", manager).Body(body).Do(ctx).Error()
}

// plan returns what is known of a Service. It is called with mu held.
func (w *Writer) plan(of types.NamespacedName) *plan {
	p := w.plans[of]
	if p == nil {
		p = new(plan)
		w.plans[of] = p
	}
	return p
}

// note changes what is known of a Service, unless it has been forgotten.
func (w *Writer) note(of types.NamespacedName, change func(*plan)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.plans[of]; p != nil {
		change(p)
	}
}

// wrote notes what has been written. There may be something else to say by now.
func (w *Writer) wrote(of types.NamespacedName, written voice) {
	w.note(of, func(p *plan) {
		if v := &p.voice; v.verdict == written.verdict {
			v.owed = v.owed && v.text != written.text
			v.writes++
		}
	})
}

// conflicts notes that another controller keeps a condition.
func (w *Writer) conflicts(of types.NamespacedName, text uint64, err error) {
	first := false
	w.note(of, func(p *plan) {
		first = p.conflict == 0
		p.conflict = text
	})
	if first {
		w.log.Warn("another controller writes the conditions of a ServiceExport", "export", of.String(), "error", oneLine(err))
	}
}

// report logs an error when it is another than the one before.
func (w *Writer) report(err error) {
	class := ""
	switch {
	case err == nil:
	case apierrors.IsForbidden(err):
		class = "forbidden"
		_, text, ok := strings.Cut(oneLine(err).Error(), "forbidden: ")
		if ok {
			err = errors.New("RBAC: " + text)
		}
	case apierrors.IsUnauthorized(err):
		class = "unauthorized"
	default:
		class = "other"
	}
	w.mu.Lock()
	news := class != w.said
	w.said = class
	w.mu.Unlock()
	if news && err != nil {
		w.log.Warn("conditions cannot be written; trying again", "error", oneLine(err))
	}
}

func oneLine(err error) error { return errors.New(strings.Join(strings.Fields(err.Error()), " ")) }
