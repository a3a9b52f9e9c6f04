package registration

import (
	"context"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/internal/table"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/node"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
)

// The bounds of lists. Each remembers every key once at most.
const (
	maxLists  = 16
	listChunk = 256     // nodes that are read under one lock
	maxBehind = 1 << 16 // keys that one may be behind, beside those of the nodes there are
)

// list is what somebody has yet to be told who watches nodes.
type list struct {
	of    federation.FQDN       // of which service; zero: all
	watch bool                  // whether changes are wanted
	wake  chan struct{}         // holds one value when keys is not empty
	keys  map[node.Key]struct{} // that have changed; guarded by the mutex of the source
	lost  bool                  // whether there were too many of them; likewise
}

// note is called with the mutex of the source held. There are so many nodes.
func (l *list) note(key node.Key, nodes int) {
	if !l.watch || l.lost || !l.of.IsZero() && l.of != key.Service {
		return
	}
	l.keys[key] = struct{}{}
	if len(l.keys) > maxBehind+nodes { // it does not read, and nodes come and go
		l.keys, l.lost = nil, true
	}
	rouse(l.wake)
}

var errBehind = status.Error(codes.ResourceExhausted, "you read more slowly than nodes change: list them again")

var errNoObserver = status.Error(codes.PermissionDenied, "the rules of this owner do not name you as an observer")

// List implements registrationv1.RegistrationServiceServer.
func (s *Source) List(request *registrationv1.ListRequest, stream registrationv1.RegistrationService_ListServer) error {
	ctx := stream.Context()
	ids, _, err := callerOf(ctx)
	if err != nil {
		return err
	}
	if !s.rules.Load().Observes(ids) {
		return errNoObserver
	}
	l := &list{watch: request.GetWatch(), wake: make(chan struct{}, 1), keys: make(map[node.Key]struct{})}
	if request.GetService() != "" {
		if l.of, err = federation.ParseFQDN(request.GetService()); err != nil {
			return status.Errorf(codes.InvalidArgument, "service %s: %v", federation.Quote(request.GetService()), err)
		}
	}
	select {
	case <-s.began:
	case <-ctx.Done():
		return endOf(ctx)
	}
	keys, err := s.enlist(l)
	if err != nil {
		return err
	}
	defer s.delist(l)
	if err := s.list(stream, keys, false); err != nil || !l.watch {
		return err
	}
	if err := stream.Send(&registrationv1.ListResponse{Complete: true}); err != nil {
		return err
	}
	return s.follow(ctx, l, ids, stream)
}

// enlist returns the keys there are, and has the list told of what changes.
func (s *Source) enlist(l *list) ([]node.Key, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, status.Error(codes.Unavailable, "the owner is about to end")
	case len(s.lists) >= maxLists:
		return nil, status.Errorf(codes.ResourceExhausted, "there are %d lists already", maxLists)
	}
	s.lists[l] = struct{}{}
	return s.table.Keys(l.of), nil
}

func (s *Source) delist(l *list) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.lists, l)
}

// follow tells what changes until the stream or the source ends, or the caller may not
// see it any more.
func (s *Source) follow(ctx context.Context, l *list, ids []federation.ID, stream registrationv1.RegistrationService_ListServer) error {
	for {
		select {
		case <-ctx.Done():
			return endOf(ctx)
		case <-s.closing:
			return status.Error(codes.Unavailable, "the owner ends")
		case <-l.wake:
		}
		if !s.rules.Load().Observes(ids) {
			return errNoObserver
		}
		s.mu.Lock()
		keys, lost := slices.Collect(maps.Keys(l.keys)), l.lost
		l.keys = make(map[node.Key]struct{})
		s.mu.Unlock()
		if lost {
			return errBehind
		}
		if err := s.list(stream, keys, true); err != nil {
			return err
		}
	}
}

// list tells of the keys: of those without a node with gone, or not at all.
func (s *Source) list(stream registrationv1.RegistrationService_ListServer, keys []node.Key, gone bool) error {
	var responses []*registrationv1.ListResponse
	for chunk := range slices.Chunk(keys, listChunk) {
		responses = responses[:0]
		s.mu.Lock()
		for _, key := range chunk {
			if l, ok := s.table.Listed(key); ok {
				responses = append(responses, listed(l))
			} else if gone {
				responses = append(responses, &registrationv1.ListResponse{Service: nameOf(key), Node: key.URI.String(), Gone: true})
			}
		}
		s.mu.Unlock()
		for _, response := range responses {
			if err := stream.Send(response); err != nil {
				return err
			}
		}
	}
	return nil
}

func nameOf(key node.Key) string { return strings.TrimSuffix(key.Service.String(), ".") }

func listed(l table.Listed) *registrationv1.ListResponse {
	response := &registrationv1.ListResponse{
		Service: nameOf(l.Key), Node: l.URI.String(), Instance: l.Instance, Provider: l.Provider.String(), Rule: l.Rule,
		Owner: l.Owner, Since: timestamppb.New(l.Since), Ttl: durationpb.New(l.TTL), Connected: l.Connected, Old: l.Old,
	}
	if len(l.Metadata) > 0 {
		response.Metadata = make(map[string]string, len(l.Metadata))
		for _, pair := range l.Metadata {
			response.Metadata[pair.Key] = pair.Value
		}
	}
	if !l.Until.IsZero() {
		response.Until = timestamppb.New(l.Until)
	}
	return response
}
