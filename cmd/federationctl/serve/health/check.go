package health

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// forms are those of a check, for the help of a command.
const forms = "http://HOST:PORT/PATH, https://..., or tcp://HOST:PORT"

// errUser does not show the URL, as the rest of the errors do: it may have a password.
var errUser = errors.New("a URL with a user is none of " + forms)

// ParseCheck returns the check that text describes, in one of the forms:
//
//   - http or https: a GET is answered with a status from 200 to 399. Redirections are
//     not followed, and the certificate is not verified: what is checked is the own
//     program.
//   - tcp: a connection is accepted.
func ParseCheck(text string) (Check, error) {
	u, err := url.Parse(text)
	if err == nil && u.User != nil {
		return nil, errUser
	}
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("%q is none of %s", text, forms)
	}
	switch u.Scheme {
	case "http", "https":
		client := newClient()
		return func(ctx context.Context) error { return getURL(ctx, client, u.String()) }, nil
	case "tcp":
	default:
		return nil, fmt.Errorf("%q is none of %s", text, forms)
	}
	if host, port, err := net.SplitHostPort(u.Host); err != nil || host == "" || port == "" {
		return nil, fmt.Errorf("%q has no host:port", text)
	}
	if u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%q has more than host:port", text)
	}
	return func(ctx context.Context) error { return dialAddress(ctx, u.Host) }, nil
}

// newClient returns a client that makes a connection for each check: that it can be
// made is a part of the check.
func newClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DisableKeepAlives:      true,
			TLSClientConfig:        &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see ParseCheck
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func getURL(ctx context.Context, client *http.Client, target string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return err
	}
	request.Header.Set("User-Agent", "federationctl-register")
	response, err := client.Do(request)
	name, _, _ := strings.Cut(target, "?") // what is behind it may be secret
	if failed, ok := errors.AsType[*url.Error](err); ok {
		err = fmt.Errorf("GET %s: %w", name, failed.Err)
	}
	if err != nil {
		return err
	}
	response.Body.Close()
	if response.StatusCode < 200 || response.StatusCode > 399 {
		return fmt.Errorf("GET %s: status %d", name, response.StatusCode)
	}
	return nil
}

func dialAddress(ctx context.Context, address string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}
