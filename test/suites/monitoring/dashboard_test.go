package monitoring

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// dashboard is what the tests look at of a dashboard of Grafana.
type dashboard struct {
	Title         string `json:"title"`
	UID           string `json:"uid"`
	SchemaVersion int    `json:"schemaVersion"`
	Templating    struct {
		List []struct {
			Name       string `json:"name"`
			Type       string `json:"type"`
			Definition string `json:"definition"`
			AllValue   string `json:"allValue"`
			Datasource source `json:"datasource"`
		} `json:"list"`
	} `json:"templating"`
	Panels []panel `json:"panels"`
}

type source struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

type panel struct {
	ID          int    `json:"id"`
	Type        string `json:"type"`
	Title       string `json:"title"`
	Description string `json:"description"`
	Datasource  source `json:"datasource"`
	GridPos     struct {
		X int `json:"x"`
		Y int `json:"y"`
		W int `json:"w"`
		H int `json:"h"`
	} `json:"gridPos"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
	Targets []struct {
		RefID      string `json:"refId"`
		Datasource source `json:"datasource"`
		Expr       string `json:"expr"`
	} `json:"targets"`
}

func readDashboard(t testing.TB) *dashboard {
	t.Helper()
	var d dashboard
	must.Do(t, json.Unmarshal([]byte(read(t, folder+"/dashboard.json")), &d))
	return &d
}

// TestDashboard checks what Grafana needs of a dashboard and does not check itself.
func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	if d.Title == "" || d.UID == "" || d.SchemaVersion < 30 {
		t.Errorf("the dashboard has the title %q, the uid %q and the schema version %d", d.Title, d.UID, d.SchemaVersion)
	}
	chosen := source{"prometheus", "${datasource}"}
	variables := map[string]bool{"__rate_interval": true}
	for _, v := range d.Templating.List {
		variables[v.Name] = true
		if v.Type == "query" && (v.Datasource != chosen || v.AllValue != ".*" || !strings.HasPrefix(v.Definition, "label_values(")) {
			t.Errorf("the variable %s has the datasource %v, %q for all, and %s", v.Name, v.Datasource, v.AllValue, v.Definition)
		}
	}
	for _, name := range []string{"datasource", "job", "instance", "owner", "catalog"} {
		if !variables[name] {
			t.Errorf("there is no variable %s", name)
		}
	}
	ids, cells := make(map[int]string), make(map[[2]int]string)
	for _, p := range d.Panels {
		if before, ok := ids[p.ID]; ok {
			t.Errorf("%q and %q have the ID %d", before, p.Title, p.ID)
		}
		ids[p.ID] = p.Title
		if g := p.GridPos; g.W < 1 || g.H < 1 || g.X < 0 || g.X+g.W > 24 {
			t.Errorf("%q is at %+v, outside of the 24 columns", p.Title, g)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other, ok := cells[[2]int{x, y}]; ok {
					t.Fatalf("%q lies over %q", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Title == "" || p.Description == "" || p.FieldConfig.Defaults.Unit == "" || p.Datasource != chosen || len(p.Targets) == 0 {
			t.Errorf("%q lacks a title, a description, a unit, the datasource of the variable, or a query", p.Title)
		}
		refs := make(map[string]bool)
		for _, query := range p.Targets {
			if query.Datasource != chosen || refs[query.RefID] || query.RefID == "" {
				t.Errorf("%q has a query %q of the datasource %v", p.Title, query.RefID, query.Datasource)
			}
			refs[query.RefID] = true
			for _, name := range regexp.MustCompile(`\$\{?(\w+)`).FindAllStringSubmatch(query.Expr, -1) {
				if !variables[name[1]] {
					t.Errorf("%q: there is no variable %s", p.Title, name[1])
				}
			}
			if !strings.Contains(query.Expr, `job=~"$job"`) {
				t.Errorf("%q does not look at the chosen jobs: %s", p.Title, query.Expr)
			}
		}
	}
}

// substitute puts values in the place of the variables, as Grafana does with all of them
// chosen.
func substitute(expr string) string {
	expr = strings.ReplaceAll(expr, "$__rate_interval", window)
	return regexp.MustCompile(`\$(job|instance|owner|catalog)\b`).ReplaceAllString(expr, ".*")
}

// watch asks the dashboard's queries again and again, until each has had data. unanswered
// waits for the end of a round, and returns those that had none.
func (w *testPlace) watch(t testing.TB) (unanswered func() []string) {
	t.Helper()
	open := make(map[string]bool)
	for _, p := range readDashboard(t).Panels {
		for _, query := range p.Targets {
			open[query.Expr] = true
		}
	}
	if len(open) < 30 {
		t.Fatalf("the dashboard has only %d queries", len(open))
	}
	var failed error
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		ticker := time.NewTicker(4 * tick)
		defer ticker.Stop()
		for len(open) > 0 && failed == nil {
			for expr := range maps.Clone(open) {
				n, err := w.query(t.Context(), substitute(expr))
				switch {
				case t.Context().Err() != nil:
					return
				case err != nil:
					failed = fmt.Errorf("%s: %w", expr, err)
					return
				case n > 0:
					delete(open, expr)
				}
			}
			select {
			case <-done:
				return
			case <-ticker.C:
			}
		}
	})
	end := sync.OnceFunc(func() { close(done); watching.Wait() })
	t.Cleanup(end)
	return func() []string {
		end()
		if failed != nil {
			t.Error(failed)
		}
		return slices.Sorted(maps.Keys(open))
	}
}
