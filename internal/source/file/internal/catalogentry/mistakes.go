package catalogentry

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
)

// The bounds of what findMistakes tries.
const (
	maxProbes  = 20_000           // in a service
	maxEntries = limits.Endpoints // of a list or a map: no other has a higher limit
)

// findMistakes returns the mistakes in m, up to a number of most. First is the error that package
// wire has returned for m. Package wire stops at the first mistake, as a consumer has no use for
// more, but somebody who mends a file wants to see all. So findMistakes passes each piece of m to
// wire separately, in a service that has no other mistake.
func findMistakes(m *typespb.FederatedService, policy wire.AddressPolicy, first error, most int) []*federation.InvalidError {
	good := &typespb.FederatedService{
		Name:      "probe",
		Fqdn:      "probe.example",
		Endpoints: []*typespb.FederatedService_Endpoint{{Address: "192.0.2.1", Port: 1}},
		Instances: []*typespb.FederatedService_Instance{{Id: "probe", Protocol: "TCP"}},
	}
	var found []*federation.InvalidError
	told := make(map[string]bool) // a piece is a part of larger ones
	probes := 0
	tryPieces(m.ProtoReflect(), good.ProtoReflect(), func(indices []int, probe protoreflect.Message) bool {
		if probes++; len(found) >= most || probes > maxProbes {
			return false
		}
		service, _ := probe.Interface().(*typespb.FederatedService)
		_, err := wire.DecodeService(service, policy)
		invalid, ok := errors.AsType[*federation.InvalidError](err)
		if !ok {
			return false
		}
		invalid.Field = withIndices(invalid.Field, indices)
		if key := invalid.Field + " " + invalid.Rule; !told[key] {
			told[key] = true
			found = append(found, invalid)
		}
		return true
	})
	if invalid, ok := errors.AsType[*federation.InvalidError](first); ok && len(found) == 0 {
		found = append(found, invalid)
	}
	return found
}

// withIndices returns the path of a field with its first zero indices replaced by
// indices. Keys of maps, which may look like an index, come after all of them.
func withIndices(path string, indices []int) string {
	var done strings.Builder
	for _, i := range indices {
		before, after, ok := strings.Cut(path, "[0]")
		if !ok {
			break // the list itself is wrong
		}
		fmt.Fprintf(&done, "%s[%d]", before, i)
		path = after
	}
	return done.String() + path
}

// tryPieces calls try with copies of good in which one field has the value of m. If try returns
// true, which means that the field is wrong, and the field is a list or a map, tryPieces does the
// same with each entry of the field alone. The entry then stands first in its list; indices say
// where it stands in m, from the outermost list to the innermost.
func tryPieces(m, good protoreflect.Message, try func(indices []int, probe protoreflect.Message) bool) {
	with := func(field protoreflect.FieldDescriptor, value protoreflect.Value) protoreflect.Message {
		probe := proto.Clone(good.Interface()).ProtoReflect()
		probe.Set(field, value)
		return probe
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if !m.Has(field) {
			probe := proto.Clone(good.Interface()).ProtoReflect()
			probe.Clear(field)
			try(nil, probe)
			continue
		}
		if !try(nil, with(field, m.Get(field))) {
			continue
		}
		switch {
		case field.IsMap():
			pairs := m.Get(field).Map()
			var keys []protoreflect.MapKey
			pairs.Range(func(key protoreflect.MapKey, _ protoreflect.Value) bool {
				keys = append(keys, key)
				return true
			})
			slices.SortFunc(keys, func(a, b protoreflect.MapKey) int { return strings.Compare(a.String(), b.String()) })
			for _, key := range keys[:min(len(keys), maxEntries)] {
				alone := m.New().NewField(field)
				alone.Map().Set(key, pairs.Get(key))
				try(nil, with(field, alone))
			}
		case field.IsList():
			list := m.Get(field).List()
			single := func(value protoreflect.Value) protoreflect.Message {
				alone := m.New().NewField(field)
				alone.List().Append(value)
				return with(field, alone)
			}
			for j := range min(list.Len(), maxEntries) {
				if !try([]int{j}, single(list.Get(j))) || field.Message() == nil {
					continue
				}
				tryPieces(list.Get(j).Message(), good.Get(field).List().Get(0).Message(),
					func(indices []int, element protoreflect.Message) bool {
						return try(append([]int{j}, indices...), single(protoreflect.ValueOfMessage(element)))
					})
			}
		}
	}
}
