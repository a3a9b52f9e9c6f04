package page

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the page and its style
	"encoding/base64"
	"encoding/json"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/status"
)

//go:embed page.html
var pageText string

//go:embed style.css
var styleText string

//go:embed refresh.js
var scriptText string

// newPages returns the templates of the pages. Text that peers may have chosen goes
// through show, which makes visible what could pass for something else: control
// characters, and those that turn the direction of what follows.
func newPages() *template.Template {
	return template.Must(template.New("").Funcs(template.FuncMap{
		"catalog": status.CatalogName,
		"count":   status.CountNoun,
		"lasting": status.FormatSeconds,
		"number":  status.FormatNumber,
		"octets":  status.FormatOctets,
		"script":  func() template.JS { return template.JS(scriptText) }, //nolint:gosec // our own
		"show":    safetext.Printable,
		"style":   func() template.CSS { return template.CSS(styleText) }, //nolint:gosec // our own
		"word":    status.PrintableWord,
	}).Parse(pageText))
}

// contentPolicy lets a page have its own style and script, ask here and send its forms here,
// and nothing else.
func contentPolicy() string {
	hash := func(text string) string {
		sum := sha256.Sum256([]byte(text))
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; "
	}
	return "default-src 'none'; style-src " + hash(styleText) + "script-src " + hash(scriptText) + "connect-src 'self'; img-src data:; " +
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
}

// nameQuestion is the name box with its answer.
type nameQuestion struct {
	Name, Type string
	Types      []string // to choose from; none for an owner or an importer, which look at names only
	Error      string
	Blocks     []*answerBlock
}

// answerBlock is the answer of one server block, or what one catalog has.
type answerBlock struct {
	First   string
	Nearest []string // names that may be meant
	Todo    []string
	Shared  []string // the endpoints of a shared name
	Rest    []indentedLine
}

// Long reports whether the rest is folded up, so that what to do is not far from what is
// wrong.
func (b *answerBlock) Long() bool { return len(b.Rest) > 6 }

type indentedLine struct {
	Depth int // 1 to 3
	Text  string
}

// splitBlocks takes the lines of an explanation apart: those of one block are indented below
// its first.
func splitBlocks(lines []string) (all []*answerBlock) {
	for _, text := range lines {
		short := strings.TrimLeft(text, " ")
		depth := (len(text) - len(short)) / 2
		if depth == 0 || len(all) == 0 {
			all = append(all, &answerBlock{First: short})
			continue
		}
		last := all[len(all)-1]
		if todo, is := strings.CutPrefix(short, "to do: "); is {
			if !slices.Contains(last.Todo, todo) { // as that of another owner
				last.Todo = append(last.Todo, todo)
			}
		} else if names, is := strings.CutPrefix(short, "did you mean: "); is {
			last.Nearest = strings.Split(names, ", ")
		} else if endpoint, is := strings.CutPrefix(short, "shared: "); is {
			last.Shared = append(last.Shared, endpoint)
		} else {
			last.Rest = append(last.Rest, indentedLine{min(depth, 3), short})
		}
	}
	return all
}

// servePage answers GET /, with an answer to why if a name is given.
func (h statusHandler) servePage(w http.ResponseWriter, r *http.Request) {
	now := h.source.Status()
	v := newOverview(&now, h.token)
	v.Self = "/"
	query := r.URL.Query()
	name, text := strings.TrimSpace(query.Get("name")), strings.ToUpper(query.Get("type"))
	v.Why = nameQuestion{Name: name, Type: text}
	if v.As == status.Consumer {
		v.Why.Types = []string{"A", "AAAA", "SRV", "TXT", "NS", "SOA"}
		if text != "" && !slices.Contains(v.Why.Types, text) {
			v.Why.Types = append(v.Why.Types, safetext.Printable(text))
		}
	}
	code := http.StatusOK
	if name != "" {
		v.Self += "?" + url.Values{"name": {name}, "type": {text}}.Encode()
		if why, err := h.explainName(r, name, text); err != nil {
			v.Why.Error, code = err.Error(), http.StatusBadRequest
		} else {
			v.Why.Blocks = splitBlocks(why.Lines())
		}
	}
	h.renderPage(w, code, "status", v)
}

// mostListed bounds the services on a page.
const mostListed = 1000

// serviceListing is a page with services of a catalog.
type serviceListing struct {
	Title, Heading string
	Of, Match      string
	Refreshed      bool // never
	Error          string
	More           bool // there are others
	Consumer       bool // or importer, whose services are older than its start where they have no time
	List           []listedService
}

type listedService struct {
	status.CatalogService

	When      shownTime
	Addresses []string // a few of the endpoints
	More      int      // how many others there are
	JSON      string
}

// newListedService returns a service for the list.
func newListedService(service status.CatalogService, now time.Time) listedService {
	const most = 3
	all := service.Endpoints()
	few := all[:min(len(all), most)]
	return listedService{service, (&pagePart{now: now}).At(service.Updated), few, len(all) - len(few), indentJSON(service.Service)}
}

// serveListing answers GET /services.
func (h statusHandler) serveListing(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	v := &serviceListing{Of: query.Get("of"), Match: strings.TrimSpace(query.Get("match"))}
	v.Heading = "Services of " + safetext.Printable(v.Of)
	if v.Of == "" {
		v.Heading = "Services of the default catalog"
	}
	v.Title = v.Heading
	s := h.source.Status()
	services, read, code, err := h.openCatalog(w, r, &s)
	if err != nil {
		v.Error = err.Error()
		h.renderPage(w, code, "services", v)
		return
	}
	defer read()
	words := strings.Fields(v.Match)
	v.Consumer = s.Role != status.Owner
	for service, err := range services {
		if v.More = len(v.List) == mostListed; v.More || r.Context().Err() != nil {
			break
		}
		if err != nil {
			v.Error = err.Error()
			break
		}
		if service.MatchesWords(words) {
			v.List = append(v.List, newListedService(service, s.Now))
		}
	}
	h.renderPage(w, http.StatusOK, "services", v)
}

// indentJSON returns JSON over several lines, in printable ASCII.
func indentJSON(text json.RawMessage) string {
	var b bytes.Buffer
	if json.Indent(&b, text, "", "  ") != nil {
		return safetext.Printable(string(text))
	}
	lines := strings.Split(b.String(), "\n")
	for i, line := range lines {
		lines[i] = safetext.Printable(line)
	}
	return strings.Join(lines, "\n")
}

// renderPage answers with a page that is whole, or with none.
func (h statusHandler) renderPage(w http.ResponseWriter, code int, name string, v any) {
	var b bytes.Buffer
	if err := h.pages.ExecuteTemplate(&b, name, v); err != nil {
		panic(errors.Join(errors.New("a template and what it shows do not fit"), err))
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = b.WriteTo(w) // a client that is gone needs no answer
}
