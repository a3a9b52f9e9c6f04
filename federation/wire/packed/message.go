package packed

import "strings"

// AppendMessage appends what the function AppendMessage makes of the service, without
// unpacking it. It reports false, and appends nothing, where the service has unnamed
// instances or is zero.
func (p Service) AppendMessage(b []byte) ([]byte, bool) {
	record := reader{rest: p.octets}
	_, service, _ := record.next()
	if p.IsZero() || record.more() {
		return b, false
	}
	rest := service // what is not written yet
	for r := (reader{rest: service}); r.more(); {
		begin := len(rest) - len(r.rest)
		switch field, text, _ := r.next(); field {
		case serviceFQDN:
			b = appendField(append(b, rest[:begin]...), serviceFQDN, strings.TrimSuffix(text, "."))
			rest = r.rest
		case serviceEndpoint:
			endpoint := reader{rest: text}
			_, address, _ := endpoint.next()
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
