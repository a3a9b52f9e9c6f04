package export

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/mcs"
)

// exported returns the case with a ServiceExport.
func (w *testCase) exported() *testCase {
	w.export = &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", CreationTimestamp: metav1.Unix(1, 0)}}
	return w
}

// exportLabel returns the label of the export and the warnings of its verdict.
func (w *testCase) exportLabel(t *testing.T) (label string, warnings []Finding) {
	t.Helper()
	v := w.rules.Translate(w.input())
	if v.Service == nil {
		t.Fatal(v.Refusal)
	}
	if i := slices.IndexFunc(v.Service.Labels, func(p federation.Pair) bool { return p.Key == mcs.Label }); i >= 0 {
		label = v.Service.Labels[i].Value
	}
	return label, v.Warnings
}

// TestExportLabelFits has as many labels as a service may have, and one less, and then a
// ServiceExport with annotations that no label can hold.
func TestExportLabelFits(t *testing.T) {
	w := withNodes(1, "http").exported()
	w.service.Labels = make(map[string]string)
	for i := range limits.Labels {
		key := fmt.Sprintf("k%d", i)
		w.rules.Publish.Labels = append(w.rules.Publish.Labels, key)
		w.service.Labels[key] = "v"
	}
	if label, warnings := w.exportLabel(t); label != "" || len(warnings) != 1 ||
		warnings[0].Message != "the Service shop/web is not described to those who make ServiceImports: the Service has 64 labels without it" {
		t.Errorf("with %d labels: %q, %v", limits.Labels, label, warnings)
	}
	delete(w.service.Labels, "k0")
	if label, warnings := w.exportLabel(t); label == "" || len(warnings) > 0 {
		t.Errorf("with a label less: %q, %v", label, warnings)
	}
	w.export.Spec.ExportedAnnotations = map[string]string{"a": strings.Repeat("x", limits.ValueBytes)}
	if label, warnings := w.exportLabel(t); label != "" || len(warnings) != 1 || !strings.Contains(warnings[0].Message, "the limit is 16384") {
		t.Errorf("with large annotations: %q, %v", label, warnings)
	}
}

// TestExportLabelStays has pods and nodes that come and go, of which the label says nothing.
func TestExportLabelStays(t *testing.T) {
	for _, grow := range []func(n int) *testCase{withPods, func(n int) *testCase { return withNodes(n, "http") }} {
		few, _ := grow(1).exported().exportLabel(t)
		if many, _ := grow(2000).exported().exportLabel(t); many != few || many == "" {
			t.Errorf("with one: %s\nwith many: %s", few, many)
		}
	}
}
