// Package page serves what package status says of a process over HTTP, for people,
// for federationctl and for scripts. A GET changes nothing. A POST can have an owner that is
// lost tried at once, or paused services withdrawn.
package page

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"iter"
	"net/http"
	"net/url"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/status"
)

// ReportSource is the process that the pages are about. Its methods are called by many
// goroutines at once, and wait for no peer.
type ReportSource interface {
	Status() status.Status

	// Why explains the answer to a query. The name is absolute and in lower case.
	Why(ctx context.Context, name string, qtype uint16) (status.NameExplanation, error)

	// Catalog yields all services of a catalog that Status names, in the order of their names. Of is the ID of
	// an owner that is followed, or the server name of a catalog.
	Catalog(of string) iter.Seq2[status.CatalogService, error]
}

// NewHandler serves the status of a process:
//
//	GET /                                  the page; ?name=NAME&type=TYPE adds why
//	GET /services?of=ID&match=TEXT         a page with the first services of a catalog that match
//	GET /v1/status                         status.Status
//	GET /v1/why?name=NAME&type=TYPE        status.NameExplanation; the type is A by default
//	GET /v1/catalog?of=ID                  a status.CatalogService in each line
//	POST /v1/retry?of=ID                   status.FollowedOwner, as it was; an attempt is made now
//	POST /v1/confirm?of=ID&source=NAME     status.CatalogSource, as it was; what was paused of it is withdrawn
//	POST /retry, POST /confirm             the same for the page, as a form with its token
//
// An error is {"error": TEXT} with the code 400 or 404, or 503 for a catalog while too many
// are read. Only a form is read from a body.
func NewHandler(source ReportSource) http.Handler {
	h := statusHandler{source, newPages(), make(chan struct{}, maxCatalogs), rand.Text()}
	policy := contentPolicy()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", h.servePage)
	mux.HandleFunc("GET /services", h.serveListing)
	mux.Handle("GET /v1/status", jsonAnswer(func(*http.Request) (any, int, error) { return source.Status(), 0, nil }))
	mux.Handle("GET /v1/why", jsonAnswer(h.answerWhy))
	mux.HandleFunc("GET /v1/catalog", h.writeCatalog)
	mux.Handle("POST /v1/retry", h.answerPost(h.retryOwner))
	mux.HandleFunc("POST /retry", h.postForm(h.retryOwner))
	mux.Handle("POST /v1/confirm", h.answerPost(h.confirmSource))
	mux.HandleFunc("POST /confirm", h.postForm(h.confirmSource))
	limited := http.MaxBytesHandler(http.NewCrossOriginProtection().Handler(mux), maxBody)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setSecurityHeaders(w.Header())
		w.Header().Set("Content-Security-Policy", policy)
		// A page from elsewhere can have a browser ask, though not read the answer. It
		// may have links, and nothing that asks by itself (Fetch Metadata Request Headers,
		// Sec-Fetch-Site).
		if r.Header.Get("Sec-Fetch-Site") == "cross-site" && r.Header.Get("Sec-Fetch-Mode") != "navigate" {
			http.Error(w, "this page does not answer requests that other sites make", http.StatusForbidden)
			return
		}
		limited.ServeHTTP(w, r)
	})
}

type statusHandler struct {
	source  ReportSource
	pages   *template.Template
	reading chan struct{} // has room for as many catalogs as may be read at a time

	// A form from elsewhere can have a browser send it here. It does not know the token, as
	// no page from elsewhere can read this one. The browser also says where a POST comes from.
	token string
}

// jsonAnswer returns the value that a request gets, or an error and its code.
type jsonAnswer func(r *http.Request) (value any, code int, err error)

// ServeHTTP implements http.Handler.
func (a jsonAnswer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	value, code, err := a(r)
	if err != nil {
		sendError(w, code, err)
		return
	}
	sendJSON(w, http.StatusOK, value)
}

// answerPost answers a POST below /v1 with what act returns.
func (h statusHandler) answerPost(act func(url.Values) (any, error)) jsonAnswer {
	return func(r *http.Request) (any, int, error) {
		was, err := act(r.URL.Query())
		return was, http.StatusNotFound, err
	}
}

// postForm answers a form of the page, and leads back to it.
func (h statusHandler) postForm(act func(url.Values) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		// ParseForm takes no form of several parts, which could be written to the disk.
		if err := r.ParseForm(); err != nil || subtle.ConstantTimeCompare([]byte(r.PostForm.Get("token")), []byte(h.token)) != 1 {
			http.Error(w, "the page has changed since this form was loaded; go back and reload the page", http.StatusForbidden)
			return
		}
		if _, err := act(r.PostForm); err != nil {
			http.Error(w, safetext.Printable(err.Error()), http.StatusNotFound)
			return
		}
		http.Redirect(w, r, "/", http.StatusSeeOther)
	}
}

// retryOwner has an owner tried at once that there is no stream with, and returns how it was before.
func (h statusHandler) retryOwner(from url.Values) (any, error) {
	s := h.source.Status()
	u, err := s.FindOwner(from.Get("of"))
	if err != nil {
		return nil, err //nolint:wrapcheck // it is what the answer says
	}
	u.Retry()
	return u, nil
}

// confirmSource withdraws the paused services of a source, and returns how it was before.
func (h statusHandler) confirmSource(from url.Values) (any, error) {
	s := h.source.Status()
	of, err := s.FindPaused(from.Get("of"), from.Get("source"))
	if err != nil {
		return nil, err //nolint:wrapcheck // as in retryOwner
	}
	if of == nil {
		return status.CatalogSource{}, nil
	}
	of.Paused = of.Confirm()
	return of, nil
}

func (h statusHandler) answerWhy(r *http.Request) (any, int, error) {
	why, err := h.explainName(r, r.URL.Query().Get("name"), r.URL.Query().Get("type"))
	return why, http.StatusBadRequest, err
}

func (h statusHandler) explainName(r *http.Request, name, text string) (status.NameExplanation, error) {
	name, qtype, err := parseQuestion(name, text)
	if err != nil {
		return status.NameExplanation{}, err
	}
	return h.source.Why(r.Context(), name, qtype) //nolint:wrapcheck // it is what the page says
}

// parseQuestion reads a name and a type.
func parseQuestion(name, text string) (string, uint16, error) {
	if name == "" {
		return "", 0, errors.New("name is missing")
	}
	if _, ok := dns.IsDomainName(name); !ok {
		return "", 0, fmt.Errorf("name: %q is not a domain name", name)
	}
	if text == "" {
		text = "A"
	}
	qtype, ok := dns.StringToType[text]
	if !ok {
		return "", 0, fmt.Errorf("type: %q is not a type such as A, AAAA, SRV or TXT", text)
	}
	return dns.CanonicalName(name), qtype, nil
}

// openCatalog returns the services of the catalog that a request is about, as the status names it, and a function to
// be called when they have been read. With an error it returns the code of the answer.
func (h statusHandler) openCatalog(w http.ResponseWriter, r *http.Request, s *status.Status) (services iter.Seq2[status.CatalogService, error], read func(), code int, err error) {
	of := r.URL.Query().Get("of")
	if err := s.CheckCatalog(of); err != nil {
		return nil, nil, http.StatusNotFound, err //nolint:wrapcheck // it is what the page says
	}
	select {
	case h.reading <- struct{}{}:
		return h.source.Catalog(of), func() { <-h.reading }, 0, nil
	default:
		w.Header().Set("Retry-After", "10")
		return nil, nil, http.StatusServiceUnavailable, errors.New("too many read a catalog now; try again")
	}
}

func (h statusHandler) writeCatalog(w http.ResponseWriter, r *http.Request) {
	now := h.source.Status()
	services, read, code, err := h.openCatalog(w, r, &now)
	if err != nil {
		sendError(w, code, err)
		return
	}
	defer read()
	w.Header().Set("Content-Type", ndjson)
	// A writer that has no deadlines needs none: it is no connection.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(catalogTimeout))
	encoder := newEncoder(w)
	for service, err := range services {
		if err != nil || encoder.Encode(service) != nil { //nolint:errchkjson // the JSON in it is valid
			panic(http.ErrAbortHandler) // so that nobody takes a part for the whole
		}
	}
}

// ndjson is the type of lines of JSON.
const ndjson = "application/x-ndjson"

// sendJSON answers with a value.
func sendJSON(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = newEncoder(w).Encode(value) //nolint:errchkjson // a client that is gone needs no answer
}

func sendError(w http.ResponseWriter, code int, err error) {
	sendJSON(w, code, map[string]string{"error": err.Error()})
}

// setSecurityHeaders keeps an answer out of caches, frames and other sites, and away from guesses.
func setSecurityHeaders(h http.Header) {
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
}

func newEncoder(w http.ResponseWriter) *json.Encoder {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder
}
