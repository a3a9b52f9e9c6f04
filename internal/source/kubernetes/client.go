package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hamlet-federation/coredns-federation/internal/kube"
)

const (
	userAgent  = "hamlet-federation-owner"
	oneRequest = 5 * time.Second // bounds a request that is not a list or a watch
)

// getRaw returns what the server has at a path, in the media type accept.
func getRaw(ctx context.Context, c *kube.Client, path, accept string) ([]byte, error) {
	gv := schema.GroupVersion{Version: "v1"}
	api, err := c.Group(gv)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, oneRequest)
	defer cancel()
	body, err := api.Get().AbsPath(path).SetHeader("Accept", accept).MaxRetries(0).Do(ctx).Raw()
	var status metav1.Status
	if err != nil && json.Unmarshal(body, &status) == nil && status.Kind == "Status" {
		err = &apierrors.StatusError{ErrStatus: status} // the client does not decode a raw body
	}
	return body, err
}

// readJSON reads the JSON at a path into v. Without such a path, v stays as it is.
func readJSON(ctx context.Context, c *kube.Client, path string, v any) error {
	body, err := getRaw(ctx, c, path, "application/json")
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// checkReady returns why the API server cannot be asked, or nil.
func checkReady(ctx context.Context, c *kube.Client) error {
	_, err := getRaw(ctx, c, "/readyz", "text/plain")
	switch {
	case err == nil, apierrors.IsForbidden(err): // a server that refuses the request is there
		return nil
	case apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err):
		return errors.New("it is not ready: its /readyz says why")
	default:
		return err
	}
}
