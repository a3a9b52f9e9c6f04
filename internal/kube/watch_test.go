package kube

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestWatchReports has a server that lets objects be listed and not watched. Report is told of that
// alone, until a watch is open; the first list is of the newest state, and nothing is told after the end.
func TestWatchReports(t *testing.T) {
	before := slices.Clone(runtime.ErrorHandlers)
	defer func() { copy(runtime.ErrorHandlers, before) }()
	for i := range before { // one of them waits until the process began, which is years ahead in simulated time
		runtime.ErrorHandlers[i] = func(context.Context, error, string, ...any) {}
	}
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		open, lists, reports := false, []string(nil), []string(nil)
		c := newTestClient(t, func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			query := r.URL.Query()
			switch {
			case query.Get("watch") == "":
				lists = append(lists, fmt.Sprintf("%s selector=%s version=%s", r.URL.Path, query.Get("labelSelector"), query.Get("resourceVersion")))
				return respond(t, r, http.StatusOK, corev1.ConfigMapList{
					TypeMeta: metav1.TypeMeta{Kind: "ConfigMapList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"},
					Items: []corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "a"}}},
				}), nil
			case !open || query.Get("resourceVersion") != "7":
				return respond(t, r, http.StatusForbidden, nil), nil
			}
			body, _ := io.Pipe()
			context.AfterFunc(r.Context(), func() { body.Close() })
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Request: r, Body: body}, nil
		})
		store := cache.NewStore(cache.MetaNamespaceKeyFunc)
		w := Watch{
			API: must.Get(c.Group(corev1.SchemeGroupVersion))(t), Resource: "configmaps", Namespace: "n", LabelSelector: "a=b",
			Object: &corev1.ConfigMap{}, Store: store,
			Report: func(err error) {
				mu.Lock()
				defer mu.Unlock()
				reports = append(reports, fmt.Sprint(err))
			},
		}
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
		var running sync.WaitGroup
		running.Go(func() { w.Run(ctx) })
		time.Sleep(time.Minute)
		synctest.Wait()
		mu.Lock()
		if len(reports) < 10 || strings.Contains(strings.Join(reports, " "), "<nil>") {
			t.Errorf("reports of a watch that is forbidden: %q", reports)
		}
		open, reports = true, nil
		mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		mu.Lock()
		if n := len(reports); n == 0 || reports[n-1] != "<nil>" {
			t.Errorf("reports of a watch that is open: %q", reports)
		}
		reports = nil
		mu.Unlock()
		cancel()
		running.Wait()
		const path = "/api/v1/namespaces/n/configmaps selector=a=b version="
		if diff := cmp.Diff([]string{path, path + "7"}, slices.Compact(lists)); diff != "" {
			t.Errorf("lists (-want +got):\n%s", diff)
		}
		if keys := store.ListKeys(); len(keys) != 1 || keys[0] != "n/a" || len(reports) > 0 {
			t.Errorf("the store has %q, and after the end there were reports: %q", keys, reports)
		}
	})
}
