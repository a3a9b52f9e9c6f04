package page

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/loglimit"
)

// What one client can cost.
const (
	maxConnections = 64       // with a request each; more wait for one of these to end
	maxHeader      = 16 << 10 // bytes of a request; net/http adds 4 KiB to it
	maxBody        = 4 << 10  // bytes that are read of the body of a request

	headerTimeout = 5 * time.Second // for the handshake, and for the header that follows
	readTimeout   = 10 * time.Second
	answerTimeout = 30 * time.Second // for the header, and all of the answer but a catalog
	endTimeout    = 3 * time.Second  // for the answers under way when the server ends

	// Catalogs take the longest, so they never take all places.
	maxCatalogs    = maxConnections / 4 // answers at a time
	catalogTimeout = 2 * time.Minute    // for all of one, over a slow line
)

// Config says where the status is served, and to whom.
type Config struct {
	// Address is host:port. The host is empty for all addresses of the machine.
	Address string `yaml:"listen" as:"address" doc:"The address of the status page, as host:port, such as localhost:9156."`

	// The files are for mutual TLS, without which nothing but a loopback address is served:
	// whoever has a certificate of the CA may read. All are set, or none.
	mtls.Files
}

// Validate returns what is wrong with the configuration. It reads no file.
func (c Config) Validate() error {
	host, port, err := net.SplitHostPort(c.Address)
	switch {
	case err != nil:
		return fmt.Errorf("%q is not host:port", c.Address)
	case port == "":
		return fmt.Errorf("%q has no port", c.Address)
	case c.Files == mtls.Files{}:
		if !isLoopback(host) {
			return fmt.Errorf("%q is not a loopback address such as localhost:9154; what is published is not for everybody: "+
				"elsewhere a certificate, its key and the CA of those who may read are needed", c.Address)
		}
	case c.Cert == "" || c.Key == "" || c.CA == "":
		return errors.New("certificate, key and CA are needed, all three or none")
	}
	return nil
}

// isLoopback reports whether only this machine reaches a host: localhost, or an address of
// 127.0.0.0/8 or ::1.
func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// Server has the port of the status. It is made by Listen, and ended by Serve or Close.
type Server struct {
	listener net.Listener
	identity *mtls.Source // nil for plain HTTP
	logger   *slog.Logger
}

// Listen reads the files, and takes the port. While the files cannot be used, nobody is
// answered: they are followed, and what is wrong is logged. The logger gets a bounded number of lines of
// each kind, see package loglimit; without one nothing is logged.
func Listen(ctx context.Context, c Config, logger *slog.Logger) (*Server, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{logger: loglimit.NewLogger(logger)}
	if c.Files != (mtls.Files{}) {
		var err error
		if s.identity, err = mtls.Open(mtls.Origin{Files: c.Files}, s.logger); err != nil {
			return nil, fmt.Errorf("status: %w", err)
		}
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", c.Address)
	if err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	if tcp, ok := listener.Addr().(*net.TCPAddr); s.identity == nil && (!ok || !tcp.IP.IsLoopback()) {
		listener.Close()
		return nil, fmt.Errorf("status: %s is %s here, which is no loopback address", c.Address, listener.Addr())
	}
	s.listener = listener
	return s, nil
}

// Addr returns the address of the port.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Close gives the port back. It is for a server that Serve is not called for.
func (s *Server) Close() error { return s.listener.Close() }

// Serve serves the status of source until ctx ends, and returns nil then, or until the
// port fails. Answers that are under way have three seconds to end. The port is closed when
// it returns.
func (s *Server) Serve(ctx context.Context, source ReportSource) error {
	handler := NewHandler(source)
	if s.identity == nil {
		handler = localOnly(handler)
	}
	listener := netutil.LimitListener(s.listener, maxConnections)
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      answerTimeout,
		MaxHeaderBytes:    maxHeader,
		Protocols:         new(http.Protocols),
		ErrorLog:          log.New(errorLog{s.logger}, "", 0),
	}
	// One request for each connection: connections bound the requests, none idles in
	// the place of another, and each is let in by the authorities of its time.
	server.Protocols.SetHTTP1(true)
	server.SetKeepAlivesEnabled(false)

	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
		defer cancel()
		if server.Shutdown(grace) != nil {
			server.Close()
		}
	})
	var err error
	if s.identity == nil {
		err = server.Serve(listener)
	} else {
		running.Go(func() { _ = s.identity.Run(ctx) }) // returns nil when ctx ends
		server.TLSConfig = s.identity.ServerConfig()
		err = server.ServeTLS(listener, "", "")
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("status: %w", err)
}

// localOnly passes on the requests whose Host is an address or localhost: a page from
// elsewhere whose name is made to lead to this machine (DNS rebinding) has that name there.
func localOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = strings.TrimSuffix(strings.TrimPrefix(r.Host, "["), "]")
		}
		if _, err := netip.ParseAddr(host); err != nil && !strings.EqualFold(host, "localhost") {
			setSecurityHeaders(w.Header())
			http.Error(w, "this page answers only requests for localhost or for an IP address", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// errorLog is where net/http logs: one line for each write, with text of clients.
type errorLog struct{ logger *slog.Logger }

const maxLogged = 4 << 10 // bytes of one line

// Write implements io.Writer.
func (l errorLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line[:min(len(line), maxLogged)]))
	l.logger.Warn("a request for the status failed", "error", fmt.Sprintf("%+q", text))
	return len(line), nil
}
