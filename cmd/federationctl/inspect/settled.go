package inspect

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/status"
)

// askAgain is how long it takes until an owner is asked again that has gone away.
const askAgain = 500 * time.Millisecond

// answerMargin is how much longer an answer may take than the owner is to wait.
const answerMargin = 10 * time.Second

// Settled asks an owner whether a change is settled, until it is, or until the time is over, and
// returns what the owner has said last. Meanwhile it calls progress with that, or with why the
// owner says nothing. It asks again where the owner was started anew. The error is why nothing is
// known at all.
func (e *Endpoint) Settled(ctx context.Context, query url.Values, wait time.Duration, progress func(*status.Settlement, error)) (*status.Settlement, error) {
	end := time.Now().Add(wait)
	patient := *e
	client := *e.http
	client.Timeout = wait + answerMargin
	patient.http = &client
	var last *status.Settlement
	for {
		query.Set("timeout", max(time.Until(end), 0).Round(time.Millisecond).String())
		complete, err := patient.settlements(ctx, query, func(s *status.Settlement) {
			last = s
			progress(s, nil)
		})
		var away *UnreachableError
		switch {
		case complete:
			return last, nil
		case ctx.Err() != nil:
			return nil, err
		case !errors.As(err, &away):
			return nil, err
		case !time.Now().Before(end):
			return nil, err // what was said before may be wrong by now
		}
		progress(last, err)
		pause := time.NewTimer(askAgain)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
		}
	}
}

// settlements asks once, and calls each with what comes. It reports whether the last one came.
func (e *Endpoint) settlements(ctx context.Context, query url.Values, each func(*status.Settlement)) (complete bool, err error) {
	const path = "/v1/settled"
	body, err := e.ask(ctx, http.MethodGet, path, query, "application/x-ndjson")
	if err != nil {
		return false, err
	}
	defer body.Close()
	lines := bufio.NewScanner(io.LimitReader(body, maxReport))
	lines.Buffer(nil, maxReport)
	for lines.Scan() {
		var s status.Settlement
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil || s.Name == "" {
			return false, fmt.Errorf("%s answers %s with a line that is no settlement", e, path)
		}
		complete = true
		each(&s)
	}
	if err := lines.Err(); err != nil {
		return false, e.failure(ctx, path, err)
	}
	return complete, nil
}
