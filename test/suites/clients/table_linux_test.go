package clients

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// row is what one client did.
type row struct {
	name    string
	verdict []string // what does not follow the answers; a run says the same each time

	first, search                            string // queries for a connection, without search domains and with three
	withdrawn, replaced, born, lost, queries string
}

const head = "| client | follows | withdrawn | replaced | born | owner lost | queries a minute |\n"

func (r row) so() string {
	if len(r.verdict) == 0 {
		return "yes"
	}
	return strings.Join(r.verdict, "; ")
}

func (r row) String() string {
	return "| " + strings.Join([]string{r.name, r.so(), r.withdrawn, r.replaced, r.born, r.lost, r.queries}, " | ") + " |\n"
}

// checkTable compares whether the clients follow with the table of docs/clients.md, and shows
// what the run has measured. Times are those of the machine.
func checkTable(t testing.TB, rows []row) {
	t.Helper()
	path := filepath.Join(must.Get(realserver.Root())(t), "docs", "clients.md")
	text := string(must.Get(os.ReadFile(path))(t))
	table, connections := "", ""
	for _, r := range rows {
		table += r.String()
		connections += fmt.Sprintf("%s: %s queries for a connection, %s with search domains\n", r.name, r.first, r.search)
		if want := fmt.Sprintf("\n| %s | %s | ", r.name, r.so()); !strings.Contains(text, want) {
			t.Errorf("%s has no line that begins with %q", path, want)
		}
	}
	t.Logf("\n%s%s%s", head, table, connections)
}
