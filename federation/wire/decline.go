package wire

import (
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"

	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

// Decline returns the request with which an owner answers a response of its
// consumer, who is an owner as well: nothing is wrong with the resource, but
// nobody here takes it. A context that is too long is left out.
func Decline(m *rdpb.StreamResponse) *rdpb.StreamRequest {
	context := m.GetContext()
	if text("context", context, MaxContextBytes) != nil {
		context = ""
	}
	return answer(m.GetNonce(), context, &status.Status{
		Code: int32(codes.Unimplemented), Message: "this owner takes no services from its consumers",
	})
}
