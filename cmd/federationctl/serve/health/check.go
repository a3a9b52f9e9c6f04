package health

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// forms are those of a check, for the help of a command.
const forms = "http://HOST:PORT/PATH, https://..., tcp://HOST:PORT, grpc://HOST:PORT[/SERVICE] or exec:COMMAND"

// errUser does not show the URL, as the rest of the errors do: it may have a password.
var errUser = errors.New("a URL with a user is none of " + forms)

// Parse returns the check that text describes, in one of the forms:
//
//   - http or https: a GET is answered with a status from 200 to 399. Redirections are
//     not followed, and the certificate is not verified: what is checked is the own
//     program.
//   - tcp: a connection is accepted.
//   - grpc: the health service of gRPC says SERVING, for the service or for the whole
//     server, without TLS.
//   - exec: the command line ends with exit code 0. The shell, sh, runs it.
func Parse(text string) (Check, error) {
	if line, ok := strings.CutPrefix(text, "exec:"); ok {
		if strings.TrimSpace(line) == "" {
			return nil, errors.New("exec: has no command")
		}
		return func(ctx context.Context) error { return execute(ctx, line) }, nil
	}
	u, err := url.Parse(text)
	if err == nil && u.User != nil {
		return nil, errUser
	}
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("%q is none of %s", text, forms)
	}
	switch u.Scheme {
	case "http", "https":
		client := httpClient()
		return func(ctx context.Context) error { return get(ctx, client, u.String()) }, nil
	case "tcp", "grpc":
	default:
		return nil, fmt.Errorf("%q is none of %s", text, forms)
	}
	if host, port, err := net.SplitHostPort(u.Host); err != nil || host == "" || port == "" {
		return nil, fmt.Errorf("%q has no host:port", text)
	}
	if u.Scheme == "grpc" && u.RawQuery == "" && u.Fragment == "" {
		service := strings.TrimPrefix(u.Path, "/")
		return func(ctx context.Context) error { return serving(ctx, u.Host, service) }, nil
	}
	if u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%q has more than host:port", text)
	}
	return func(ctx context.Context) error { return dial(ctx, u.Host) }, nil
}

// httpClient returns a client that makes a connection for each check: that it can be
// made is a part of the check.
func httpClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DisableKeepAlives:      true,
			DialContext:            new(net.Dialer).DialContext,
			TLSClientConfig:        &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see Parse
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func get(ctx context.Context, client *http.Client, target string) error {
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
		return shown(ctx, err)
	}
	response.Body.Close()
	if response.StatusCode < 200 || response.StatusCode > 399 {
		return fmt.Errorf("GET %s: status %d", name, response.StatusCode)
	}
	return nil
}

func dial(ctx context.Context, address string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return shown(ctx, err)
	}
	return conn.Close()
}

func serving(ctx context.Context, address, service string) error {
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address) // not by way of a proxy
		}),
		grpc.WithDisableServiceConfig(), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<10)))
	if err != nil {
		return err
	}
	defer conn.Close()
	response, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
	if err != nil {
		s := status.Convert(err)
		return shown(ctx, fmt.Errorf("health of %s: %v: %s", address, s.Code(), federation.Printable(s.Message())))
	}
	if s := response.GetStatus(); s != grpc_health_v1.HealthCheckResponse_SERVING {
		return fmt.Errorf("health of %s: %v", address, s)
	}
	return nil
}

// killDelay is how long a command that was killed may hold its output open.
const killDelay = time.Second

func execute(ctx context.Context, line string) error {
	command := exec.CommandContext(ctx, "sh", "-c", line) //nolint:gosec // the command line of whoever runs this
	var output last
	command.Stdout, command.Stderr = &output, &output
	command.WaitDelay = killDelay
	killGroup(command)
	err := command.Run()
	if err == nil {
		return nil
	}
	if text := bytes.TrimSpace(output.text); len(text) > 0 {
		err = fmt.Errorf("%w: %s", err, federation.Printable(string(text)))
	}
	return shown(ctx, fmt.Errorf("%s: %w", federation.Quote(line), err))
}

// errTimeout is why a check has failed that took too long.
var errTimeout = errors.New("it has taken too long")

// shown returns the error, or what a reader understands where it is only about the
// context.
func shown(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errTimeout
	}
	return err
}

// last keeps the end of what is written to it.
type last struct{ text []byte }

// maxText is how much of the output of a command is kept, in bytes.
const maxText = 100

// Write implements io.Writer.
func (l *last) Write(p []byte) (int, error) {
	l.text = append(l.text, p[max(0, len(p)-maxText):]...)
	l.text = l.text[max(0, len(l.text)-maxText):]
	return len(p), nil
}
