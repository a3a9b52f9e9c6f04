package realserver

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/mcs-api/config/crd"
	"sigs.k8s.io/yaml"
)

var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// ServiceExports is the name of their CustomResourceDefinition, for Uninstall.
const ServiceExports = "serviceexports.multicluster.x-k8s.io"

// InstallMCS installs the MCS API, or changes which of its versions are served:
// v1alpha1, v1beta1 or both. The last of them is the one that is stored.
func (c *Cluster) InstallMCS(ctx context.Context, versions ...string) error {
	var all []*unstructured.Unstructured
	for _, text := range [][]byte{crd.ServiceExportCRD, crd.ServiceImportCRD} {
		object := new(unstructured.Unstructured)
		if err := yaml.Unmarshal(text, &object.Object); err != nil {
			return err
		}
		if err := serve(object, versions); err != nil {
			return err
		}
		all = append(all, object)
	}
	return c.Install(ctx, all...)
}

// serve has a CRD serve some of its versions, and store the last of these.
func serve(object *unstructured.Unstructured, versions []string) error {
	all, _, err := unstructured.NestedSlice(object.Object, "spec", "versions")
	if err != nil {
		return err
	}
	for _, version := range all {
		v := version.(map[string]any)
		v["served"] = slices.Contains(versions, v["name"].(string))
		v["storage"] = v["name"] == versions[len(versions)-1]
	}
	return unstructured.SetNestedSlice(object.Object, all, "spec", "versions")
}

// Install applies CRDs, and waits until all of them are served.
func (c *Cluster) Install(ctx context.Context, all ...*unstructured.Unstructured) error {
	for _, object := range all {
		if _, err := c.Dynamic.Resource(crdResource).Apply(ctx, object.GetName(), object, applyOptions); err != nil {
			return err
		}
	}
	for _, object := range all {
		if err := until(ctx, func() error { return c.served(ctx, object.GetName()) }); err != nil {
			return err
		}
	}
	c.mapper.Reset()
	return nil
}

// served returns why objects of a CRD cannot be read yet in all versions that are served.
func (c *Cluster) served(ctx context.Context, name string) error {
	got, err := c.Dynamic.Resource(crdResource).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	conditions, _, err := unstructured.NestedSlice(got.Object, "status", "conditions")
	if err != nil {
		return err
	}
	established := func(condition any) bool {
		m, ok := condition.(map[string]any)
		return ok && m["type"] == "Established" && m["status"] == "True"
	}
	if !slices.ContainsFunc(conditions, established) {
		return fmt.Errorf("%s is not established: %v", name, conditions)
	}
	versions, _, err := unstructured.NestedSlice(got.Object, "spec", "versions")
	for _, version := range versions {
		if v := version.(map[string]any); err == nil && v["served"] == true {
			of := schema.ParseGroupResource(name).WithVersion(v["name"].(string))
			_, err = c.Dynamic.Resource(of).List(ctx, metav1.ListOptions{Limit: 1})
		}
	}
	return err
}

// Uninstall deletes a CRD by name, with all objects of it, and waits until it is gone.
func (c *Cluster) Uninstall(ctx context.Context, name string) error {
	if err := c.Dynamic.Resource(crdResource).Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	err := until(ctx, func() error {
		_, err := c.Dynamic.Resource(crdResource).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("%s is still there, %w", name, err)
	})
	c.mapper.Reset()
	return err
}

// until calls condition until it returns nil, and returns its error after a minute.
func until(ctx context.Context, condition func() error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		err := condition()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-ticker.C:
		}
	}
}
