package stream

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// swallow reads until the other side goes.
func swallow(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

// reply reads once, writes, and ends the connection.
func reply(text string) func(net.Conn) {
	return func(conn net.Conn) {
		if _, err := conn.Read(make([]byte, 64<<10)); err == nil {
			_, _ = io.WriteString(conn, text)
		}
	}
}

// A TLS handshake that fails, whatever the reason, is tried again, but not often,
// and the reason is logged once. A failure of the network under it is tried again
// as ever.
func TestHandshakeFailureIsRetried(t *testing.T) {
	t.Parallel()
	pinned := func(t *testing.T, w *world, id string) {
		t.Helper()
		parsed := must.Get(federation.ParseID(id))(t)
		w.identity.Of = func(string) credentials.TransportCredentials {
			return w.consumer.Client("owner.example", []federation.ID{parsed})
		}
	}
	for name, tc := range map[string]struct {
		prepare func(t *testing.T, w *world, config *Config)
		slow    bool
		quick   bool
		remedy  string
		reason  string
	}{
		"owner with another identity": {
			prepare: func(t *testing.T, w *world, config *Config) {
				w.serve(ownerAddress, good)
				pinned(t, w, "spiffe://example.org/owner")
			},
			slow:   true,
			remedy: "correct owner_id, or the address",
			reason: `TLS handshake: tls: failed to verify certificate: certificate is for "owner.example", not for [spiffe://example.org/owner]`,
		},
		"owner of another CA": {
			prepare: func(t *testing.T, w *world, _ *Config) {
				w.owner = w.unknown("owner.example")
				w.serve(ownerAddress, good)
			},
			slow:   true,
			remedy: "add the CA of the owner to ",
			reason: `TLS handshake: tls: failed to verify certificate: x509: certificate signed by unknown authority`,
		},
		"consumer of another CA": {
			prepare: func(t *testing.T, w *world, _ *Config) {
				w.consumer = w.unknown("consumer.example")
				w.serve(ownerAddress, good)
			},
			slow:   true,
			remedy: "have the owner add the CA that has signed ",
			reason: "TLS handshake: remote error: tls: unknown certificate authority",
		},
		"consumer without certificate": {
			prepare: func(_ *testing.T, w *world, config *Config) {
				w.serve(ownerAddress, good)
				w.identity.Of = func(string) credentials.TransportCredentials {
					return credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})
				}
			},
			slow:   true,
			remedy: "see in the status of the owner, at turned away",
			reason: "TLS handshake: remote error: tls: certificate required",
		},

		"owner of HTTP in plain text": {
			prepare: func(_ *testing.T, w *world, _ *Config) {
				w.accept(ownerAddress, reply("HTTP/1.1 400 Bad Request\r\n\r\n"))
			},
			slow:   true,
			remedy: "correct the address",
			reason: "TLS handshake: tls: first record does not look like a TLS handshake",
		},
		"owner of TLS 1.2": {
			prepare: func(t *testing.T, w *world, _ *Config) {
				w.accept(ownerAddress, tlsServer(w, &tls.Config{MaxVersion: tls.VersionTLS12, NextProtos: []string{"h2"}}))
			},
			slow:   true,
			remedy: "TLS 1.3",
			reason: "TLS handshake: remote error: tls: protocol version not supported",
		},
		"owner that does not speak HTTP/2": {
			prepare: func(t *testing.T, w *world, _ *Config) {
				w.accept(ownerAddress, tlsServer(w, &tls.Config{NextProtos: []string{"http/1.1"}}))
			},
			slow:   true,
			remedy: "HTTP/2",
			reason: "TLS handshake: remote error: tls: no application protocol",
		},
		"owner without a certificate just now": {
			prepare: func(_ *testing.T, w *world, _ *Config) {
				w.accept(ownerAddress, tlsServer(w, &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
					return nil, errors.New("not yet")
				}}))
			},
			slow:   true,
			reason: "TLS handshake: remote error: tls: internal error",
		},
		"connection closed in the handshake": {
			prepare: func(_ *testing.T, w *world, _ *Config) { w.accept(ownerAddress, reply("")) },
			quick:   true,
			reason:  "TLS handshake: EOF",
		},

		"no answer in the handshake": {
			prepare: func(_ *testing.T, w *world, _ *Config) { w.accept(ownerAddress, swallow) },
			slow:    true,
			reason:  "TLS handshake: context deadline exceeded",
			remedy:  "restart the owner if it hangs",
		},
		"no answer after the handshake": {
			prepare: func(_ *testing.T, w *world, _ *Config) {
				w.accept(ownerAddress, func(conn net.Conn) {
					if conn, _, err := w.owner.Server().ServerHandshake(conn); err == nil {
						swallow(conn)
					}
				})
			},
			reason: "Unavailable: ",
		},
		"no answer to the dialer": {
			prepare: func(_ *testing.T, w *world, config *Config) {
				config.Dial = func(ctx context.Context, address string) (net.Conn, error) {
					w.record("dialed", address)
					<-ctx.Done()
					return nil, ctx.Err()
				}
			},
			reason: "context deadline exceeded",
			remedy: "repair the network between here and the owner",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				config := w.config()
				tc.prepare(t, w, &config)
				_, stop := w.run(config)
				time.Sleep(time.Hour)
				stop()

				dialed, lost, parked := len(w.seen("dialed")), w.details("lost"), w.details("parked")
				if parked != nil {
					t.Fatalf("parked %q", parked)
				}
				if tc.reason == "" {
					if dialed != 1 || lost != nil || w.seen("applied") == nil {
						t.Errorf("%d attempts, lost %q", dialed, lost)
					}
					return
				}
				// Half of a minute on average, and half of five minutes.
				atLeast, atMost := 50, 200
				switch {
				case tc.slow:
					atLeast, atMost = 13, 50
				case tc.quick: // as where nobody listens: every three seconds for ten minutes, then every eight
					atLeast, atMost = 400, 800
				}
				if dialed < atLeast || dialed > atMost {
					t.Errorf("%d attempts in an hour, want %d to %d", dialed, atLeast, atMost)
				}
				if lines := w.log.Lines(); len(lines) != 1 || strings.Contains(lines[0], "remedy=") != (tc.remedy != "") || !strings.Contains(lines[0], tc.remedy) {
					t.Errorf("logged: %v", lines)
				}
				reason := lost[0]
				if !strings.HasPrefix(reason, tc.reason) {
					t.Errorf("reason is %q, want %q", reason, tc.reason)
				}
			})
		})
	}
}

// tlsServer returns a server that ends the connection after the handshake.
func tlsServer(w *world, config *tls.Config) func(net.Conn) {
	if config.GetCertificate == nil {
		config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return w.keyPair, nil }
	}
	return func(conn net.Conn) { _ = tls.Server(conn, config).Handshake() }
}

// A server may accept the connection and open no stream. Whatever it does,
// there is one connection for each attempt.
func TestNoStream(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		frames string // that the server sends after the handshake
		every  time.Duration
	}{
		// SETTINGS with SETTINGS_MAX_CONCURRENT_STREAMS = 0
		"no room for a stream": {"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00", openTimeout},
		// SETTINGS, then GOAWAY with last stream 0 and NO_ERROR
		"going away": {"\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", 0},
		"no HTTP/2":  {"HTTP/1.1 400 Bad Request\r\n\r\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.accept(ownerAddress, func(conn net.Conn) {
					conn, _, err := w.owner.Server().ServerHandshake(conn)
					if err != nil {
						return
					}
					if _, err := io.WriteString(conn, tc.frames); err != nil {
						return
					}
					swallow(conn)
				})
				w.run(w.config())
				time.Sleep(20 * time.Minute)
				if dialed, attempted := len(w.seen("dialed")), len(w.seen("attempted")); dialed != attempted || dialed < 15 || dialed > 70 {
					t.Errorf("%d connections, %d attempts", dialed, attempted)
				}
				if w.seen("parked") != nil {
					t.Errorf("parked: %v", w.details("parked"))
				}
				for i, r := range w.seen("lost") {
					if took := r.at - w.seen("attempted")[i].at; took != tc.every {
						t.Errorf("attempt %d took %v, want %v: %s", i, took, tc.every, r.detail)
						break
					}
				}
			})
		})
	}
}

// On a fast network the owner's refusal and the end of the connection are there
// before gRPC has written its first byte. The reason must be seen all the same.
func TestRefusalBeforeTheFirstWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.consumer = w.unknown("consumer.example")
		w.accept(ownerAddress, func(conn net.Conn) {
			_, _, _ = w.owner.Server().ServerHandshake(conn)
		})
		dialLog := &dialLog{address: ownerAddress, dial: w.dial}
		raw := must.Get(dialLog.connect(t.Context(), ""))(t)
		defer raw.Close()
		credentials := loggedCredentials{w.consumer.Client("owner.example", nil), dialLog}.Clone()
		conn, _, err := credentials.ClientHandshake(t.Context(), "owner", raw)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the owner is gone
		if n, err := conn.Write([]byte("PRI")); n != 3 || err != nil {
			t.Errorf("write: %d, %v", n, err)
		}
		_, err = conn.Read(make([]byte, 1))
		if _, refused := alert(err); !refused {
			t.Errorf("read: %v", err)
		}
		if end := classify(dialLog.explain(io.EOF)); end.verdict != slow || !strings.Contains(end.Remedy(), "add the CA that has signed ") {
			t.Errorf("%v has the remedy %q", end, end.Remedy())
		}
	})
}
