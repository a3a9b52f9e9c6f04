package setting

import (
	"reflect"
	"slices"
	"strings"
)

// Schema is what a value of a file may be, in the words of JSON Schema, by which editors complete
// and check what is written. It does not know every rule: 'federationctl check' does.
type Schema struct {
	Draft       string             `json:"$schema,omitempty"`
	Description string             `json:"description,omitempty"`
	Default     string             `json:"default,omitempty"`
	Type        []string           `json:"type,omitempty"`
	Properties  map[string]*Schema `json:"properties,omitempty"`
	Others      any                `json:"additionalProperties,omitempty"` // of a mapping: false, or the schema of each value
	Required    []string           `json:"required,omitempty"`
	OneOf       []*Schema          `json:"oneOf,omitempty"`
	Items       *Schema            `json:"items,omitempty"`

	keys []string // of the mapping, or of those in the list, in the order of the struct
}

// SchemaOf returns the schema of a value that package problem reads into a type, by the tags that
// it reads values by.
func SchemaOf(of reflect.Type, tag reflect.StructTag) *Schema {
	s := &Schema{Description: tag.Get("doc"), Default: tag.Get("default")}
	switch kind := of.Kind(); {
	case kind == reflect.Pointer:
		return SchemaOf(of.Elem(), tag)
	case kind == reflect.Slice:
		s.Type, s.Items = []string{"array"}, SchemaOf(of.Elem(), tag)
		s.Items.Description, s.keys = "", s.Items.keys
	case tag.Get("as") != "" && tag.Get("quoted") == "":
		s.Type = []string{"string", "number", "boolean"} // as YAML reads what has no quotes
	case tag.Get("as") != "" || kind == reflect.String:
		s.Type = []string{"string"}
	case kind == reflect.Map:
		s.Type, s.Others = []string{"object"}, SchemaOf(of.Elem(), "")
	default:
		s.Type, s.Others, s.Properties, s.Required = []string{"object"}, false, make(map[string]*Schema), strings.Fields(tag.Get("needs"))
		for _, field := range reflect.VisibleFields(of) {
			if key := field.Tag.Get("yaml"); key != "" {
				s.keys, s.Properties[key] = append(s.keys, key), SchemaOf(field.Type, field.Tag)
			}
		}
		for key := range strings.FieldsSeq(tag.Get("one")) {
			s.OneOf = append(s.OneOf, &Schema{Required: []string{key}})
		}
		if tag.Get("short") != "" {
			s.Type = append(s.Type, "string")
		}
	}
	return s
}

// Settings returns the keys of a file with the schema, in the order of the struct, behind those of other
// files. Keys that have one name and mean the same in several places are one setting.
func (s *Schema) Settings(in string, others ...Setting) []Setting {
	s.addSettings(in, "", &others)
	return others
}

func (s *Schema) addSettings(in, above string, all *[]Setting) {
	mapping := s
	if s.Items != nil {
		mapping = s.Items
	}
	for _, key := range s.keys {
		of, path, required := mapping.Properties[key], above+key, slices.Contains(mapping.Required, key)
		same := slices.IndexFunc(*all, func(known Setting) bool {
			return known.Doc == of.Description && known.Default == of.Default && strings.HasSuffix("."+known.Paths[0], "."+key)
		})
		if same < 0 {
			*all = append(*all, Setting{in, []string{path}, "", of.Default, required, of.Description, of.keys})
		} else {
			known := &(*all)[same]
			known.Required = known.Required && required
			if !slices.Contains(known.Paths, path) {
				known.Paths = append(known.Paths, path)
			}
			if !strings.Contains(known.In, in) {
				known.In += ", " + in
			}
		}
		of.addSettings(in, path+".", all)
	}
}
