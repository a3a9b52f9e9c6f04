package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// A change needs as many results in a row as there must be.
func TestFollow(t *testing.T) {
	failure := errors.New("broken")
	for results, want := range map[string]string{
		// A result is a second after the one before: + is a success, - a failure.
		"+++":          "0s up",
		"-++":          "1s up",
		"-+-+-":        "1s up",
		"---+":         "2s down, 3s up",
		"+--+---+":     "0s up, 6s down, 7s up",
		"+-------":     "0s up, 3s down",
		"--+--+--+---": "2s up, 11s down",
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			begun, i := time.Now(), 0
			var got []string
			RepeatCheck(ctx, Config{
				Interval: time.Second, Timeout: time.Minute, Successes: 1, Failures: 3,
				Check: func(context.Context) error {
					if i++; i > len(results) {
						cancel()
						return nil
					}
					if results[i-1] == '-' {
						return failure
					}
					return nil
				},
			}, func(err error) {
				state := "up"
				if errors.Is(err, failure) {
					state = "down"
				}
				got = append(got, fmt.Sprintf("%v %s", time.Since(begun), state))
			})
			if text := strings.Join(got, ", "); text != want {
				t.Errorf("%s: %s, want %s", results, text, want)
			}
		})
	}
}

// A check that hangs fails after its timeout.
func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		begun := time.Now()
		RepeatCheck(ctx, Config{
			Interval: 5 * time.Second, Timeout: 2 * time.Second, Successes: 1, Failures: 2,
			Check: func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			},
		}, func(err error) {
			if !errors.Is(err, errTimeout) || time.Since(begun) != 9*time.Second {
				t.Errorf("after %v: %v", time.Since(begun), err)
			}
			cancel()
		})
	})
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l := must.Get(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { l.Close() })
	return l
}

// Each kind of check succeeds, fails and succeeds again with what it checks.
func TestKinds(t *testing.T) {
	var status atomic.Int32
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			status.Store(http.StatusTeapot)
		}
		w.Header().Set("Location", "http://192.0.2.1/") // which nobody follows
		w.WriteHeader(int(status.Load()))
	})
	plain, secured := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	t.Cleanup(plain.Close)
	t.Cleanup(secured.Close)
	setStatus := func(up bool) {
		status.Store(http.StatusServiceUnavailable)
		if up {
			status.Store(http.StatusFound)
		}
	}
	address := listen(t).Addr().String() // a port that is free once it is closed
	var open net.Listener
	setOpen := func(up bool) {
		if !up {
			open.Close()
			return
		}
		var err error
		if open, err = new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		address = open.Addr().String()
	}
	for name, tc := range map[string]struct {
		text func() string
		set  func(up bool)
		want string // how the failure begins
	}{
		"http":  {func() string { return plain.URL + "/healthz" }, setStatus, "GET http://127.0.0.1:"},
		"https": {func() string { return secured.URL + "/healthz" }, setStatus, "GET https://127.0.0.1:"},
		"tcp":   {func() string { return "tcp://" + address }, setOpen, "dial tcp 127.0.0.1:"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.set(true)
			check := must.Get(ParseCheck(tc.text()))(t)
			for _, up := range []bool{true, false} {
				if !up {
					tc.set(false)
				}
				err := check(t.Context())
				if up && err != nil || !up && (err == nil || !strings.HasPrefix(err.Error(), tc.want)) {
					t.Errorf("up %v: %v", up, err)
				}
			}
			if name != "tcp" { // whose next port is another one
				tc.set(true)
				if err := check(t.Context()); err != nil {
					t.Errorf("up again: %v", err)
				}
			}
		})
	}
}

func TestParseErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                       `"" is none of`,
		"localhost:80":           `"localhost:80" is none of`,
		"ftp://localhost":        `"ftp://localhost" is none of`,
		"http://user@localhost/": `a URL with a user is none of`,
		"tcp://localhost":        `"tcp://localhost" has no host:port`,
		"tcp://:80":              `"tcp://:80" has no host:port`,
		"tcp://localhost:80/a":   `"tcp://localhost:80/a" has more than host:port`,
		"tcp://localhost:80?a":   `"tcp://localhost:80?a" has more than host:port`,
		"http://[::1":            `"http://[::1" is none of`,
	} {
		if _, err := ParseCheck(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// What may be secret in a URL stands in no error.
func TestSecretsAreNotShown(t *testing.T) {
	if _, err := ParseCheck("http://user:secret@localhost/"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	check := must.Get(ParseCheck(server.URL + "/health?token=secret"))(t)
	for _, want := range []string{"/health: status 404", "/health: dial tcp"} {
		if err := check(t.Context()); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v, want %q", err, want)
		}
		server.Close()
	}
}
