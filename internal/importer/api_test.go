package importer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// testAPI is an API server without a network, as far as an importer asks one: it has objects, versions,
// preconditions and watches. What the real one does is in the suites with control planes. All names are of
// the namespace fed.
type testAPI struct {
	t *testing.T

	mu      sync.Mutex
	version int
	objects map[string]object // by RESOURCE/NAME
	watches map[string][]*io.PipeWriter
	told    map[*io.PipeWriter]chan struct{} // closed when the last event has been written
	writes  []string                         // METHOD RESOURCE/NAME that were done, but for leases
	reads   int                              // lists
	away    bool
	answer  func(method, name string) int // 0: as the server would
}

func newTestAPI(t *testing.T) *testAPI {
	must.Do(t, mcsv1beta1.Install(scheme.Scheme))
	return &testAPI{t: t, objects: make(map[string]object), watches: make(map[string][]*io.PipeWriter), told: make(map[*io.PipeWriter]chan struct{})}
}

// RoundTrip implements http.RoundTripper.
func (a *testAPI) RoundTrip(request *http.Request) (*http.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.away {
		return nil, errors.New("connection refused")
	}
	_, path, _ := strings.Cut(request.URL.Path, "/namespaces/fed/")
	kind, _, single := strings.Cut(path, "/")
	if path == "" { // of all namespaces
		kind = request.URL.Path[strings.LastIndexByte(request.URL.Path, '/')+1:]
	}
	var sent runtime.Object
	var body []byte
	if request.Body != nil {
		body = must.Get(io.ReadAll(request.Body))(a.t)
		sent, _, _ = scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	}
	if i, ok := sent.(*mcsv1beta1.ServiceImport); ok {
		i.Status = mcsv1beta1.ServiceImportStatus{} // which has a resource of its own
		if before, ok := a.objects[path].(*mcsv1beta1.ServiceImport); ok {
			i.Status = before.Status
		}
	}
	name := path
	if o, ok := sent.(object); ok && !single {
		name = kind + "/" + o.GetName()
	}
	if a.answer != nil {
		if code := a.answer(request.Method, name); code != 0 {
			return a.reply(request, code, failure(code)), nil
		}
	}
	there := a.objects[name]
	switch request.Method {
	case http.MethodGet:
		switch {
		case request.URL.Query().Get("watch") != "":
			return a.watch(request, kind), nil
		case there != nil:
			return a.reply(request, http.StatusOK, there), nil
		}
		return a.reply(request, http.StatusNotFound, failure(http.StatusNotFound)), nil
	case http.MethodPost:
		if there != nil {
			return a.reply(request, http.StatusConflict, metav1.Status{Status: "Failure", Reason: metav1.StatusReasonAlreadyExists, Code: http.StatusConflict}), nil
		}
		o := sent.(object)
		o.SetUID(types.UID(fmt.Sprint("uid-", a.version)))
		if s, ok := o.(*corev1.Service); ok && s.Spec.ClusterIP == "" {
			s.Spec.ClusterIP = fmt.Sprint("10.0.0.", a.version)
			s.Spec.ClusterIPs, s.Spec.IPFamilies = []string{s.Spec.ClusterIP}, []corev1.IPFamily{corev1.IPv4Protocol}
		}
		a.put(request.Method, name, o)
		return a.reply(request, http.StatusCreated, o), nil
	case http.MethodPut:
		o := sent.(object)
		if there == nil || there.GetResourceVersion() != o.GetResourceVersion() {
			return a.reply(request, http.StatusConflict, failure(http.StatusConflict)), nil
		}
		a.put(request.Method, name, o)
		return a.reply(request, http.StatusOK, o), nil
	case http.MethodPatch:
		return a.applyStatus(request, name, body), nil
	case http.MethodDelete:
		if options := sent.(*metav1.DeleteOptions); there == nil || *options.Preconditions.UID != there.GetUID() {
			return a.reply(request, http.StatusNotFound, failure(http.StatusNotFound)), nil
		}
		a.remove(name)
		return a.reply(request, http.StatusOK, metav1.Status{Status: "Success"}), nil
	}
	a.t.Errorf("request: %s %s", request.Method, request.URL)
	return a.reply(request, http.StatusMethodNotAllowed, failure(http.StatusMethodNotAllowed)), nil
}

// applyStatus has one field manager apply the status of an object of the MCS API. The conditions of a
// ServiceExport that it does not apply are of others, but for Conflict.
func (a *testAPI) applyStatus(request *http.Request, name string, body []byte) *http.Response {
	name = strings.TrimSuffix(name, "/status")
	switch o := a.objects[name].(type) {
	case *mcsv1beta1.ServiceImport:
		var applied mcsv1beta1.ServiceImport
		must.Do(a.t, json.Unmarshal(body, &applied))
		o = o.DeepCopy()
		o.Status = applied.Status
		a.put(request.Method, name, o)
	case *mcsv1beta1.ServiceExport:
		var applied mcsv1beta1.ServiceExport
		must.Do(a.t, json.Unmarshal(body, &applied))
		o = o.DeepCopy()
		meta.RemoveStatusCondition(&o.Status.Conditions, string(mcsv1beta1.ServiceExportConditionConflict))
		o.Status.Conditions = append(o.Status.Conditions, applied.Status.Conditions...)
		a.put(request.Method, name, o)
	default:
		return a.reply(request, http.StatusNotFound, failure(http.StatusNotFound))
	}
	return a.reply(request, http.StatusOK, a.objects[name])
}

func failure(code int) metav1.Status {
	reason := metav1.StatusReason(strings.ReplaceAll(http.StatusText(code), " ", ""))
	return metav1.Status{Status: "Failure", Reason: reason, Message: "forbidden: a test says so", Code: int32(code)}
}

func (a *testAPI) reply(request *http.Request, code int, v any) *http.Response {
	switch v := v.(type) {
	case metav1.Status:
		v.Kind, v.APIVersion = "Status", "v1"
		return a.respond(request, code, io.NopCloser(strings.NewReader(string(must.Get(json.Marshal(v))(a.t)))))
	case object:
		return a.respond(request, code, io.NopCloser(strings.NewReader(a.encode(v))))
	}
	return a.respond(request, code, io.NopCloser(strings.NewReader(string(must.Get(json.Marshal(v))(a.t)))))
}

func (*testAPI) respond(request *http.Request, code int, body io.ReadCloser) *http.Response {
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Request: request, Body: body}
}

// encode returns an object as JSON with its kind.
func (a *testAPI) encode(o object) string {
	kinds, _, err := scheme.Scheme.ObjectKinds(o)
	must.Do(a.t, err)
	o = o.DeepCopyObject().(object)
	o.GetObjectKind().SetGroupVersionKind(kinds[0])
	return string(must.Get(json.Marshal(o))(a.t))
}

func (a *testAPI) watch(request *http.Request, kind string) *http.Response {
	from, to := io.Pipe()
	a.watches[kind] = append(a.watches[kind], to)
	var first strings.Builder
	if request.URL.Query().Get("sendInitialEvents") == "true" {
		a.reads++
		for _, name := range slices.Sorted(maps.Keys(a.objects)) {
			if strings.HasPrefix(name, kind+"/") {
				fmt.Fprintf(&first, "{%q:%q,%q:%s}\n", "type", "ADDED", "object", a.encode(a.objects[name]))
			}
		}
		end := map[string]object{
			serviceKind: new(corev1.Service), sliceKind: new(discoveryv1.EndpointSlice), importKind: new(mcsv1beta1.ServiceImport), exportKind: new(mcsv1beta1.ServiceExport),
		}[kind]
		end.SetResourceVersion(strconv.Itoa(a.version))
		end.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		fmt.Fprintf(&first, "{%q:%q,%q:%s}\n", "type", "BOOKMARK", "object", a.encode(end))
	}
	told := make(chan struct{})
	a.told[to] = told
	go func() {
		_, _ = io.WriteString(to, first.String())
		close(told)
		<-request.Context().Done()
		to.CloseWithError(io.EOF)
	}()
	return a.respond(request, http.StatusOK, from)
}

// put stores an object, and tells the watches. The caller holds mu.
func (a *testAPI) put(method, name string, o object) {
	a.version++
	o.SetResourceVersion(strconv.Itoa(a.version))
	event := "MODIFIED"
	if a.objects[name] == nil {
		event = "ADDED"
	}
	a.objects[name] = o.DeepCopyObject().(object)
	a.tell(event, name, o)
	if !strings.HasPrefix(name, "leases/") {
		a.writes = append(a.writes, method+" "+name)
	}
}

// remove removes an object, and tells the watches. The caller holds mu.
func (a *testAPI) remove(name string) {
	o := a.objects[name]
	delete(a.objects, name)
	a.version++
	o.SetResourceVersion(strconv.Itoa(a.version))
	a.tell("DELETED", name, o)
	a.writes = append(a.writes, "DELETE "+name)
}

func (a *testAPI) tell(event, name string, o object) {
	kind, _, _ := strings.Cut(name, "/")
	text := fmt.Sprintf("{%q:%q,%q:%s}\n", "type", event, "object", a.encode(o))
	for _, w := range a.watches[kind] {
		before, told := a.told[w], make(chan struct{})
		a.told[w] = told
		go func() { // in order
			<-before
			_, _ = io.WriteString(w, text)
			close(told)
		}()
	}
}

// setAway has requests fail, and ends the watches.
func (a *testAPI) setAway(away bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.away = away
	for _, all := range a.watches {
		for _, w := range all {
			w.CloseWithError(io.ErrUnexpectedEOF)
		}
	}
	clear(a.watches)
}

// setAnswer has f answer requests, with mu held.
func (a *testAPI) setAnswer(f func(method, name string) int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer = f
}

// change does something with the objects that is not the importer's.
func (a *testAPI) change(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
	a.writes = nil
}

// take returns what was written since the last call, sorted.
func (a *testAPI) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	writes := slices.Sorted(slices.Values(a.writes))
	a.writes = nil
	return writes
}
