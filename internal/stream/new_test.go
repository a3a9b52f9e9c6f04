package stream

import (
	"net"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/pki"
)

// A configuration is checked, and its defaults are filled in.
func TestNew(t *testing.T) {
	good := func() Config {
		return Config{
			Addresses: []string{"owner.example:8008", "[2001:db8::1]:8008"},
			Identity:  &pki.Identity{},
			Sink:      &testConsumer{},
		}
	}
	for name, tc := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"defaults":             {func(*Config) {}, ""},
		"no address":           {func(c *Config) { c.Addresses = nil }, "no address of the owner"},
		"address without port": {func(c *Config) { c.Addresses = []string{"a"} }, `address "a" of the owner is not host:port: address a: missing port in address`},
		"no identity":          {func(c *Config) { c.Identity = nil }, "no identity: there is no unsecured mode"},
	} {
		t.Run(name, func(t *testing.T) {
			config := good()
			tc.change(&config)
			c, err := New(config)
			if tc.want != "" {
				if err == nil || err.Error() != tc.want {
					t.Errorf("error is %v, want %s", err, tc.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if c.HasPending() {
				t.Error("something is pending")
			}
			c.RenewStream() // does nothing without a stream
		})
	}
}

// A consumer needs no more than addresses, an identity and a sink. It dials with TCP.
func TestDefaults(t *testing.T) {
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	sim := newTestConsumer(t)
	config := sim.config()
	sim.run(Config{Addresses: []string{listener.Addr().String()}, Identity: config.Identity, Sink: sim})
	conn := must.Get(listener.Accept())(t)
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
}

// What was promised to owners and operators.
func TestLimits(t *testing.T) {
	for name, tc := range map[string]struct{ got, want time.Duration }{
		"ping":                        {firstKeepalive, 30 * time.Second},
		"longest ping":                {maxKeepalive, 2 * time.Hour},
		"patience":                    {firstPatience, 5 * time.Second},
		"connection":                  {connectTimeout, 10 * time.Second},
		"stream":                      {openTimeout, 15 * time.Second},
		"answer to a ping":            {keepaliveTimeout, 20 * time.Second},
		"room for an acknowledgement": {answerTimeout, 30 * time.Second},
		"end of a stream":             {leaveTimeout, time.Second},
		"delay":                       {minDelay, time.Second},
		"longest delay":               {maxDelay, time.Minute},
		"longest slow delay":          {maxSlowDelay, 5 * time.Minute},
	} {
		if tc.got != tc.want {
			t.Errorf("the time for %s is %v, want %v", name, tc.got, tc.want)
		}
	}
	for name, tc := range map[string]struct{ got, want int }{
		"size that is read":        {maxRead, 64 << 20},
		"factor that is read":      {readFactor, 4},
		"waiting updates":          {maxUpdates, 64},
		"room of one update":       {roomBytes, 16 << 10},
		"size of the header":       {maxHeaderList, 64 << 10},
		"refusals in the log once": {maxRefusals, 100},
	} {
		if tc.got != tc.want {
			t.Errorf("the %s is %d, want %d", name, tc.got, tc.want)
		}
	}
}
