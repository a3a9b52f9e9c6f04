package packed

import (
	"encoding/binary"
	"strings"
)

// AppendMessage appends what the function AppendMessage makes of the service, without
// unpacking it. It reports false, and appends nothing, where the service has unnamed
// instances or is zero.
func (p Service) AppendMessage(b []byte) ([]byte, bool) {
	record := reader{rest: p.octets}
	_, service, _ := record.next()
	if p.IsZero() || record.more() {
		return b, false
	}
	copied := 0 // octets of service
	for r := (reader{rest: service}); r.more(); {
		at := len(service) - len(r.rest)
		field, text, _ := r.next()
		if field != serviceFQDN && field != serviceEndpoint {
			continue
		}
		next := len(service) - len(r.rest)
		if field == serviceFQDN {
			b = append(b, service[copied:at]...)
			b = appendField(b, serviceFQDN, strings.TrimSuffix(text, "."))
			copied = next
			continue
		}
		endpoint := reader{rest: text}
		_, address, _ := endpoint.next()
		if name, dot := strings.CutSuffix(address, "."); dot {
			b = append(b, service[copied:at]...)
			length := 1 + lengthOf(len(name)) + len(name) + len(endpoint.rest)
			b = binary.AppendUvarint(append(b, serviceEndpoint), uint64(length)) //nolint:gosec // never negative
			b = append(appendField(b, endpointAddress, name), endpoint.rest...)
			copied = next
		}
	}
	return append(b, service[copied:]...), true
}

// lengthOf returns how many octets the length of a text has.
func lengthOf(n int) int {
	octets := 1
	for ; n >= 1<<7; n >>= 7 {
		octets++
	}
	return octets
}
