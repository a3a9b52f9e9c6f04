package providers

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
)

// table writes nodes, as rows or as JSON.
type table struct {
	stdout io.Writer
	plain  bool // as a table
	watch  bool

	objects printable.Objects
	titled  bool                                    // the titles are written
	known   map[string]*registrationv1.ListResponse // with watch: what is shown, by service and URI
}

func newTable(c Config) *table {
	return &table{stdout: c.Stdout, plain: printable.IsTable(c.Output), objects: printable.Objects{Format: c.Output}, watch: c.Watch, known: make(map[string]*registrationv1.ListResponse)}
}

// The operations of a watch, as federationctl watch has them.
const (
	upsert = "upsert"
	remove = "delete"
)

// all writes nodes in columns that are as wide as they need.
func (t *table) all(nodes []*registrationv1.ListResponse, now time.Time) error {
	if !t.plain {
		for _, n := range nodes {
			if err := t.object("", n); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(t.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(titles, "\t"))
	for _, n := range nodes {
		fmt.Fprintln(w, strings.Join(cells(n, now), "\t"))
	}
	return w.Flush()
}

// replace shows what is registered now: of what was shown before only what has changed.
func (t *table) replace(nodes []*registrationv1.ListResponse, now time.Time) error {
	gone := t.known
	t.known = make(map[string]*registrationv1.ListResponse, len(nodes))
	for _, n := range nodes {
		before := gone[keyOf(n)]
		delete(gone, keyOf(n))
		t.known[keyOf(n)] = n
		if before != nil && same(before, n) {
			continue
		}
		if err := t.line(upsert, n, now); err != nil {
			return err
		}
	}
	left := make([]*registrationv1.ListResponse, 0, len(gone))
	for _, n := range gone {
		left = append(left, n)
	}
	slices.SortFunc(left, compare)
	for _, n := range left {
		if err := t.line(remove, n, now); err != nil {
			return err
		}
	}
	return nil
}

// change shows a change.
func (t *table) change(n *registrationv1.ListResponse, now time.Time) error {
	before := t.known[keyOf(n)]
	if n.GetGone() {
		if before == nil {
			return nil
		}
		delete(t.known, keyOf(n))
		return t.line(remove, before, now)
	}
	t.known[keyOf(n)] = n
	if before != nil && same(before, n) {
		return nil
	}
	return t.line(upsert, n, now)
}

func keyOf(n *registrationv1.ListResponse) string { return n.GetService() + " " + n.GetNode() }

// same reports whether two states of a node look the same, but for the time at which it
// expires.
func same(a, b *registrationv1.ListResponse) bool {
	return a.GetInstance() == b.GetInstance() && a.GetProvider() == b.GetProvider() && a.GetRule() == b.GetRule() &&
		a.GetOwner() == b.GetOwner() && a.GetSince().AsTime().Equal(b.GetSince().AsTime()) && stateOf(a) == stateOf(b) &&
		a.GetTtl().AsDuration() == b.GetTtl().AsDuration()
}

// row is the format of a line of a watch, whose columns cannot wait for later ones.
const row = "%-6s  %-28s  %-28s  %-20s  %-40s  %-16s  %-8s  %-8s  %s"

// line writes a line of a watch.
func (t *table) line(op string, n *registrationv1.ListResponse, now time.Time) error {
	if !t.plain {
		return t.object(op, n)
	}
	text := ""
	if !t.titled {
		text = format("OP", titles)
		t.titled = true
	}
	_, err := io.WriteString(t.stdout, text+format(op, cells(n, now)))
	return err
}

func format(op string, cells []string) string {
	values := []any{op}
	for _, c := range cells {
		values = append(values, c)
	}
	return strings.TrimRight(fmt.Sprintf(row, values...), " ") + "\n"
}

var titles = []string{"SERVICE", "NODE", "INSTANCE", "PROVIDER", "STATE", "SINCE", "UNTIL", "TTL"}

// cells returns the columns of a node. What others have sent is shown so that it cannot
// move the cursor.
func cells(n *registrationv1.ListResponse, now time.Time) []string {
	instance := "-"
	if n.GetInstance() != "" {
		instance = printable.Text(n.GetInstance())
	}
	return []string{
		printable.Text(n.GetService()), plain(n.GetNode()), instance, plain(n.GetProvider()), stateOf(n),
		ago(n.GetSince(), now), in(n.GetUntil(), now), n.GetTtl().AsDuration().String(),
	}
}

// plain is printable.Text for a URI, in which slashes are usual.
func plain(uri string) string {
	if unslashed := strings.ReplaceAll(uri, "/", ""); unslashed != "" && printable.Text(unslashed) == unslashed {
		return uri
	}
	return printable.Text(uri)
}

// stateOf says who vouches for a node: its provider's stream to this owner, the one that it
// had to it before the owner's start, or another owner.
func stateOf(n *registrationv1.ListResponse) string {
	switch {
	case n.GetConnected():
		return "connected"
	case n.GetOld():
		return "old"
	case n.GetUntil() != nil:
		return "lost"
	}
	return "on " + printable.Text(n.GetOwner())
}

// ago returns how long ago a time is.
func ago(at *timestamppb.Timestamp, now time.Time) string {
	if at == nil {
		return "-"
	}
	return short(now.Sub(at.AsTime())) + " ago"
}

// in returns how far away a time is.
func in(at *timestamppb.Timestamp, now time.Time) string {
	if at == nil {
		return "-"
	}
	return "in " + short(at.AsTime().Sub(now))
}

// short returns a duration in the largest unit that fits.
func short(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// object writes a node as an object of JSON in a line.
func (t *table) object(op string, n *registrationv1.ListResponse) error {
	seconds := func(at *timestamppb.Timestamp) *time.Time {
		if at == nil {
			return nil
		}
		utc := at.AsTime()
		return &utc
	}
	line, err := json.Marshal(struct {
		Op       string            `json:"op,omitempty"`
		Service  string            `json:"service"`
		Node     string            `json:"node"`
		Instance string            `json:"instance,omitempty"`
		Metadata map[string]string `json:"metadata,omitempty"`
		Provider string            `json:"provider"`
		Rule     string            `json:"rule"`
		Owner    string            `json:"owner"`
		State    string            `json:"state"`
		Since    *time.Time        `json:"since,omitempty"`
		Until    *time.Time        `json:"until,omitempty"`
		TTL      string            `json:"ttl"` // as in the JSON mapping of protobuf
	}{
		op, n.GetService(), n.GetNode(), n.GetInstance(), n.GetMetadata(), n.GetProvider(), n.GetRule(), n.GetOwner(), word(n),
		seconds(n.GetSince()), seconds(n.GetUntil()), strconv.FormatFloat(n.GetTtl().AsDuration().Seconds(), 'f', -1, 64) + "s",
	})
	if err != nil {
		return err
	}
	text, err := t.objects.Text(printable.EscapeControls(string(line))+"\n", plain(n.GetNode()))
	if err == nil {
		_, err = io.WriteString(t.stdout, text)
	}
	return err
}

// word is stateOf as one word: the owner has a field of its own.
func word(n *registrationv1.ListResponse) string {
	first, _, _ := strings.Cut(stateOf(n), " ")
	if first == "on" {
		return "elsewhere"
	}
	return first
}
