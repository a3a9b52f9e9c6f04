package page

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/status"
)

// Settler is a Source that knows whether a change has reached everybody.
type Settler interface {
	// Settled waits until a change is settled, or ctx ends, and returns what was so last. It
	// calls progress with what is so meanwhile.
	Settled(ctx context.Context, q Question, progress func(status.Settlement)) (status.Settlement, error)
}

// Question is what a Settler is asked.
type Question struct {
	Name    string     // the fqdn or the name of a service, or a name in DNS, in lower case and without the final dot
	Address netip.Addr // of an endpoint; the zero value is every one
	There   bool       // whether it is to be there, and not gone
	Catalog *string    // the server name of the only catalog that counts; nil: all
	Ignore  []string   // consumers that do not count
}

const (
	maxWaits    = 16        // at a time
	longestWait = time.Hour // of one
	defaultWait = 30 * time.Second
)

// settled answers GET /v1/settled: with the code 200 when it is settled, 504 when it is not in
// time, and 409 when it cannot be known. As lines of JSON it has all that is so meanwhile, and
// the code 200.
func (h handler) settled(of Settler) http.HandlerFunc {
	waits := make(chan struct{}, maxWaits)
	return func(w http.ResponseWriter, r *http.Request) {
		q, wait, err := parseSettled(r)
		if err != nil {
			fail(w, http.StatusBadRequest, err)
			return
		}
		select {
		case waits <- struct{}{}:
			defer func() { <-waits }()
		default:
			fail(w, http.StatusServiceUnavailable, fmt.Errorf("%d requests wait already, come back later", maxWaits))
			return
		}
		control := http.NewResponseController(w)
		_ = control.SetWriteDeadline(time.Now().Add(wait + answerTimeout))
		ctx, cancel := context.WithTimeout(r.Context(), wait)
		defer cancel()
		lines := r.Header.Get("Accept") == ndjson
		said := ""
		s, err := of.Settled(ctx, q, func(s status.Settlement) {
			if now := strings.Join(s.Lines(), ""); lines && now != said {
				said = now
				w.Header().Set("Content-Type", ndjson)
				_ = newEncoder(w).Encode(s)
				_ = control.Flush()
			}
		})
		switch {
		case r.Context().Err() != nil:
			panic(http.ErrAbortHandler) // so that nobody takes what is so as the process ends for the answer
		case err != nil:
			fail(w, http.StatusNotFound, err)
		case lines:
			w.Header().Set("Content-Type", ndjson)
			_ = newEncoder(w).Encode(s)
		default:
			send(w, map[int]int{0: http.StatusOK, 3: http.StatusGatewayTimeout, 4: http.StatusConflict}[s.Code()], s)
		}
	}
}

// ndjson is the type of lines of JSON.
const ndjson = "application/x-ndjson"

// parseSettled reads the parameters of a request.
func parseSettled(r *http.Request) (q Question, wait time.Duration, err error) {
	from := r.URL.Query()
	q.Ignore, wait = from["ignore"], defaultWait
	if q.Name = strings.ToLower(strings.TrimSuffix(from.Get("name"), ".")); q.Name == "" {
		return q, 0, errors.New("name is missing")
	}
	switch from.Get("for") {
	case "gone":
	case "there":
		q.There = true
	default:
		return q, 0, errors.New("for is neither gone nor there")
	}
	if text := from.Get("address"); text != "" {
		if q.Address, err = netip.ParseAddr(text); err != nil {
			return q, 0, fmt.Errorf("address: %q is no IP address", text)
		}
	}
	if from.Has("catalog") {
		catalog := from.Get("catalog")
		q.Catalog = &catalog
	}
	if text := from.Get("timeout"); text != "" {
		if wait, err = time.ParseDuration(text); err != nil || wait < 0 || wait > longestWait {
			return q, 0, fmt.Errorf("timeout: %q is not a duration such as 30s, up to %v", text, longestWait)
		}
	}
	return q, wait, nil
}
