package wire

import (
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"

	"github.com/hamlet-federation/coredns-federation/internal/limits"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

// DeclineResponse returns the request with which an owner answers a response from one of
// its consumers that is an owner as well: Unimplemented, as nothing is wrong with
// the resource, but this owner accepts none. A context that is too long is left
// out.
func DeclineResponse(m *rdpb.StreamResponse) *rdpb.StreamRequest {
	context := m.GetContext()
	if limits.CheckText(context, MaxContextBytes) != nil {
		context = ""
	}
	return newAnswer(m.GetNonce(), context, &status.Status{
		Code: int32(codes.Unimplemented), Message: "this owner takes no services from its consumers",
	})
}
