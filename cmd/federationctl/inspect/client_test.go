package inspect_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/inspect"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/internal/status/page"
)

func TestStatusAndWhy(t *testing.T) {
	p := &process{status.Consumer, map[string][]*federation.Service{"o1:8008": nil}}
	e := start(t, page.NewHandler(p))
	reported, text, err := e.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if reported.Role != status.Consumer || len(reported.Owners) != 1 || !strings.Contains(text, "\n  \"role\": \"consumer\"") {
		t.Errorf("unexpected status %+v: %s", reported, text)
	}
	why, _, err := e.ExplainName(t.Context(), "web.fed.example.", "A")
	if err != nil || why.Name != "web.fed.example." {
		t.Errorf("%+v, %v", why, err)
	}
	if _, _, err := e.ExplainName(t.Context(), "a..b", "A"); err == nil || !strings.Contains(err.Error(), "is not a domain name") {
		t.Errorf("of a name that is none: %v", err)
	}
}

func TestUnusableURLs(t *testing.T) {
	files := mtls.Files{Cert: "/nowhere/cert.pem", Key: "/nowhere/key.pem", CA: "/nowhere/ca.pem"}
	tests := []struct {
		at    string
		files mtls.Files
		want  string
	}{
		{"http://", mtls.Files{}, "is not a URL"},
		{"ftp://localhost", mtls.Files{}, "is not a URL"},
		{"http://localhost:9154/v1/status", mtls.Files{}, "is not a URL"},
		{"http://user@localhost", mtls.Files{}, "is not a URL"},
		{"https://localhost", mtls.Files{}, "needs --cert, --key and --ca"},
		{"https://localhost", files, "/nowhere/cert.pem"},
		{"http://localhost", files, "are for https"},
	}
	for _, test := range tests {
		if _, err := inspect.NewEndpoint(test.at, test.files, time.Second); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("NewEndpoint(%q): %v, expected %q", test.at, err, test.want)
		}
	}
}

const evil = "\x1b[2J\u202e\u0085<script>"

// TestHostileEndpoints asks what is no status endpoint, or one that is out to hurt.
func TestHostileEndpoints(t *testing.T) {
	send := func(code int, contentType, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body))
		}
	}
	endless := func(contentType, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", contentType)
			for r.Context().Err() == nil {
				if _, err := w.Write([]byte(text)); err != nil {
					return
				}
			}
		}
	}
	const reports, lines = "application/json", "application/x-ndjson"
	tests := []struct {
		name    string
		handler http.HandlerFunc
		want    string
	}{
		{"older", http.NotFound, "it is an older version, or another program"},
		{"own error", send(404, reports, `{"error": "there is no owner \u001b[2J\u202e"}`), "there is no owner"},
		{"another type", send(200, "text/html"+"; x=\u202e", "<html>"), "it is no status endpoint"},
		{"failing", send(500, "text/plain", evil), "with the code 500"},
		{"redirect", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://elsewhere.example/\u202e")
			w.WriteHeader(http.StatusFound)
		}, "is not followed"},
		{"no JSON", send(200, reports, "{\x1b"), "in a form that this version does not know"},
		{"no report", send(200, reports, "{}"), "it is an older version, or another program"},
		{"endless space", endless(reports, strings.Repeat(" ", 1<<16)), "with more than 67108864 bytes"},
		{"cut off", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", reports)
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("{"))
		}, "unexpected EOF"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			e := start(t, test.handler)
			_, _, err := e.Status(t.Context())
			oneLine(t, err)
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, expected %q", err, test.want)
			}
		})
	}

	catalogs := []struct {
		name    string
		handler http.HandlerFunc
		want    string
	}{
		{"older", http.NotFound, "it is an older version, or another program"},
		{"no services", send(200, lines, "{}\n"), "a line that is no service"},
		{"no JSON", send(200, lines, evil+"\n"), "a line that is no service"},
		{"endless lines", endless(lines, `{"service": {}}`+"\n"), "a catalog of more than 100000 bytes"},
		{"endless line", endless(lines, strings.Repeat("x", 1<<16)), "a catalog of more than 100000 bytes"},
	}
	for _, test := range catalogs {
		t.Run("catalog "+test.name, func(t *testing.T) {
			_, err := start(t, test.handler).DumpCatalog(t.Context(), "o", 100_000)
			oneLine(t, err)
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, expected %q", err, test.want)
			}
			if strings.HasPrefix(test.name, "endless") {
				return // Find takes each as it comes
			}
			_, err = start(t, test.handler).FindServices(t.Context(), "o", nil, func(*inspect.FoundService) error { return nil })
			oneLine(t, err)
		})
	}
}

// TestSilentEndpoint asks one that takes the question and never ends its answer.
func TestSilentEndpoint(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"header": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"body": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, "{")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(handler)
			defer server.Close()
			_, _, err := endpoint(t, server.URL, 50*time.Millisecond).Status(t.Context())
			oneLine(t, err)
			if !strings.Contains(err.Error(), "does not answer /v1/status in time") {
				t.Error(err)
			}
			ctx, interrupt := context.WithCancel(t.Context())
			interrupt()
			_, _, err = endpoint(t, server.URL, time.Minute).Status(ctx)
			oneLine(t, err)
			if !strings.Contains(err.Error(), "interrupted") || strings.Contains(err.Error(), "check") {
				t.Error(err)
			}
		})
	}
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	_, _, err := endpoint(t, server.URL, time.Minute).Status(t.Context())
	oneLine(t, err)
}

// TestJSONIsSafe shows that what the endpoint sends as JSON is printed without what a
// terminal obeys, and says the same.
func TestJSONIsSafe(t *testing.T) {
	e := start(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		_, _ = w.Write([]byte("{\"role\": \"owner\", \"version\": \"\u202e\u009b\x7f\x9b\u00e9\", \"later\": 1}"))
	}))
	reported, text, err := e.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := "{\n  \"role\": \"owner\",\n  \"version\": \"\\u202e\\u009b\\u007f\uFFFD\u00e9\",\n  \"later\": 1\n}\n"
	if text != want || reported.Role != status.Owner {
		t.Errorf("printed %q, expected %q", text, want)
	}
}
