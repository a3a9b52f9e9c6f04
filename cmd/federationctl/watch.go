package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// settleTime is the silence that ends the catalog of an owner that does not
// mark its end.
const settleTime = 5 * time.Second

// watchOptions are the flags of watch.
type watchOptions struct {
	files    mtls.Files
	ownerIDs []string
	api      string
	ranges   []string
	output   string
	once     bool
}

func watchCommand(ctx context.Context) *cobra.Command {
	var o watchOptions
	command := &cobra.Command{
		Use:   "watch ADDRESS --cert FILE --key FILE --ca FILE",
		Short: "Show what an owner publishes",
		Long: `watch subscribes to an owner, as CoreDNS would, and shows its catalog and then
every change until it is interrupted. ADDRESS is host:port or https://host:port.

The owner's certificate must be valid for the host of ADDRESS, or carry one of
the identities in --owner-id.

With --once it ends when the catalog is complete: when the owner says so, or
after ` + settleTime.String() + ` of silence where it does not.

A service that breaks a rule is refused, as CoreDNS would do, and named on
standard error.`,
		Example: `  federationctl watch owner.example.org:8008 --cert consumer.pem --key consumer-key.pem --ca ca.pem

  # The names of all services.
  federationctl watch https://owner.example.org:8008 --cert consumer.pem --key consumer-key.pem --ca ca.pem \
      --owner-id spiffe://owner.example/owner --once -o json | jq -r 'select(.op == "upsert").service.fqdn'`,
		Args: one("ADDRESS"),
		RunE: func(command *cobra.Command, args []string) error {
			return o.run(ctx, args[0], command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	flags := command.Flags()
	filesFlags(command, &o.files, "consumer", "owners")
	flags.StringArrayVar(&o.ownerIDs, "owner-id", nil, "`identity` that the owner must have, spiffe://... or a DNS name; repeatable; none: the host of ADDRESS")
	flags.StringVar(&o.api, "api", "v1alpha2", "`version` of the protocol: v1alpha2")
	rangesFlag(command, &o.ranges)
	flags.StringVarP(&o.output, "output", "o", "table", "`format`: table, or json for one object a line")
	flags.BoolVar(&o.once, "once", false, "end when the catalog is complete")
	return command
}

func (o *watchOptions) run(ctx context.Context, target string, stdout, stderr io.Writer) error {
	address, host, err := parseTarget(target)
	if err != nil {
		return err
	}
	ids, err := parseIDs("owner-id", o.ownerIDs)
	if err != nil {
		return err
	}
	policy, err := parsePolicy(o.ranges)
	if err != nil {
		return err
	}
	s := &screen{address: address, once: o.once, stdout: stdout, stderr: stderr}
	switch o.output {
	case "table":
		s.format = table
		s.header = fmt.Sprintf(row, "OP", "NAME", "FQDN", "INSTANCES", "ENDPOINTS") + "\n"
	case "json":
		s.format = jsonLine
	default:
		return fmt.Errorf("-o: %q is neither table nor json", o.output)
	}
	if o.api != "v1alpha2" {
		return fmt.Errorf("--api: %q is not v1alpha2", o.api)
	}
	logger := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	certificates, err := loadFiles(o.files, logger)
	if err != nil {
		return err
	}
	subscription, err := consumer.New(consumer.Config{
		Addresses:   []string{address},
		Credentials: func(string) credentials.TransportCredentials { return certificates.Client(host, ids) },
		Policy:      policy,
		Sink:        s,
		Logger:      slog.New(refusalHandler{stderr}),
	})
	if err != nil {
		return failure{err}
	}

	parent := ctx
	ctx, s.finish = context.WithCancelCause(ctx)
	var follower sync.WaitGroup
	defer follower.Wait()
	defer s.finish(nil)
	follower.Go(func() { _ = certificates.Run(ctx) }) // it returns nil when ctx ends
	// The screen ends it, or a signal does.
	if err := subscription.Run(ctx); err != nil {
		return failure{err}
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errComplete):
		return nil
	case parent.Err() == nil:
		return cause
	case o.once:
		return failed("interrupted before the catalog of %s was complete", address)
	}
	return nil
}

// parseTarget returns the host:port of an owner, and the host by itself.
func parseTarget(target string) (address, host string, err error) {
	address = target
	if strings.Contains(target, "://") {
		u, err := url.Parse(target)
		if err != nil || u.Scheme != "https" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
			return "", "", fmt.Errorf("ADDRESS %q is neither host:port nor https://host:port", target)
		}
		address = u.Host
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || port == "" {
		return "", "", fmt.Errorf("ADDRESS %q is neither host:port nor https://host:port", target)
	}
	return address, host, nil
}

// errComplete ends a watch that is to end with the catalog.
var errComplete = errors.New("catalog is complete")

// screen shows what an owner says. It is a consumer.Sink.
type screen struct {
	// read-only
	address string
	once    bool
	stdout  io.Writer
	stderr  io.Writer
	format  func(federation.Event) (string, error)
	finish  context.CancelCauseFunc // ends the watch

	// owned by the consumer
	settled *time.Timer // ends the watch in a while; nil unless silence is the end of the catalog
	header  string      // what is shown before the first event
	lost    string      // the last loss that was told
}

// Opened notes that there is a stream.
func (s *screen) Opened(context.Context) error {
	if s.once {
		s.settled = time.AfterFunc(settleTime, func() { s.finish(errComplete) })
	}
	return nil
}

// Marked notes that the end of the catalog will be marked.
func (s *screen) Marked(context.Context) error {
	if s.settled != nil {
		s.settled.Stop()
		s.settled = nil
	}
	return nil
}

// Refused notes a response that the consumer refused. The log tells of it.
func (s *screen) Refused(context.Context, string) error {
	s.heard()
	return nil
}

// heard puts the end of the silence off.
func (s *screen) heard() {
	if s.settled != nil {
		s.settled.Reset(settleTime)
	}
}

// Apply shows an event.
func (s *screen) Apply(_ context.Context, event federation.Event) error {
	s.heard()
	if s.lost != "" {
		s.lost = ""
		fmt.Fprintf(s.stderr, "federationctl: connected to %s again\n", s.address)
	}
	if event.Operation == federation.Alive {
		return nil
	}
	line, err := s.format(event)
	if err == nil {
		_, err = io.WriteString(s.stdout, s.header+line)
		s.header = ""
	}
	if err != nil {
		s.finish(failure{err})
		return err
	}
	if s.once && event.Operation == federation.End {
		s.finish(errComplete)
	}
	return nil
}

// Lost tells why there is no stream, and ends the watch when it cannot go on.
func (s *screen) Lost(_ context.Context, err error, parked bool) {
	if s.settled != nil {
		s.settled.Stop()
	}
	if parked || s.once {
		s.finish(failed("owner %s: %w; %s", s.address, err, remedy(err)))
		return
	}
	if text := err.Error(); text != s.lost {
		s.lost = text
		fmt.Fprintf(s.stderr, "federationctl: owner %s: %v; trying again\n", s.address, err)
	}
}

// remedy says what can be done when an owner cannot be watched.
func remedy(err error) string {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "check --ca and --owner-id, or the host in ADDRESS"
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return "check ADDRESS: what answers there does not speak TLS"
	}
	if network, ok := errors.AsType[*net.OpError](err); ok && network.Op == "remote error" { // an alert of TLS
		return "check --cert: the owner's CA file must have its authority"
	}
	code := status.Code(err)
	if code == codes.Unauthenticated {
		return "check --cert, or have the owner allow it with --allow-id"
	}
	if code == codes.InvalidArgument || code == codes.Unimplemented {
		return "check --api: the owner may speak another version"
	}
	return "check ADDRESS, and that the owner is up"
}

// refusalHandler writes which services the consumer refuses, out of all that it
// logs: the screen tells the rest.
type refusalHandler struct{ stderr io.Writer }

func (refusalHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h refusalHandler) WithAttrs([]slog.Attr) slog.Handler     { return h }
func (h refusalHandler) WithGroup(string) slog.Handler          { return h }

func (h refusalHandler) Handle(_ context.Context, record slog.Record) error {
	record.Attrs(func(a slog.Attr) bool {
		if invalid, ok := a.Value.Any().(*federation.InvalidError); ok {
			fmt.Fprintf(h.stderr, "federationctl: refused: %v\n", invalid)
		}
		return true
	})
	return nil
}

// row is the format of a table: operation, name, fqdn, instances, endpoints.
const row = "%-6s  %-20s  %-32s  %-28s  %s"

// table formats an event as a row.
func table(event federation.Event) (string, error) {
	if event.Operation == federation.End {
		return "end     (the catalog is complete)\n", nil
	}
	var fqdn string
	var instances, endpoints []string
	if s := event.Service; s != nil {
		fqdn = strings.TrimSuffix(s.FQDN.String(), ".")
		for _, i := range s.Instances {
			instances = append(instances, plain(i.ID)+"/"+i.Protocol.String())
		}
		for _, e := range s.Endpoints {
			endpoints = append(endpoints, net.JoinHostPort(strings.TrimSuffix(e.Address.String(), "."), strconv.Itoa(int(e.Port))))
		}
	}
	line := fmt.Sprintf(row, event.Operation, plain(event.Name), fqdn, few(instances), few(endpoints))
	return strings.TrimRight(line, " ") + "\n", nil
}

// few joins the first of many words.
func few(words []string) string {
	const most = 4
	if len(words) > most {
		return fmt.Sprintf("%s,... (%d)", strings.Join(words[:most], ","), len(words))
	}
	return strings.Join(words, ",")
}

// plain shows what a peer sent: without quotes where they change nothing.
func plain(s string) string {
	quoted := federation.Quote(s)
	if quoted == `"`+s+`"` && !strings.ContainsAny(s, " ,/") {
		return s
	}
	return quoted
}

// jsonLine formats an event as a JSON object in one line. The service is in the
// protobuf JSON mapping, as in a catalog file.
func jsonLine(event federation.Event) (string, error) {
	object := struct {
		Op      string          `json:"op"`
		Name    string          `json:"name,omitempty"`
		Service json.RawMessage `json:"service,omitempty"`
	}{Op: event.Operation.String(), Name: event.Name}
	if event.Service != nil {
		var err error
		if object.Service, err = protojson.Marshal(wire.EncodeService(event.Service)); err != nil {
			return "", err
		}
	}
	var line bytes.Buffer
	encoder := json.NewEncoder(&line) // compacts the service, whose space protojson varies
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(object)
	return line.String(), err
}
