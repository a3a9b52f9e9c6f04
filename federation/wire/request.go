package wire

import (
	"cmp"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"

	"github.com/hamlet-federation/coredns-federation/federation"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

// Subscribe returns the initial request of a session.
func Subscribe(context string) *rdpb.StreamRequest {
	return &rdpb.StreamRequest{ResourceUrl: ResourceURL, Context: context}
}

// Ack returns the request that acknowledges the response with the nonce, which
// may be empty.
func Ack(nonce, context string) *rdpb.StreamRequest {
	return answer(nonce, context, &status.Status{Code: int32(codes.OK)})
}

// Nack returns the request that refuses the response with the nonce, with the
// text of err, cut to MaxRefusalBytes.
func Nack(nonce, context string, err error) *rdpb.StreamRequest {
	message := strings.ToValidUTF8(cut(err.Error(), MaxRefusalBytes), "")
	return answer(nonce, context, &status.Status{Code: int32(codes.InvalidArgument), Message: message})
}

func answer(nonce, context string, status *status.Status) *rdpb.StreamRequest {
	return &rdpb.StreamRequest{ResourceUrl: ResourceURL, ResponseNonce: nonce, Status: status, Context: context}
}

// Request is what a consumer says.
type Request struct {
	Initial bool   // it subscribes; otherwise it answers the response with Nonce
	Nonce   string // of the response that is answered
	Context string // at most MaxContextBytes
	Refusal string // why the response was refused, at most MaxRefusalBytes, as the peer wrote it; "" for an ACK
}

// ParseRequest returns what m says. The error is always a
// [*federation.InvalidError].
//
// The resource_url may be missing in an answer, as it is in those of the public
// implementation. An answer without a status is an ACK, and a NACK without a
// message gets the name of its code.
func ParseRequest(m *rdpb.StreamRequest) (Request, error) {
	if m == nil {
		return Request{}, broken("request", federation.ReasonMissing, "required")
	}
	request := Request{
		Initial: m.GetResponseNonce() == "" && m.GetStatus() == nil,
		Nonce:   m.GetResponseNonce(),
		Context: m.GetContext(),
	}
	if code := codes.Code(m.GetStatus().GetCode()); code != codes.OK { //nolint:gosec // any number is some code
		request.Refusal = cmp.Or(cut(m.GetStatus().GetMessage(), MaxRefusalBytes), code.String())
	}
	if request.Initial && m.GetResourceUrl() == "" {
		return Request{}, broken("resource_url", federation.ReasonMissing, "required")
	}
	if invalid := cmp.Or(
		checkURL(m.GetResourceUrl()),
		text("context", request.Context, MaxContextBytes),
	); invalid != nil {
		return Request{}, invalid
	}
	return request, nil
}
