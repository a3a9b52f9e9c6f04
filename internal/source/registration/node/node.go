// Package node holds what programs register: a [Node] is one place at which a service is provided, and
// a [URI] is its address. The package is pure: texts of providers and stores go in, and nodes and
// services come out.
package node

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
)

// The limits of one node, beside those of package federation.
const (
	maxMetadata         = 16      // pairs
	maxMetadataBytes    = 4 << 10 // of all keys and values
	maxDescriptionBytes = 256     // as every endpoint of a service may have one
	maxTTL              = 366 * 24 * time.Hour
	maxWordBytes        = 512      // of the name of a rule or an owner
	maxStoredBytes      = 16 << 10 // of a node as stores keep it; one at all limits takes half of that
)

// Key identifies a node. It is comparable.
type Key struct {
	Service federation.FQDN
	URI     URI
}

// StoreText returns the key in the form that ParseKey reads: SERVICE/URI.
func (k Key) StoreText() string { return k.Service.String() + "/" + k.URI.String() }

// ParseKey returns the key of a text that [Key.StoreText] has returned.
func ParseKey(text string) (Key, error) {
	service, uri, _ := strings.Cut(text, "/")
	name, err := federation.ParseFQDN(service)
	if err != nil {
		return Key{}, err
	}
	at, err := parseAbsolute(uri)
	return Key{name, at}, err
}

// Node is a place at which a provider provides a service. It is never changed once it
// is shared.
type Node struct {
	Key

	Instance    string            // the ID that the provider has given; empty when the node is an instance of its own
	Metadata    []federation.Pair // as federation.Pairs returns them
	Description string
	TTL         time.Duration

	Provider federation.ID // who has registered the node
	Rule     string        // the name of the rule that allows the node
	Owner    string        // the name of the owner to which the provider is connected, or was last
	Stream   uint64        // the provider's stream to that owner; random
	Since    time.Time     // when the node was registered; in UTC, in whole seconds
}

// The rules that a node can break, beside those of URIs and of package federation.
var (
	errNoService  = errors.New("service: required")
	errNoURI      = errors.New("uri: required")
	errTTL        = fmt.Errorf("ttl: must be more than 0 and at most %s", maxTTL)
	errNoProvider = errors.New("provider: required")
	errSince      = errors.New("since: must be in UTC, in whole seconds")
	errMetadata   = fmt.Errorf("metadata: more than %d bytes of keys and values", maxMetadataBytes)
	errOrder      = errors.New("metadata: keys are not sorted, or not different")
	errPairs      = fmt.Errorf("metadata: more than %d entries", maxMetadata)
)

// Validate returns the first rule that the node breaks, or nil. The error quotes what it shows of
// the provider's text. A valid node can be stored and rendered.
func (n *Node) Validate() error {
	switch {
	case n.Service.IsZero():
		return errNoService
	case n.URI == URI{}:
		return errNoURI
	case n.TTL <= 0 || n.TTL > maxTTL:
		return errTTL
	case n.Provider == federation.ID{}:
		return errNoProvider
	case n.Since.Location() != time.UTC || n.Since.Nanosecond() != 0 || n.Since.Unix() < 0 || !timestamppb.New(n.Since).IsValid():
		return errSince
	}
	if err := cmp.Or(
		limits.CheckText(n.Description, maxDescriptionBytes).Of("description"),
		limits.CheckText(n.Rule, maxWordBytes).Of("rule"),
		limits.CheckText(n.Owner, maxWordBytes).Of("owner"),
	); err != nil {
		return err
	}
	if n.Instance != "" {
		if err := checkInstance(n.Service, n.Instance); err != nil {
			return err
		}
	}
	return checkMetadata(n.Metadata)
}

// checkInstance returns why the ID cannot be the name of an instance below the service, or nil. It
// refuses an ID that is a name in another spelling, because clients build the name from the ID.
func checkInstance(service federation.FQDN, id string) error {
	label, err := federation.ParseLabel(id)
	if err != nil {
		return fmt.Errorf("instance: %w: %s", err, safetext.Quote(id))
	}
	if label.String() != id {
		return fmt.Errorf("instance: %s must be spelled %s", safetext.Quote(id), safetext.Quote(label.String()))
	}
	if _, err := federation.ParseFQDN(id + "." + service.String()); err != nil {
		return fmt.Errorf("instance: below the name of the service: %w", err)
	}
	return nil
}

func checkMetadata(pairs []federation.Pair) error {
	if len(pairs) > maxMetadata {
		return errPairs
	}
	total := 0
	for i, pair := range pairs {
		if err := cmp.Or(
			limits.CheckText(pair.Key, limits.KeyBytes).Of("key"), limits.CheckText(pair.Value, maxMetadataBytes).Of("value"),
		); err != nil {
			return fmt.Errorf("metadata[%s].%w", safetext.Quote(pair.Key), err)
		}
		if i > 0 && pairs[i-1].Key >= pair.Key {
			return errOrder
		}
		total += len(pair.Key) + len(pair.Value)
	}
	if total > maxMetadataBytes {
		return errMetadata
	}
	return nil
}

// AppendStored returns b with the node appended, as stores keep it. The node must be valid.
func (n *Node) AppendStored(b []byte) []byte {
	stored := registrationv1.Stored{
		Service: n.Service.String(), Uri: n.URI.String(), Instance: n.Instance, Description: n.Description,
		Ttl: durationpb.New(n.TTL), Provider: n.Provider.String(), Rule: n.Rule, Owner: n.Owner,
		Since: timestamppb.New(n.Since), Stream: n.Stream,
	}
	if len(n.Metadata) > 0 {
		stored.Metadata = make(map[string]string, len(n.Metadata))
		for _, pair := range n.Metadata {
			stored.Metadata[pair.Key] = pair.Value
		}
	}
	b, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(b, &stored)
	if err != nil { // for invalid UTF-8 alone
		panic(fmt.Sprintf("node %s is not valid: %v", n.URI, err))
	}
	return b
}

// ParseStored returns a node that AppendStored has written, and fails for everything else. Equal
// nodes have equal bytes. Fields that a later version may have added are left out.
func ParseStored(data []byte) (*Node, error) {
	if len(data) > maxStoredBytes {
		return nil, fmt.Errorf("node of %d bytes, the limit is %d", len(data), maxStoredBytes)
	}
	var stored registrationv1.Stored
	if err := proto.Unmarshal(data, &stored); err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	n, err := decodeStored(&stored)
	if err == nil {
		err = n.Validate()
	}
	if err != nil {
		return nil, fmt.Errorf("node %s of %s: %w", safetext.Quote(stored.GetUri()), safetext.Quote(stored.GetService()), err)
	}
	return n, nil
}

// The rules that only a stored node can break.
var (
	errSpelling = errors.New("service, uri or provider is not spelled as an owner does")
	errStamp    = errors.New("ttl or since is out of range")
)

func decodeStored(stored *registrationv1.Stored) (*Node, error) {
	service, err := federation.ParseFQDN(stored.GetService())
	if err != nil {
		return nil, err
	}
	uri, err := parseAbsolute(stored.GetUri())
	if err != nil {
		return nil, err
	}
	provider, err := federation.ParseID(stored.GetProvider())
	if err != nil {
		return nil, err
	}
	// Else one key could be there in two spellings.
	if service.String() != stored.GetService() || uri.String() != stored.GetUri() || provider.String() != stored.GetProvider() {
		return nil, errSpelling
	}
	if !stored.GetTtl().IsValid() || !stored.GetSince().IsValid() {
		return nil, errStamp
	}
	return &Node{
		Key: Key{service, uri}, Instance: stored.GetInstance(), Metadata: federation.Pairs(stored.GetMetadata()),
		Description: stored.GetDescription(), TTL: stored.GetTtl().AsDuration(), Provider: provider, Rule: stored.GetRule(), Owner: stored.GetOwner(),
		Stream: stored.GetStream(), Since: stored.GetSince().AsTime(),
	}, nil
}
