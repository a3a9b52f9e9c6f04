package packed

import "strings"

// AppendMessage appends what the function AppendMessage makes of the service, without
// unpacking it. It reports false, and appends nothing, where the service has unnamed
// instances or is zero.
func (p Service) AppendMessage(b []byte) ([]byte, bool) {
	record := fieldReader{rest: p.octets}
	_, service, _ := record.nextField()
	if p.IsZero() || record.hasMore() {
		return b, false
	}
	rest := service // what is not written yet
	for r := (fieldReader{rest: service}); r.hasMore(); {
		begin := len(rest) - len(r.rest)
		switch field, text, _ := r.nextField(); field {
		case serviceFQDN:
			b = appendField(append(b, rest[:begin]...), serviceFQDN, strings.TrimSuffix(text, "."))
			rest = r.rest
		case serviceEndpoint:
			endpoint := fieldReader{rest: text}
			_, address, _ := endpoint.nextField()
			if name, dot := strings.CutSuffix(address, "."); dot {
				b = append(append(b, rest[:begin]...), serviceEndpoint)
				start := len(b)
				b = insertLength(append(appendField(b, endpointAddress, name), endpoint.rest...), start)
				rest = r.rest
			}
		}
	}
	return append(b, rest...), true
}
