package wire

import (
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	typespb1 "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha1"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
)

// TestRepeatedFields compares the tables with the definitions: no repeated field is
// without a limit.
func TestRepeatedFields(t *testing.T) {
	expectFields(t, (*typespb.FederatedService)(nil).ProtoReflect().Descriptor(), serviceFields[:])
	expectFields(t, (*typespb1.FederatedService)(nil).ProtoReflect().Descriptor(), serviceFieldsV1Alpha1[:])
}

func expectFields(t *testing.T, message protoreflect.MessageDescriptor, table []repeatedField) {
	t.Helper()
	for i := range message.Fields().Len() {
		field := message.Fields().Get(i)
		if field.Cardinality() != protoreflect.Repeated {
			continue
		}
		number := int(field.Number())
		if number >= len(table) || table[number].name != string(field.Name()) || table[number].limit == 0 {
			t.Errorf("%s has no limit", field.FullName())
			continue
		}
		if field.IsList() && field.Message() != nil {
			expectFields(t, field.Message(), table[number].entries)
		}
	}
	for number, entry := range table {
		field := message.Fields().ByNumber(protoreflect.FieldNumber(number))
		if entry.name != "" && (field == nil || string(field.Name()) != entry.name) {
			t.Errorf("%s has no field %s with number %d", message.FullName(), entry.name, number)
		}
	}
}
