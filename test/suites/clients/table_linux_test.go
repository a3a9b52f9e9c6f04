package clients

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// row is what one client did.
type row struct {
	name    string
	verdict []string // what does not follow the answers; a run says the same each time

	first, search, many, withdrawn, replaced, born, lost, queries string
}

const (
	head = "| client | follows | first | search | 100 endpoints | withdrawn | replaced | born | owner lost | queries a minute |\n"
	rule = "|---|---|---|---|---|---|---|---|---|---|\n"
)

func (r row) so() string {
	if len(r.verdict) == 0 {
		return "yes"
	}
	return strings.Join(r.verdict, "; ")
}

func (r row) String() string {
	return "| " + strings.Join([]string{r.name, r.so(), r.first, r.search, r.many, r.withdrawn, r.replaced, r.born, r.lost, r.queries}, " | ") + " |\n"
}

// checkTable compares the table of docs/clients.md with that of the run: the clients, and
// whether they follow. Times are those of the machine. With -update it writes the table.
func checkTable(t testing.TB, rows []row) {
	t.Helper()
	table := head + rule
	want := make(map[string]string)
	for _, r := range rows {
		table += r.String()
		want[r.name] = r.so()
	}
	t.Logf("\n%s", table)
	path := filepath.Join(must.Get(realserver.Root())(t), "docs", "clients.md")
	text := string(must.Get(os.ReadFile(path))(t))
	before, behind, ok := strings.Cut(text, head)
	if !ok {
		t.Fatalf("%s has no table that begins with %s", path, head)
	}
	end := strings.Index(behind, "\n\n")
	if *update && !t.Failed() {
		must.Do(t, os.WriteFile(path, []byte(before+table+behind[end+1:]), 0o644))
		return
	}
	got := make(map[string]string)
	for line := range strings.Lines(strings.TrimPrefix(behind[:end+1], rule)) {
		cells := strings.Split(line, " | ")
		got[strings.TrimPrefix(cells[0], "| ")] = cells[1]
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s: does not have what this run shows; run again with -update, and read the difference (-run +document):\n%s", path, d)
	}
}
