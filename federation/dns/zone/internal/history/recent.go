package history

import "slices"

// minNames is how many names may have changed in the log of any zone. In that of a
// larger one half as many may as it has services. Of more, the whole zone is mostly
// shorter than the difference.
const minNames = 1000

// Recent collects what changes in a zone between two serials.
type Recent struct {
	services int
	names    []string // that have changed, some more than once
	cut      bool     // the next version cannot be compared with those before
	begun    bool     // a serial has been published
	rivalled bool     // another publisher may have used the serial rival, and those before
	rival    uint32
}

// NewRecent returns what has changed in a zone that has nothing yet.
func NewRecent() Recent { return Recent{cut: true} }

// Count adds n, which may be negative, to the number of services of the zone.
func (r *Recent) Count(n int) { r.services += n }

// Note notes that the service at an fqdn has changed.
func (r *Recent) Note(fqdn string) {
	if r.cut {
		return
	}
	if r.names = append(r.names, fqdn); len(r.names) <= 2*r.maxNames() {
		return
	}
	if r.once(); len(r.names) > r.maxNames() {
		r.Cut()
	}
}

// maxNames is how many names may have changed in the log.
func (r *Recent) maxNames() int { return max(minNames, r.services/2) }

// once leaves every name once.
func (r *Recent) once() {
	slices.Sort(r.names)
	r.names = slices.Clip(slices.Compact(r.names))
}

// Cut makes the log begin anew with the next version: more has changed than names
// can tell.
func (r *Recent) Cut() { r.cut, r.names = true, nil }

// Contest notes that somebody else may have published other versions under a serial
// and those before it. The log begins anew behind it.
func (r *Recent) Contest(serial uint32) {
	r.Cut()
	r.rival, r.rivalled = serial, true
}

// Begin contests the first serial that it is called with: the process before this one
// may have ended in the same second, with another version under that serial.
func (r *Recent) Begin(serial uint32) {
	if !r.begun {
		r.begun = true
		r.Contest(serial)
	}
}

// Continue returns the log with the version that has the recent changes, of which it
// fills Changed and Octets. Octets estimates what one version holds for a name.
func (l *Log[V]) Continue(r *Recent, v *Version[V], octets func(of V, name string) int) Log[V] {
	if r.rivalled && int32(v.Serial-r.rival) <= 0 { //nolint:gosec // RFC 1982 section 3.2
		return Log[V]{}
	}
	r.once()
	v.Changed, r.names = r.names, nil
	var next Log[V]
	if last := l.Last(); last != nil && !r.cut {
		for _, name := range v.Changed {
			v.Octets += perName + octets(last.Zone, name)
		}
		next = l.add(v, r.maxNames())
	} else {
		next = next.add(v, 0)
	}
	r.cut, r.rivalled = false, false
	return next
}

// perName is what an earlier version holds for each name that has changed since,
// beside its services: parts of the index.
const perName = 2048
