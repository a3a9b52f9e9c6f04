// Package kube is what reads and writes Kubernetes, for whatever the objects mean: a [Client] for one
// API server, a [Watch] that follows the objects of a resource, and an [Election] of the replica that
// writes.
//
// Everything here works on with a server that is away, and says so: errors go to functions of the
// caller, and [Client.ExplainError] makes sentences of them. What client-go logs goes to the logger
// of the context (klog.NewContext), which callers set to none, because they report it themselves.
package kube
