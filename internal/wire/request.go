package wire

import (
	"cmp"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

// Subscribe returns the initial request of a session.
func Subscribe(context string) *rdpb.StreamRequest {
	return &rdpb.StreamRequest{ResourceUrl: ResourceURL, Context: context}
}

// Answer returns the request that answers the response with the nonce, which may be empty: it
// acknowledges the response or, with a refusal, refuses it. A NACK carries the text of the refusal, cut to
// [MaxRefusalBytes].
func Answer(nonce, context string, refusal *federation.InvalidError) *rdpb.StreamRequest {
	return newAnswer(nonce, context, answerStatus(refusal))
}

func newAnswer(nonce, context string, status *status.Status) *rdpb.StreamRequest {
	return &rdpb.StreamRequest{ResourceUrl: ResourceURL, ResponseNonce: nonce, Status: status, Context: context}
}

// answerStatus returns the status of an ACK or, with a refusal, of a NACK.
func answerStatus(refusal *federation.InvalidError) *status.Status {
	if refusal == nil {
		return &status.Status{Code: int32(codes.OK)}
	}
	message := strings.ToValidUTF8(cutText(refusal.Error(), MaxRefusalBytes), "")
	return &status.Status{Code: int32(codes.InvalidArgument), Message: message}
}

// Request is a request of a consumer.
type Request struct {
	Initial bool   // the request subscribes; otherwise it answers the response with Nonce
	Nonce   string // of the answered response
	Context string // at most MaxContextBytes
	Refusal string // the peer's text of a NACK, at most MaxRefusalBytes; "" for an ACK
}

// ParseRequest returns the request in a message. The error is always a [*federation.InvalidError].
//
// The resource_url may be missing in an answer, because the public implementation leaves it out. An
// answer without a status is an ACK, and a NACK without a message gets the name of its code.
func ParseRequest(m *rdpb.StreamRequest) (Request, error) {
	return parseRequest(m, m.GetStatus(), ResourceURL, m.GetContext())
}

// requestMessage has what the requests of both versions share.
type requestMessage interface {
	proto.Message
	GetResourceUrl() string
	GetResponseNonce() string
}

// parseRequest parses the fields that both versions have, and the context of one.
func parseRequest(m requestMessage, status *status.Status, url, context string) (Request, error) {
	parsed := Request{Initial: m.GetResponseNonce() == "" && status == nil, Nonce: m.GetResponseNonce(), Context: context}
	if code := codes.Code(status.GetCode()); code != codes.OK { //nolint:gosec // any number is some code
		parsed.Refusal = cmp.Or(cutText(status.GetMessage(), MaxRefusalBytes), code.String())
	}
	invalid := cmp.Or(checkURL(m.GetResourceUrl(), url), limitError("context", limits.CheckText(context, MaxContextBytes)))
	switch {
	case !m.ProtoReflect().IsValid():
		invalid = federation.Invalidf("request", federation.ReasonMissing, "required")
	case parsed.Initial && m.GetResourceUrl() == "":
		invalid = federation.Invalidf("resource_url", federation.ReasonMissing, "required")
	}
	if invalid != nil {
		return Request{}, invalid
	}
	return parsed, nil
}
