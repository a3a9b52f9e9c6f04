package stream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/connect"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network/simulation"
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

// What becomes of an attempt whose connection or TLS handshake fails.
func TestHandshakeFails(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(t *testing.T, sim *testConsumer, config *Config)
		verdict retryVerdict
		reason  string
		remedy  string
	}{
		"owner with another identity": {
			prepare: func(t *testing.T, sim *testConsumer, _ *Config) {
				t.Helper()
				sim.as(sim.Source("consumer.example"), must.Get(federation.ParseID("spiffe://example.org/owner"))(t))
				sim.serve(ownerAddress, good)
			},
			verdict: slow,
			reason:  `TLS handshake: tls: failed to verify certificate: certificate is for "owner.example", not for [spiffe://example.org/owner]`,
			remedy:  "correct owner_id, or the address",
		},
		"owner of another CA": {
			prepare: func(_ *testing.T, sim *testConsumer, _ *Config) {
				sim.owner = sim.unknown("owner.example")
				sim.serve(ownerAddress, good)
			},
			verdict: slow,
			reason:  `TLS handshake: tls: failed to verify certificate: x509: certificate signed by unknown authority`,
			remedy:  "add the CA of the owner to ",
		},
		"consumer of another CA": {
			prepare: func(_ *testing.T, sim *testConsumer, _ *Config) {
				sim.as(sim.unknown("consumer.example"))
				sim.serve(ownerAddress, good)
			},
			verdict: slow,
			reason:  "TLS handshake: remote error: tls: unknown certificate authority",
			remedy:  "have the owner add the CA that has signed ",
		},
		"consumer without certificate": {
			prepare: func(_ *testing.T, sim *testConsumer, _ *Config) {
				sim.identity.Of = func(string) credentials.TransportCredentials {
					return credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})
				}
				sim.serve(ownerAddress, good)
			},
			verdict: slow,
			reason:  "TLS handshake: remote error: tls: certificate required",
			remedy:  "look under 'turned away' in the status of the owner",
		},
		"owner of HTTP in plain text": {
			prepare: func(_ *testing.T, sim *testConsumer, _ *Config) {
				sim.accept(ownerAddress, reply("HTTP/1.1 400 Bad Request\r\n\r\n"))
			},
			verdict: slow,
			reason:  "TLS handshake: tls: first record does not look like a TLS handshake",
			remedy:  "whatever listens at this port",
		},
		"owner of TLS 1.2": {
			prepare: func(_ *testing.T, sim *testConsumer, _ *Config) {
				sim.accept(ownerAddress, tlsServer(&tls.Config{MaxVersion: tls.VersionTLS12, NextProtos: []string{"h2"}}))
			},
			verdict: slow,
			reason:  "TLS handshake: remote error: tls: protocol version not supported",
			remedy:  "TLS 1.3",
		},
		"owner without a certificate just now": {
			prepare: func(_ *testing.T, sim *testConsumer, _ *Config) { sim.accept(ownerAddress, tlsServer(&tls.Config{})) },
			verdict: slow,
			reason:  "TLS handshake: remote error: tls: internal error",
		},
		"connection closed in the handshake": {
			prepare: func(_ *testing.T, sim *testConsumer, _ *Config) { sim.accept(ownerAddress, reply("")) },
			verdict: quick,
			reason:  "TLS handshake: EOF",
		},
		"no answer in the handshake": {
			prepare: func(_ *testing.T, sim *testConsumer, _ *Config) { sim.accept(ownerAddress, swallow) },
			verdict: slow,
			reason:  "TLS handshake: context deadline exceeded",
			remedy:  "open the owner's status page",
		},
		"no answer after the handshake": {
			prepare: func(_ *testing.T, sim *testConsumer, _ *Config) {
				sim.accept(ownerAddress, func(conn net.Conn) {
					if conn, _, err := sim.owner.Server().ServerHandshake(conn); err == nil {
						swallow(conn)
					}
				})
			},
			verdict: retry,
			reason:  "Unavailable: ",
		},
		"no answer to the dialer": {
			prepare: func(_ *testing.T, _ *testConsumer, config *Config) {
				config.Dial = func(ctx context.Context, _ string) (net.Conn, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				}
			},
			verdict: retry,
			reason:  "context deadline exceeded",
			remedy:  "check the address of the owner, its machine",
		},
	} {
		t.Run(name, func(t *testing.T) {
			simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
				sim.secure()
				config := sim.config()
				tc.prepare(t, sim, &config)
				sim.run(config)
				time.Sleep(openTimeout)
				verdicts, lost := sim.Details("verdict"), sim.Details("lost", "parked")
				if len(lost) == 0 || verdicts[0] != fmt.Sprint(tc.verdict) || !strings.HasPrefix(lost[0], tc.reason) {
					t.Errorf("verdicts %v, lost %q, want %d, %q", verdicts, lost, tc.verdict, tc.reason)
				}
				if lines := sim.Logged.Lines(); len(lines) != 1 || strings.Contains(lines[0], "remedy=") != (tc.remedy != "") || !strings.Contains(lines[0], tc.remedy) {
					t.Errorf("logged: %v", lines)
				}
			})
		})
	}
}

// tlsServer returns a server that ends the connection after the handshake.
func tlsServer(config *tls.Config) func(net.Conn) {
	config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, errors.New("not yet") }
	return func(conn net.Conn) { _ = tls.Server(conn, config).Handshake() }
}

// A server may accept the connection and open no stream. Whatever it does,
// there is one connection for each attempt.
func TestNoStream(t *testing.T) {
	for name, tc := range map[string]struct {
		frames string // that the server sends
		takes  time.Duration
	}{
		// SETTINGS with SETTINGS_MAX_CONCURRENT_STREAMS = 0
		"no room for a stream": {"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00", openTimeout},
		// SETTINGS, then GOAWAY with last stream 0 and NO_ERROR
		"going away": {"\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", 0},
		"no HTTP/2":  {"HTTP/1.1 400 Bad Request\r\n\r\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
				sim.accept(ownerAddress, func(conn net.Conn) {
					if _, err := io.WriteString(conn, tc.frames); err == nil {
						swallow(conn)
					}
				})
				sim.run(sim.config())
				time.Sleep(2 * time.Minute)
				dialed, attempted, lost := sim.Records("dialed"), sim.Records("attempted"), sim.Records("lost")
				if len(dialed) != len(attempted) || len(dialed) < 3 || len(lost) < len(attempted)-1 {
					t.Errorf("%d connections, %d attempts, %d lost", len(dialed), len(attempted), len(lost))
				}
				for i, r := range lost {
					if took := r.At - attempted[i].At; took != tc.takes {
						t.Errorf("attempt %d took %v, want %v: %s", i, took, tc.takes, r.Detail)
					}
				}
			})
		})
	}
}

// On a fast network the owner's refusal and the end of the connection are there
// before gRPC has written its first byte. The reason must be seen all the same.
func TestRefusalBeforeTheFirstWrite(t *testing.T) {
	simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
		sim.secure()
		sim.accept(ownerAddress, func(conn net.Conn) {
			_, _, _ = sim.owner.Server().ServerHandshake(conn)
		})
		attempt := &connect.Attempt{Address: ownerAddress, Dial: sim.Dial}
		raw := must.Get(attempt.DialOnce(t.Context(), ""))(t)
		defer raw.Close()
		credentials := attempt.Credentials(sim.unknown("consumer.example").Client("owner.example", nil)).Clone()
		conn, _, err := credentials.ClientHandshake(t.Context(), "owner", raw)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the owner is gone
		if n, err := conn.Write([]byte("PRI")); n != 3 || err != nil {
			t.Errorf("write: %d, %v", n, err)
		}
		_, err = conn.Read(make([]byte, 1))
		if _, refused := connect.AlertText(err); !refused {
			t.Errorf("read: %v", err)
		}
		if end := classifyEnd(attempt.Explain(io.EOF)); end.verdict != slow || !strings.Contains(end.Remedy(), "add the CA that has signed ") {
			t.Errorf("%v has the remedy %q", end, end.Remedy())
		}
	})
}
