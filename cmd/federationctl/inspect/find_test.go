package inspect_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/inspect"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestFindHostile asks a process whose services are none.
func TestFindHostile(t *testing.T) {
	for want, lines := range map[string]string{
		"that is no service": `{"services":1}`,
		"does not have":      "",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if lines == "" {
				http.NotFound(w, r)
				return
			}
			w.Header().Set("Content-Type", "application/x-ndjson")
			fmt.Fprintln(w, lines)
		}))
		e := must.Get(inspect.NewEndpoint(server.URL, mtls.Files{}, time.Minute))(t)
		_, err := e.Find(t.Context(), "o", nil, func(*inspect.Found) error { return nil })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", lines, err)
		}
		server.Close()
	}
}
