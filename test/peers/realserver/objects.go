package realserver

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
)

var applyOptions = metav1.ApplyOptions{FieldManager: "test", Force: true}

// Apply applies objects in YAML, with "---" between two. Unlike kubectl it applies
// their status as well, as a controller or a kubelet would: a Node is ready, a pod
// has an address, and a Service one of a load balancer when the text says so.
func (c *Cluster) Apply(ctx context.Context, text string) error {
	return c.each(text, func(object *unstructured.Unstructured) error { return c.applyObject(ctx, object) })
}

// ApplyObjects is Apply for objects of the types of k8s.io/api.
func (c *Cluster) ApplyObjects(ctx context.Context, objects ...runtime.Object) error {
	for _, object := range objects {
		kinds, _, err := scheme.Scheme.ObjectKinds(object)
		if err != nil {
			return err
		}
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return err
		}
		u := &unstructured.Unstructured{Object: fields}
		u.SetGroupVersionKind(kinds[0])
		if err := c.applyObject(ctx, u); err != nil {
			return err
		}
	}
	return nil
}

// Delete deletes objects in YAML, of which only kinds, namespaces and names count. It
// does not wait until they are gone. There is no kubelet that would end a pod, so it
// gets no time for that; one that goes with its namespace needs
// terminationGracePeriodSeconds 0.
func (c *Cluster) Delete(ctx context.Context, text string) error {
	return c.each(text, func(object *unstructured.Unstructured) error {
		client, err := c.resource(object)
		if err != nil {
			return err
		}
		tried := false
		return patiently(ctx, func() error {
			err := client.Delete(ctx, object.GetName(), metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
			if tried && apierrors.IsNotFound(err) {
				return nil // the one before has done it
			}
			tried = true
			return err
		})
	})
}

// each calls f for each of the objects in a text, and stops at an error.
func (c *Cluster) each(text string, f func(*unstructured.Unstructured) error) error {
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(text)), 4096)
	for {
		object := new(unstructured.Unstructured)
		switch err := decoder.Decode(&object.Object); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case len(object.Object) == 0:
			continue
		}
		if err := f(object); err != nil {
			return fmt.Errorf("%s %s/%s: %w", object.GetKind(), object.GetNamespace(), object.GetName(), err)
		}
	}
}

// applyObject applies an object, and then its status if it has one.
func (c *Cluster) applyObject(ctx context.Context, object *unstructured.Unstructured) error {
	client, err := c.resource(object)
	if err != nil {
		return err
	}
	object.SetManagedFields(nil)
	delete(object.Object["metadata"].(map[string]any), "creationTimestamp")
	err = patiently(ctx, func() error {
		_, err := client.Apply(ctx, object.GetName(), object, applyOptions)
		return err
	})
	if status, ok := object.Object["status"].(map[string]any); err == nil && ok && len(status) > 0 {
		err = patiently(ctx, func() error {
			_, err := client.ApplyStatus(ctx, object.GetName(), object, applyOptions)
			return err
		})
	}
	return err
}

// patiently makes a request again while the API server has no answer of etcd.
func patiently(ctx context.Context, request func() error) (err error) {
	failed := until(ctx, func() error {
		err = request()
		if apierrors.IsInternalError(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsServiceUnavailable(err) {
			return err
		}
		return nil
	})
	return cmp.Or(failed, err)
}

// resource returns the client for objects like this one. The namespace of one that
// says none is default.
func (c *Cluster) resource(object *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	kind := object.GroupVersionKind()
	mapping, err := c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return c.Dynamic.Resource(mapping.Resource), nil
	}
	if object.GetNamespace() == "" {
		object.SetNamespace(metav1.NamespaceDefault)
	}
	return c.Dynamic.Resource(mapping.Resource).Namespace(object.GetNamespace()), nil
}
