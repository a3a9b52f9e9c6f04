package wire

import (
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// AvailabilityHeader is the request header with which a consumer says that it understands
// [federation.Unavailable] and [federation.Available]: its value is AvailabilityTold. An
// owner sends these to no other consumer, and ends the stream instead. In the response
// header AvailabilityWaiting says that the owner is unavailable as the stream opens.
const (
	AvailabilityHeader  = "federation-availability"
	AvailabilityTold    = "told"
	AvailabilityWaiting = "waiting"
)

// encodeAvailability returns the status that stands for a service in the message of the event.
// It does not say why the owner is unavailable: the reason is for the owner's log.
func encodeAvailability(event federation.Event) (*anypb.Any, error) {
	if event.Operation == federation.Available {
		s := &status.Status{Message: event.Header.Path}
		if event.Header.Resume != "" {
			selection, err := anypb.New(wrapperspb.String(event.Header.Resume))
			if err != nil {
				return nil, err
			}
			s.Details = []*anypb.Any{selection}
		}
		return anypb.New(s)
	}
	return anypb.New(&status.Status{Code: int32(codes.Unavailable), Message: "the catalog is not available just now"})
}

// saysAvailability reports whether a status stands for a service in the response.
func saysAvailability(m response) bool { return m.GetResource().MessageIs((*status.Status)(nil)) }

// decodeAvailability returns the event that the status stands for.
func decodeAvailability(m response, url string) (federation.Event, *federation.InvalidError) {
	if invalid := checkURL(m.GetResourceUrl(), url); invalid != nil {
		return federation.Event{}, invalid
	}
	var s status.Status
	if m.GetResource().UnmarshalTo(&s) != nil {
		return federation.Event{}, undecodable()
	}
	switch codes.Code(s.GetCode()) { //nolint:exhaustive,gosec // others say nothing of a catalog
	case codes.OK:
		return federation.Event{Operation: federation.Available, Header: federation.Header{Path: s.GetMessage(), Resume: resumeIn(&s)}}, nil
	case codes.Unavailable:
		return federation.Event{Operation: federation.Unavailable}, nil
	default:
		return federation.Event{}, federation.Invalidf("resource.code", federation.ReasonUndecodable, "%d is neither OK (0) nor UNAVAILABLE (14)", s.GetCode())
	}
}

// resumeIn returns what the details of the status say in the form of ResumeHeader.
func resumeIn(s *status.Status) string {
	for _, detail := range s.GetDetails() {
		var selection wrapperspb.StringValue
		if detail.MessageIs(&selection) && detail.UnmarshalTo(&selection) == nil {
			return selection.GetValue()
		}
	}
	return ""
}
