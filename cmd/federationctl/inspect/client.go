// Package inspect asks a running process, a CoreDNS with the plugin, an owner or an importer, what it
// knows. The other side may be anything: what it says is bounded and escaped.
//
// Only packages of this module import it: it is not a stable API.
package inspect

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/status"
)

// The bounds of an answer, in bytes.
const (
	maxReport = 64 << 20 // a status or an explanation
	maxError  = 64 << 10
	maxHeader = 64 << 10
)

// Where the programs have their status endpoints in all examples, packages and charts.
const (
	ConsumerAt = "http://localhost:9154"
	OwnerAt    = "http://localhost:9156"
	ImporterAt = "http://localhost:9157"
)

// Endpoint is the status endpoint of a process.
type Endpoint struct {
	base   *url.URL
	others []string // URLs that are asked in turn where nothing listens at base
	local  bool     // it is not named, and one of those of this machine
	http   *http.Client
}

// NewEndpoint returns the endpoint at a URL, such as http://localhost:9154. An address
// alone is one of http, at the port of a CoreDNS if it has none; https needs the files, and
// http has none. Without a URL it is that of a CoreDNS on this machine, an owner or an importer. One
// request takes no longer than the timeout, with what is read of its answer. The error says
// what is wrong with the URL or the files.
func NewEndpoint(at string, files mtls.Files, timeout time.Duration) (*Endpoint, error) {
	text := cmp.Or(at, ConsumerAt)
	if !strings.Contains(text, "://") {
		if text = "http://" + text; !hasPort(text) {
			text += ":9154"
		}
	}
	base, err := url.Parse(text)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" || base.Path != "" && base.Path != "/" ||
		base.User != nil || base.RawQuery != "" || base.Fragment != "" {
		return nil, fmt.Errorf("%q is not a URL such as http://localhost:9154 or https://host:9154", at)
	}
	transport := &http.Transport{ // no proxy: what is asked for is not for others
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
	}
	switch {
	case base.Scheme == "https" && (files.Cert == "" || files.Key == "" || files.CA == ""):
		return nil, fmt.Errorf("%s needs --cert, --key and --ca", at)
	case base.Scheme == "https":
		if transport.TLSClientConfig, err = file.TLS(files.Cert, files.Key, files.CA); err != nil {
			return nil, err //nolint:wrapcheck // it names the file
		}
		transport.TLSClientConfig.MinVersion = tls.VersionTLS13
	case files != mtls.Files{}:
		return nil, fmt.Errorf("--cert, --key and --ca are for https, and %s is not", at)
	}
	client := &http.Client{
		Transport: transport, Timeout: timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	e := &Endpoint{base: base, http: client}
	if at == "" {
		e.local, e.others = true, []string{OwnerAt, ImporterAt}
	}
	return e, nil
}

// hasPort reports whether a URL, if it is one, has a port.
func hasPort(text string) bool {
	u, err := url.Parse(text)
	return err != nil || u.Port() != "" || u.Host == ""
}

// Status returns the status of the process, and as it came: indented JSON that is safe to
// print.
func (e *Endpoint) Status(ctx context.Context) (*status.Status, string, error) {
	s, text, err := requestReport[status.Status](ctx, e, http.MethodGet, "/v1/status", nil)
	if err == nil && s.Role == "" {
		err = e.unknownPathError("/v1/status")
	}
	return s, text, err
}

// ExplainName returns why a name is answered as it is, and the answer as Status does.
func (e *Endpoint) ExplainName(ctx context.Context, name, qtype string) (*status.NameExplanation, string, error) {
	w, text, err := requestReport[status.NameExplanation](ctx, e, http.MethodGet, "/v1/why", url.Values{"name": {name}, "type": {qtype}})
	if err == nil && w.Role == "" {
		err = e.unknownPathError("/v1/why")
	}
	return w, text, err
}

// RetryOwner has the process try an owner at once that there is no stream with, and returns how
// it was before. Of is the owner, or the server name of the catalog that is relayed from it;
// empty where there is only one.
func (e *Endpoint) RetryOwner(ctx context.Context, of string) (*status.FollowedOwner, string, error) {
	return requestChange[status.FollowedOwner](ctx, e, "/v1/retry", of, url.Values{})
}

// ConfirmWithdrawal has an owner withdraw the paused services of a source, and returns how it
// was before. Of is the server name of the catalog, empty where there is only one; source may
// be empty where at most one has paused withdrawals.
func (e *Endpoint) ConfirmWithdrawal(ctx context.Context, of, source string) (*status.CatalogSource, string, error) {
	return requestChange[status.CatalogSource](ctx, e, "/v1/confirm", of, url.Values{"source": {source}})
}

// requestChange asks for a change of a catalog.
func requestChange[T any](ctx context.Context, e *Endpoint, path, of string, query url.Values) (*T, string, error) {
	of, err := e.onlyCatalog(ctx, of)
	if err != nil {
		return nil, "", err
	}
	query.Set("of", of)
	return requestReport[T](ctx, e, http.MethodPost, path, query)
}

// mostNames is how many catalogs an error names.
const mostNames = 20

// onlyCatalog returns the name of a catalog: the one that is given, else the default or only one.
func (e *Endpoint) onlyCatalog(ctx context.Context, of string) (string, error) {
	if of != "" {
		return of, nil
	}
	names, err := e.listCatalogs(ctx)
	switch {
	case err != nil:
		return "", err
	case len(names) == 0:
		return "", fmt.Errorf("%s has no catalog", e)
	case len(names) > 1 && names[0] != "":
		return "", fmt.Errorf("%s has several catalogs; name one with --of: %s", e, printable.JoinFew(names, mostNames, ", ", safetext.Quote))
	}
	return names[0], nil
}

// requestReport asks for a value, and returns it as it came as well.
func requestReport[T any](ctx context.Context, e *Endpoint, method, path string, query url.Values) (*T, string, error) {
	body, err := e.requestPath(ctx, method, path, query, "application/json")
	if err != nil {
		return nil, "", err
	}
	defer body.Close()
	data, err := io.ReadAll(io.LimitReader(body, maxReport+1))
	switch {
	case err != nil:
		return nil, "", e.explainFailure(ctx, path, err)
	case len(data) > maxReport:
		return nil, "", fmt.Errorf("%s answers %s with more than %d bytes", e, path, maxReport)
	}
	var value T
	if err := json.Unmarshal(data, &value); err != nil {
		return nil, "", fmt.Errorf("%s answers %s in a form that this version does not know: %s", e, path, safetext.Printable(err.Error()))
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, bytes.ToValidUTF8(bytes.TrimSpace(data), []byte("\uFFFD")), "", "  "); err != nil {
		return nil, "", e.explainFailure(ctx, path, err)
	}
	return &value, printable.EscapeControls(indented.String()) + "\n", nil
}

// readServices calls each with every service of a catalog, in the order in which they come. More
// than limit bytes are an error.
func (e *Endpoint) readServices(ctx context.Context, of string, limit int64, each func(*status.CatalogService) error) error {
	const path = "/v1/catalog"
	body, err := e.requestPath(ctx, http.MethodGet, path, url.Values{"of": {of}}, "application/x-ndjson")
	if err != nil {
		return err
	}
	defer body.Close()
	rest := &io.LimitedReader{R: body, N: limit + 1}
	lines := bufio.NewScanner(rest)
	lines.Buffer(nil, maxService)
	tooLarge := fmt.Errorf("%s has a catalog of more than %d bytes; --max-catalog raises the limit", e, limit)
	for lines.Scan() {
		var line status.CatalogService
		if err := json.Unmarshal(lines.Bytes(), &line); rest.N <= 0 {
			return tooLarge // and the line may be a part of one
		} else if err != nil || len(line.Service) == 0 {
			return fmt.Errorf("%s answers %s with a line that is no service", e, path)
		}
		if err := each(&line); err != nil {
			return err
		}
	}
	switch {
	case rest.N <= 0:
		return tooLarge
	case errors.Is(lines.Err(), bufio.ErrTooLong):
		return fmt.Errorf("%s answers %s with a service of more than %d bytes", e, path, maxService)
	case lines.Err() != nil:
		return e.explainFailure(ctx, path, lines.Err())
	}
	return nil
}

// maxService bounds the JSON of one service, in bytes: as in a catalog file.
const maxService = 8 << 20

// requestPath asks for a path, and returns the body of an answer of the right type.
func (e *Endpoint) requestPath(ctx context.Context, method, path string, query url.Values, contentType string) (io.ReadCloser, error) {
	target := *e.base
	target.Path, target.RawQuery = path, query.Encode()
	request, err := http.NewRequestWithContext(ctx, method, target.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e, err)
	}
	request.Header.Set("Accept", contentType)
	response, err := e.http.Do(request)
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" && len(e.others) > 0 {
		if e.base, err = url.Parse(e.others[0]); err != nil {
			return nil, fmt.Errorf("%s: %w", e.others[0], err)
		}
		e.others = e.others[1:]
		return e.requestPath(ctx, method, path, query, contentType)
	}
	if err != nil {
		return nil, e.explainFailure(ctx, path, err)
	}
	if err := e.checkResponse(response, path, contentType); err != nil {
		response.Body.Close()
		return nil, err
	}
	return response.Body, nil
}

// checkResponse returns why the answer is none.
func (e *Endpoint) checkResponse(response *http.Response, path, contentType string) error {
	kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if code := response.StatusCode; code != http.StatusOK {
		var said struct {
			Error string `json:"error"`
		}
		if kind == "application/json" {
			data, _ := io.ReadAll(io.LimitReader(response.Body, maxError))
			_ = json.Unmarshal(data, &said)
		}
		switch {
		case said.Error != "":
			return fmt.Errorf("%s: %s", e, safetext.Printable(said.Error))
		case code == http.StatusNotFound:
			return e.unknownPathError(path)
		case code >= 300 && code < 400:
			return fmt.Errorf("%s redirects %s to %s, which is not followed", e, path, safetext.Printable(fmt.Sprintf("%q", response.Header.Get("Location"))))
		}
		return fmt.Errorf("%s answers %s with the code %d", e, path, code)
	}
	if kind != contentType {
		return fmt.Errorf("%s answers %s with the content type %s in place of %s: it is no status endpoint",
			e, path, safetext.Printable(fmt.Sprintf("%q", response.Header.Get("Content-Type"))), contentType)
	}
	return nil
}

// unknownPathError returns the error of a process that does not know a path.
func (e *Endpoint) unknownPathError(path string) error {
	return fmt.Errorf("%s does not have %s: it is an older version, or another program such as its metrics; the endpoint is what 'status' names in a Corefile or in the configuration of an owner or importer", e, path)
}

// explainFailure returns why there is no answer, and what to do.
func (e *Endpoint) explainFailure(ctx context.Context, path string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted while %s was asked for %s", e, path)
	}
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err // without the URL, which e has
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return newUnreachable("%s does not answer %s in time; --timeout gives it longer", e, path)
	}
	text := safetext.Printable(err.Error())
	op, ok := errors.AsType[*net.OpError](err)
	switch {
	case ok && op.Op == "dial" && e.local:
		return newUnreachable("no status endpoint at %s (CoreDNS), %s (owner) or %s (importer): %s; add 'status' to the Corefile or to the configuration of the owner or importer, or name another endpoint with --at", ConsumerAt, OwnerAt, ImporterAt, text)
	case ok && op.Op == "dial":
		return newUnreachable("%s: %s; check --at, and that the process runs with 'status' in its Corefile or in its configuration", e, text)
	}
	return newUnreachable("%s: %s; if this goes on, check --at: it may be another port, such as that of DNS", e, text)
}

// UnreachableError is why a process gives no answer at all.
type UnreachableError struct{ text string }

// Error implements error.
func (e *UnreachableError) Error() string { return e.text }

func newUnreachable(format string, args ...any) error {
	return &UnreachableError{fmt.Sprintf(format, args...)}
}

// String returns the URL.
func (e *Endpoint) String() string { return strings.TrimSuffix(e.base.String(), "/") }

// listCatalogs returns the names of the catalogs that the process has: the owners that a
// consumer or an importer follows, or the server names of an owner.
func (e *Endpoint) listCatalogs(ctx context.Context) ([]string, error) {
	status, _, err := e.Status(ctx)
	if err != nil {
		return nil, err
	}
	return slices.Sorted(slices.Values(status.CatalogNames())), nil
}
