package test

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// entry is a line of a table: one kind of query to one server.
type entry struct {
	race      *race
	server    *server
	query     *benchQuery
	condition string // what is different from the line that it is compared with, or ""
	updates   int    // a second, at the owner of federation
	samples   []sample
	notes     []string // what was not as it should be
}

// sample is one run of dnsperf.
type sample struct {
	rate    float64 // replies a second
	latency float64 // mean, in seconds
	cpu     float64 // seconds of the server for a reply
	octets  float64 // of a reply, mean
}

// each returns one value of every round.
func (e *entry) each(value func(sample) float64) []float64 {
	var all []float64
	for _, s := range e.samples {
		all = append(all, value(s))
	}
	return all
}

// over returns the median of the rounds' ratios of two rates, or "" if there is none.
func (e *entry) over(other *entry) string {
	if e == nil || other == nil || e == other {
		return ""
	}
	var all []float64
	for i := range min(len(e.samples), len(other.samples)) {
		all = append(all, e.samples[i].rate/other.samples[i].rate)
	}
	return fmt.Sprintf("%.2f", median(all))
}

// table is what a benchmark has measured over UDP.
type table struct {
	entries []*entry
	missing []string // what is left out, with the reason
}

// newTable returns a table that the benchmark prints at its end.
func newTable(b *testing.B) *table {
	b.Helper()
	if _, err := exec.LookPath("dnsperf"); err != nil {
		b.Skip("dnsperf is not installed; on Debian: apt-get install dnsperf")
	}
	t := new(table)
	b.Cleanup(func() {
		fmt.Fprintf(os.Stdout, "\n%s: medians of %d rounds of %d s\n\n%s\n", b.Name(), *e2eRounds, *e2eSeconds, t.markdown())
	})
	return t
}

// measure runs dnsperf for all entries in turn, round by round, so that a machine that
// becomes slower does so for all of them.
func (t *table) measure(b *testing.B, all []*entry) {
	b.Helper()
	for _, e := range all {
		e.race.check(b, e.server, e.query)
	}
	for round := range *e2eRounds {
		for _, e := range all {
			end := func() float64 { return 0 }
			if e.updates > 0 {
				end = e.race.updating(b, e.updates)
			}
			e.samples = append(e.samples, e.run(b, round))
			if updated := end(); updated < 0.95*float64(e.updates) {
				e.notes = append(e.notes, fmt.Sprintf("only %.0f of %d updates a second", updated, e.updates))
			}
		}
	}
	for _, e := range all {
		b.Run(fmt.Sprintf("services=%d/updates=%d/server=%s", e.race.size, e.updates, e.server.plugin), func(b *testing.B) {
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(e.each(func(s sample) float64 { return s.rate })), "queries/sec")
			b.ReportMetric(median(e.each(func(s sample) float64 { return s.latency }))*1e6, "latency-us")
			b.ReportMetric(median(e.each(func(s sample) float64 { return s.cpu }))*1e6, "cpu-us/query")
		})
	}
	t.entries = append(t.entries, all...)
}

func median(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}

// markdown returns the table. There are two ratios of rates: that of federation to the
// server of the line, under the same condition, and that of the line to the first one
// of the same query and plugin.
func (t *table) markdown() string {
	var text strings.Builder
	rows := [][]string{
		{"query", "server", "replies/s", "lowest to highest", "latency", "CPU/query", "reply", "federation to it", "to itself"},
		{"---", "---", "---:", "---:", "---:", "---:", "---:", "---:", "---:"},
	}
	for _, e := range t.entries {
		rates := e.each(func(s sample) float64 { return s.rate })
		rows = append(rows, []string{
			strings.TrimSuffix(e.query.name+", "+e.condition, ", "), e.server.plugin,
			fmt.Sprintf("%.0f", median(rates)), fmt.Sprintf("%.0f to %.0f", slices.Min(rates), slices.Max(rates)),
			fmt.Sprintf("%.0f us", 1e6*median(e.each(func(s sample) float64 { return s.latency }))),
			fmt.Sprintf("%.1f us", 1e6*median(e.each(func(s sample) float64 { return s.cpu }))),
			fmt.Sprintf("%.0f B", median(e.each(func(s sample) float64 { return s.octets }))),
			t.federation(e).over(e), e.over(t.first(e)),
		})
	}
	widths := make([]int, len(rows[0])) // a reader sees the columns as such
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len(cell))
		}
	}
	for _, row := range rows {
		for i, cell := range row {
			fmt.Fprintf(&text, "| %-*s ", widths[i], cell)
		}
		text.WriteString("|\n")
	}
	for _, e := range t.entries {
		for _, note := range e.notes {
			fmt.Fprintf(&text, "\n%s %s of %s: %s\n", e.query.name, e.condition, e.server.plugin, note)
		}
	}
	for _, why := range t.missing {
		fmt.Fprintf(&text, "\nLEFT OUT: %s\n", why)
	}
	return text.String()
}

// federation returns the line of federation for the same query, under the same
// condition, or nil.
func (t *table) federation(e *entry) *entry {
	return t.find(func(f *entry) bool {
		return f.server.plugin == "federation" && f.query == e.query && f.condition == e.condition
	})
}

// first returns the first line of the same query and plugin.
func (t *table) first(e *entry) *entry {
	return t.find(func(f *entry) bool { return f.server.plugin == e.server.plugin && f.query.name == e.query.name })
}

func (t *table) find(match func(*entry) bool) *entry {
	if i := slices.IndexFunc(t.entries, match); i >= 0 {
		return t.entries[i]
	}
	return nil
}

var (
	dnsperfCompleted = regexp.MustCompile(`Queries completed: +([0-9]+)`)
	dnsperfRate      = regexp.MustCompile(`Queries per second: +([0-9.]+)`)
	dnsperfLatency   = regexp.MustCompile(`Average Latency \(s\): +([0-9.]+)`)
	dnsperfReply     = regexp.MustCompile(`Average packet size: +request [0-9]+, response ([0-9]+)`)
	dnsperfLost      = regexp.MustCompile(`Queries lost: +0 `)
	dnsperfCodes     = regexp.MustCompile(`Response codes: +(\S+) [0-9]+ \(100.00%\)`)
)

// questions writes a file with a query for every service, in random order, and
// returns its path. Each round begins elsewhere: a run is too short to ask for a
// million names, and must not find in the caches what the one before has asked for.
func (e *entry) questions(b *testing.B, round int) string {
	b.Helper()
	path := filepath.Join(e.race.dir, fmt.Sprintf("%s.%s%d", e.query.name, e.server.suffix, round))
	if _, err := os.Stat(path); err == nil {
		return path
	}
	w, numbers := create(b, path), order(e.race.size)
	first := round * len(numbers) / *e2eRounds
	for _, i := range slices.Concat(numbers[first:], numbers[:first]) {
		fmt.Fprintf(w, "%s%s %s\n", e.query.labels, e.server.fqdn(i), dns.TypeToString[e.query.qtype])
	}
	must.Do(b, w.Flush())
	return path
}

// run asks the server for every service over and over. All servers are asked in the
// same way: by 8 clients with 100 queries under way.
func (e *entry) run(b *testing.B, round int) sample {
	b.Helper()
	questions := e.questions(b, round)
	host, port, _ := net.SplitHostPort(e.server.address)
	before := e.server.cpu(b)
	output, err := exec.Command("dnsperf",
		"-s", host, "-p", port, "-d", questions, "-l", strconv.Itoa(*e2eSeconds), "-c", "8", "-q", "100").CombinedOutput()
	after := e.server.cpu(b)
	if err != nil {
		b.Fatalf("dnsperf: %v\n%s", err, output)
	}
	if codes := dnsperfCodes.FindSubmatch(output); codes == nil || string(codes[1]) != dns.RcodeToString[e.query.rcode] {
		b.Fatalf("dnsperf has seen other codes than %s:\n%s", dns.RcodeToString[e.query.rcode], output)
	}
	if !dnsperfLost.Match(output) {
		e.notes = append(e.notes, "dnsperf has lost queries")
	}
	number := func(r *regexp.Regexp) float64 {
		match := r.FindSubmatch(output)
		if match == nil {
			b.Fatalf("no %v in the output of dnsperf:\n%s", r, output)
		}
		value := must.Get(strconv.ParseFloat(string(match[1]), 64))(b)
		return value
	}
	return sample{
		rate: number(dnsperfRate), latency: number(dnsperfLatency), octets: number(dnsperfReply),
		cpu: (after - before).Seconds() / cmp.Or(number(dnsperfCompleted), 1),
	}
}

// cpu returns the CPU time of the server's processes so far.
func (s *server) cpu(b *testing.B) (sum time.Duration) {
	b.Helper()
	for _, pid := range s.pids {
		sum += cpuTime(b, pid)
	}
	return sum
}

// cpuTime returns the CPU time that a process and its children have taken so far, from
// Linux's /proc: those that have ended and been waited for included.
func cpuTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	text := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)))(b)
	sum := time.Duration(0)
	_, after, _ := strings.Cut(string(text), ") ")             // the end of the name, field 2
	for _, field := range strings.Fields(after)[14-3 : 18-3] { // utime, stime, cutime and cstime, counted from field 3
		ticks := must.Get(strconv.ParseInt(field, 10, 64))(b)
		sum += time.Duration(ticks) * time.Second / 100 // USER_HZ
	}
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid)) // not in every kernel
	for child := range strings.FieldsSeq(string(children)) {
		pid := must.Get(strconv.Atoi(child))(b)
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/stat", pid)); err == nil { // or else it has ended
			sum += cpuTime(b, pid)
		}
	}
	return sum
}

func TestTable(t *testing.T) {
	a, srv := &benchQuery{name: "A"}, &benchQuery{name: "SRV"}
	federation, hosts := &server{plugin: "federation"}, &server{plugin: "hosts"}
	rounds := func(rates ...float64) (all []sample) {
		for _, rate := range rates {
			all = append(all, sample{rate: rate, latency: 0.001, cpu: 0.00002, octets: 66})
		}
		return all
	}
	// The machine is slow in the second round. So hosts with updates has 1.50 times its
	// own rate, the median of 1.35, 1.50 and 1.50; the ratio of the medians is 1.35.
	table := table{
		entries: []*entry{
			{query: a, server: federation, samples: rounds(300, 30, 600)},
			{query: a, server: hosts, samples: rounds(200, 20, 200)},
			{query: a, server: federation, condition: "updates", samples: rounds(270, 15, 600)},
			{query: a, server: hosts, condition: "updates", samples: rounds(270, 30, 300)},
			{query: srv, server: federation, condition: "alone", samples: rounds(1), notes: []string{"dnsperf has lost queries"}},
		},
		missing: []string{"knot is left out: it is not installed"},
	}
	const want = `| query      | server     | replies/s | lowest to highest | latency | CPU/query | reply | federation to it | to itself |
| ---        | ---        | ---:      | ---:              | ---:    | ---:      | ---:  | ---:             | ---:      |
| A          | federation | 300       | 30 to 600         | 1000 us | 20.0 us   | 66 B  |                  |           |
| A          | hosts      | 200       | 20 to 200         | 1000 us | 20.0 us   | 66 B  | 1.50             |           |
| A, updates | federation | 270       | 15 to 600         | 1000 us | 20.0 us   | 66 B  |                  | 0.90      |
| A, updates | hosts      | 270       | 30 to 300         | 1000 us | 20.0 us   | 66 B  | 1.00             | 1.50      |
| SRV, alone | federation | 1         | 1 to 1            | 1000 us | 20.0 us   | 66 B  |                  |           |

SRV alone of federation: dnsperf has lost queries

LEFT OUT: knot is left out: it is not installed
`
	if got := table.markdown(); got != want {
		t.Errorf("table is\n%s\nwant\n%s", got, want)
	}
}
