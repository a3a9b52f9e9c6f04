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
	"github.com/hamlet-federation/coredns-federation/internal/source/internal/servertls"
)

const (
	requestTime   = 20 * time.Second // for an answer, beyond what the query may wait
	mostStale     = 10 * time.Second // since a server has heard of its leader
	maxTokenBytes = 4 << 10
	maxBodyBytes  = 64 << 20 // of one answer; a list of 100,000 services takes 10
	maxErrorBytes = 200
)

// readMeta is what Consul says of an answer.
type readMeta struct {
	index    uint64 // never 0
	filtered bool   // the token must not read something of it
}

// newTransport returns one that has the TLS that the files say now. What it is asked for goes to
// the agent only, as it has the token.
func (s *Source) newTransport() (*http.Transport, error) {
	config, err := servertls.Load(s.TLS)
	return &http.Transport{
		DialContext: s.dial, TLSClientConfig: config, TLSHandshakeTimeout: requestTime, ForceAttemptHTTP2: true,
		MaxIdleConnsPerHost: mostPlain, IdleConnTimeout: time.Minute,
	}, err
}

// read asks for a path, and decodes the answer. With an index the query waits, for as long as wait,
// until the answer has a later one.
func (x *session) read(ctx context.Context, path string, index uint64, wait time.Duration, answer any) (readMeta, error) {
	params := make(url.Values)
	if x.Datacenter != "" {
		params.Set("dc", x.Datacenter)
	}
	limit := requestTime
	if index > 0 {
		params.Set("index", strconv.FormatUint(index, 10))
		params.Set("wait", wait.String())
		limit += wait + wait/16 // by which Consul spreads the ends of queries
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, x.Address+path+"?"+params.Encode(), http.NoBody)
	if err == nil {
		err = x.addToken(request)
	}
	if err != nil {
		return readMeta{}, err
	}
	response, err := x.transport.RoundTrip(request)
	switch {
	case ctx.Err() != nil:
		return readMeta{}, errors.New("no answer in time")
	case err != nil:
		return readMeta{}, err
	}
	defer response.Body.Close()
	meta, err := readHeader(response)
	if err != nil {
		return meta, err
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxBodyBytes)).Decode(answer); err != nil {
		return meta, fmt.Errorf("the answer to %s is not one of Consul: %w", path, err)
	}
	return meta, nil
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

// readHeader returns what the header of an answer says. It fails where the agent refuses the
// request, or the answer may be too old. What an agent streams from its servers says nothing of
// their leader: the list is never streamed.
func readHeader(response *http.Response) (readMeta, error) {
	header := response.Header
	meta := readMeta{filtered: header.Get("X-Consul-Results-Filtered-By-ACLs") == "true"}
	index, err := strconv.ParseUint(header.Get("X-Consul-Index"), 10, 64)
	meta.index = max(index, 1) // 0 would not wait; 1 waits for anything
	contact, _ := strconv.ParseInt(header.Get("X-Consul-LastContact"), 10, 64)
	age := time.Duration(contact) * time.Millisecond
	text, streamed := "", header.Get("X-Consul-Query-Backend") == "streaming"
	if response.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorBytes))
		text = fmt.Sprintf("%d: %s", response.StatusCode, safetext.Printable(string(bytes.TrimSpace(said))))
	}
	switch {
	case response.StatusCode == http.StatusForbidden:
		return meta, fmt.Errorf("it refuses the token (%s); give the source one that has service:read and node:read", text)
	case response.StatusCode == http.StatusTooManyRequests:
		return meta, fmt.Errorf("it refuses more requests or connections (%s); raise limits.http_max_conns_per_client of the agent, or use https", text)
	case text != "":
		return meta, fmt.Errorf("it answers %s", text)
	case err != nil:
		return meta, errors.New("it is no Consul: its answer has no X-Consul-Index")
	case header.Get("X-Consul-KnownLeader") == "false" && !streamed:
		return meta, errors.New("its servers have no leader")
	case age > mostStale:
		return meta, fmt.Errorf("its server has not heard of the leader for %v", age)
	}
	return meta, nil
}
