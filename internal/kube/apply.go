package kube

import (
	"context"
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

// ApplyStatus applies the status of an object as a field manager, without force: fields that another
// manager has are a conflict, and an object that was replaced by another of the same name as well.
// The limit bounds the requests.
func ApplyStatus(
	ctx context.Context, api rest.Interface, o metav1.Object, gv schema.GroupVersion, kind, resource, manager string, status any, limit flowcontrol.RateLimiter,
) error {
	body, err := json.Marshal(map[string]any{
		"apiVersion": gv.String(), "kind": kind,
		"metadata": map[string]any{"name": o.GetName(), "namespace": o.GetNamespace(), "uid": o.GetUID()}, "status": status,
	})
	if err != nil {
		return err
	}
	return api.Patch(types.ApplyYAMLPatchType).Namespace(o.GetNamespace()).Resource(resource).Name(o.GetName()).SubResource("status").
		Param("fieldManager", manager).Body(body).Throttle(limit).Timeout(oneRequest).Do(ctx).Error()
}
