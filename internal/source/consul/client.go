package consul

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

const (
	requestTime   = 20 * time.Second // for an answer, beyond what the query may wait
	mostStale     = 10 * time.Second // since a server has heard of its leader
	maxTokenBytes = 4 << 10
	maxBodyBytes  = 64 << 20 // of one answer; a list of 100,000 services takes 10
	maxErrorBytes = 200
)

// read asks for the list, or for a service, and puts the answer in a report. With an index the query
// waits until the answer has a later one; others are a few at a time.
func (x *session) read(ctx context.Context, after uint64, r *report) error {
	target, answer, limit := "/v1/catalog/services", any(&r.tags), requestTime
	wait := listWait
	if r.service != "" {
		target, answer, wait = "/v1/health/service/"+url.PathEscape(r.service), &r.instances, serviceWait
	}
	params := make(url.Values)
	if x.Datacenter != "" {
		params.Set("dc", x.Datacenter)
	}
	if after == 0 && r.service == "" {
		params.Set("consistent", "") // a leader that was just elected may not have read all of its log yet
	}
	if after > 0 {
		params.Set("index", strconv.FormatUint(after, 10))
		params.Set("wait", wait.String())
		limit += wait + wait/16 // by which Consul spreads the ends of queries
	} else {
		select {
		case x.reads <- struct{}{}:
			defer func() { <-x.reads }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, x.Address+target+"?"+params.Encode(), http.NoBody)
	if err == nil {
		err = x.addToken(request)
	}
	if err != nil {
		return err
	}
	response, err := x.transport.RoundTrip(request) // which follows nowhere, as it has the token
	switch {
	case ctx.Err() != nil:
		return errors.New("no answer in time")
	case err != nil:
		return err
	}
	defer response.Body.Close()
	if err := r.readHeader(response); err != nil {
		return err
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxBodyBytes)).Decode(answer); err != nil {
		return fmt.Errorf("the answer to %s is not one of Consul: %w", target, err)
	}
	return nil
}

// addToken adds the token, which may be another one at any time.
func (s *Source) addToken(request *http.Request) error {
	token := []byte(s.Token)
	if s.TokenFile != "" {
		var err error
		if token, _, err = file.Read(s.TokenFile, maxTokenBytes); err != nil {
			return fmt.Errorf("token: %w", err)
		}
		if token = bytes.TrimSpace(token); len(token) == 0 {
			return fmt.Errorf("token: %s is empty", s.TokenFile)
		}
	}
	if len(token) > 0 {
		request.Header.Set("X-Consul-Token", string(token))
	}
	return nil
}

// readHeader takes what the header of an answer says. It fails where the agent refuses the
// request, or the answer may be too old. What an agent streams from its servers says nothing of
// their leader: the list is never streamed.
func (r *report) readHeader(response *http.Response) error {
	header, said := response.Header, ""
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorBytes))
		said = fmt.Sprintf("%d: %s", response.StatusCode, safetext.Printable(string(bytes.TrimSpace(text))))
	}
	index, err := strconv.ParseUint(header.Get("X-Consul-Index"), 10, 64)
	contact, _ := strconv.ParseInt(header.Get("X-Consul-Lastcontact"), 10, 64)
	r.index = max(index, 1) // 0 would not wait; 1 waits for anything
	age := time.Duration(contact) * time.Millisecond
	switch {
	case response.StatusCode == http.StatusForbidden:
		return fmt.Errorf("it refuses the token (%s); give the source one that has service:read and node:read", said)
	case response.StatusCode == http.StatusTooManyRequests:
		return fmt.Errorf("it refuses more requests or connections (%s); raise limits.http_max_conns_per_client of the agent, or use https", said)
	case said != "":
		return fmt.Errorf("it answers %s", said)
	case err != nil:
		return errors.New("it is no Consul: its answer has no X-Consul-Index")
	case header.Get("X-Consul-Knownleader") == "false" && header.Get("X-Consul-Query-Backend") != "streaming":
		return errors.New("its servers have no leader")
	case age > mostStale:
		return fmt.Errorf("its server has not heard of the leader for %v", age)
	}
	return nil
}
