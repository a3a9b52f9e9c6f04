package export

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	corev1 "k8s.io/api/core/v1"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// The annotations, without their prefix.
const (
	fqdnAnnotation     = "fqdn"
	sansAnnotation     = "sans"
	metadataAnnotation = "metadata." // followed by the name or the number of a port
)

// foundAnnotation is the value of an annotation, and which object has it.
type foundAnnotation struct{ value, place string }

// findAnnotations sets notes to the annotations of the ServiceExport, and to those of the Service
// that the ServiceExport does not have.
func (t *translation) findAnnotations() *Finding {
	t.notes = make(map[string]foundAnnotation)
	read := func(from map[string]string, kind string) {
		for key, value := range from {
			if key, ok := strings.CutPrefix(key, prefix); ok {
				t.notes[key] = foundAnnotation{value, fmt.Sprintf("annotation %s of the %s %s", prefix+key, kind, t.serviceName())}
			}
		}
	}
	read(t.Service.Annotations, "Service")
	if t.Export != nil {
		read(t.Export.Annotations, "ServiceExport")
	}
	for key, note := range t.notes {
		if key != fqdnAnnotation && key != sansAnnotation && !strings.HasPrefix(key, metadataAnnotation) {
			t.warnf(UnknownAnnotation, "%s is unknown", note.place)
		}
	}
	return nil
}

// findSANs sets the SANs of the service: the SPIFFE IDs of the annotation, sorted, each once.
func (t *translation) findSANs() *Finding {
	note := t.notes[sansAnnotation]
	ids := splitList(note.value)
	for _, id := range ids {
		if _, err := spiffeid.FromString(id); err != nil {
			return refusef(BadAnnotation, "%s has %s, which is no SPIFFE ID: %v", note.place, safetext.Quote(id), err)
		}
	}
	slices.Sort(ids)
	t.service.SANs = slices.Compact(ids)
	return nil
}

// addMetadata adds to the ports the metadata of their annotations. Annotations for ports that are
// not published are no mistake.
func (t *translation) addMetadata() *Finding {
	for _, key := range slices.Sorted(maps.Keys(t.notes)) {
		wanted, ok := strings.CutPrefix(key, metadataAnnotation)
		if !ok {
			continue
		}
		note := t.notes[key]
		pairs, refusal := note.parsePairs()
		if refusal != nil {
			return refusal
		}
		if !slices.ContainsFunc(t.Service.Spec.Ports, func(p corev1.ServicePort) bool { return isNamed(p, wanted) }) {
			return refusef(BadAnnotation, "%s is for a port that the Service does not have", note.place)
		}
		for i := range t.ports {
			p := &t.ports[i]
			if p.id != wanted && !isNamed(p.spec, wanted) {
				continue
			}
			if p.metadata != nil {
				return refusef(BadAnnotation, "%s is for port %s, for which there is another annotation", note.place, p.id)
			}
			p.metadata = pairs
		}
	}
	return nil
}

// parsePairs returns the pairs of an annotation: SNI=NAME, HOSTNAME=NAME or both, with a comma or a
// space between them.
func (a foundAnnotation) parsePairs() ([]federation.Pair, *Finding) {
	found := make(map[string]string)
	for _, entry := range splitList(a.value) {
		key, value, _ := strings.Cut(entry, "=")
		if key != "SNI" && key != "HOSTNAME" {
			return nil, refusef(BadAnnotation, "%s has %s, and takes SNI=NAME and HOSTNAME=NAME", a.place, safetext.Quote(entry))
		}
		if _, ok := found[key]; ok {
			return nil, refusef(BadAnnotation, "%s has %s twice", a.place, key)
		}
		name, err := federation.ParseFQDN(value)
		if err != nil {
			return nil, refusef(BadAnnotation, "%s has %s: %v", a.place, safetext.Quote(entry), err)
		}
		found[key] = strings.TrimSuffix(name.String(), ".") // as clients send it
	}
	if len(found) == 0 {
		return nil, refusef(BadAnnotation, "%s is empty, and takes SNI=NAME and HOSTNAME=NAME", a.place)
	}
	return federation.Pairs(found), nil
}

// isNamed reports whether text is the name, the number or the ID of the port.
func isNamed(p corev1.ServicePort, text string) bool {
	number := strconv.Itoa(int(p.Port))
	return text == number || text == numbered+number || p.Name != "" && text == p.Name
}

// splitList returns the parts of s between commas and white space.
func splitList(s string) []string {
	return strings.FieldsFunc(s, func(c rune) bool { return c == ',' || c == ' ' || c == '\t' || c == '\n' || c == '\r' })
}
