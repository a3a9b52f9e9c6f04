package catalog

// recordCounts are sums over the records of a catalog.
type recordCounts struct {
	services    int             // published
	instances   int             // of the published services
	stale       int             // published services of a generation before the first that is live
	notAdmitted [admissions]int // names whose last version was not admitted
	octets      int64           // size of all records
	current     int64           // size of the records of the current generation
}

// addRecord adds a record to the sums, or takes the record away where by is -1. Generation is that
// of the open or last stream, and live is the first generation that is not stale.
func (c *recordCounts) addRecord(r nameRecord, by int, generation, live uint32) {
	if !r.service.IsZero() {
		c.services += by
		c.instances += by * int(r.instances)
		if r.generation < live {
			c.stale += by
		}
	}
	if r.admission != admitted {
		c.notAdmitted[r.admission] += by
	}
	if r == (nameRecord{}) {
		return
	}
	c.octets += int64(by) * int64(r.octets)
	if r.generation == generation {
		c.current += int64(by) * int64(r.octets)
	}
}
