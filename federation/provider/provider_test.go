package provider

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network"
	"github.com/hamlet-federation/coredns-federation/test/kit/pki"
)

const (
	a, b      = "a:1", "b:1"
	ttl       = 10 * time.Second
	one, two  = "https://:8443", "https://:8444"
	isOne     = "status " + one + " "
	atOne     = isOne + "registered a:1 https://192.0.2.1:443"
	parting   = "a: close PARTING_FRIENDS "
	beforeEnd = 100 * time.Millisecond
)

// A node is told again before half of its ttl is over, and not much before.
func TestActiveAtHalfOfTheTTL(t *testing.T) {
	bubble(t, func(w *testProgram) {
		w.owner(a, grants(ttl))
		p := w.provider(a)
		w.run(p, one)
		time.Sleep(10 * time.Minute)
		times := w.times("a: active")
		for i := 1; i < len(times); i++ {
			if d := times[i] - times[i-1]; d > ttl/2 || d < ttl/2*17/20 {
				t.Errorf("an Active comes %v after the one before", d)
			}
		}
		if len(times) < 120 {
			t.Errorf("there are %d Actives in 10 minutes", len(times))
		}
		until := p.Statuses()[0].Until
		if left := time.Until(until); left < ttl/2 || left > ttl {
			t.Errorf("it is registered for %v more", left)
		}
	})
}

// A node that the owner has stored while nobody can have its catalog waits, until the owner says
// otherwise after half of the ttl. Each is told once.
func TestWaits(t *testing.T) {
	bubble(t, func(w *testProgram) {
		var waits atomic.Bool
		waits.Store(true)
		w.owner(a, answers(func(m *registrationv1.RegisterRequest) []*registrationv1.RegisterResponse {
			all := granted(m, ttl)
			all[0].GetGranted().Waits = waits.Load()
			return all
		}))
		p := w.provider(a)
		w.run(p, one)
		time.Sleep(time.Minute)
		if s, told := p.Statuses()[0], len(w.times(isOne)); s.State != Registered || !s.Waits || told != 1 {
			t.Errorf("%+v, told %d times", s, told)
		}
		waits.Store(false)
		time.Sleep(time.Minute)
		if s, told := p.Statuses()[0], len(w.times(isOne)); s.State != Registered || s.Waits || told > 2 {
			t.Errorf("%+v, told %d times", s, told)
		}
	})
}

// All nodes are in one stream, and are told again together.
func TestManyNodes(t *testing.T) {
	bubble(t, func(w *testProgram) {
		w.owner(a, grants(ttl))
		p := w.provider(a)
		for i := range 3000 {
			w.set(p, fmt.Sprintf("https://192.0.2.1:%d", i+1))
		}
		stop := w.run(p)
		synctest.Wait()
		registered := 0
		for _, s := range p.Statuses() {
			if s.State == Registered {
				registered++
			}
		}
		if registered != 3000 {
			t.Errorf("%d of 3000 nodes are registered", registered)
		}
		w.times("")
		time.Sleep(ttl / 2)
		if n := len(w.times("a: active")); n != 3000 {
			t.Errorf("%d Actives in half a ttl", n)
		}
		stop()
		if got := w.happened("clear", "close"); strings.Count(got, "clear") != 3000 || !strings.HasSuffix(got, parting) {
			t.Errorf("%d nodes are cleared", strings.Count(got, "clear"))
		}
	})
}

// An owner that is lost is followed by the next one at once, where everything is
// registered again; nobody is without a status.
func TestNextOwner(t *testing.T) {
	bubble(t, func(w *testProgram) {
		lose := make(chan struct{})
		w.owner(a, func(c conversation) error {
			go func() { _ = grants(ttl)(c) }()
			<-lose
			return errGone
		})
		w.owner(b, grants(ttl))
		p := w.provider(a, b)
		w.run(p, one, two)
		time.Sleep(time.Second)
		w.times("")
		begun := time.Since(w.start)
		close(lose)
		time.Sleep(time.Second)
		synctest.Wait()
		if got := w.happened("lost", "registered"); strings.Count(got, "lost") != 2 || strings.Count(got, "registered b:1") != 2 {
			t.Errorf("has happened:\n%s", got)
		}
		for _, s := range p.Statuses() {
			if s.State != Registered || s.Owner != b || s.Until.Sub(w.start) > begun+maxSpread+ttl {
				t.Errorf("the status is %+v", s)
			}
		}
	})
}

// One owner that is away for less than the ttl is back within it.
func TestOwnerBackWithinTheTTL(t *testing.T) {
	bubble(t, func(w *testProgram) {
		stop := w.owner(a, grants(ttl))
		p := w.provider(a)
		w.run(p, one)
		time.Sleep(time.Second)
		w.times("")
		for range 20 {
			stop()
			time.Sleep(ttl / 2)
			w.expect(isOne+"lost: Unavailable: error reading from server: EOF\n"+
				isOne+"lost: dial tcp: connection refused", "status")
			stop = w.owner(a, grants(ttl))
			time.Sleep(ttl / 2 * 4 / 5)
			if s := p.Statuses()[0]; s.State != Registered {
				t.Fatalf("the status is %+v", s)
			}
			w.times("")
		}
		if n := len(w.log.Lines()); n > 10+20*3 {
			t.Errorf("the log has %d lines:\n%s", n, &w.log)
		}
	})
}

// An hour without an owner makes a bounded number of attempts, and hardly a line.
func TestNoOwner(t *testing.T) {
	bubble(t, func(w *testProgram) {
		p := w.provider(a, b)
		w.run(p, one)
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := len(w.log.Lines()); n != 2 {
			t.Errorf("the log has %d lines:\n%s", n, &w.log)
		}
		if n := len(w.times("dial")); n < 2*3600/12 || n > 2*3600/3 {
			t.Errorf("%d connections were tried", n)
		}
		w.owner(a, grants(ttl))
		time.Sleep(12 * time.Second)
		w.expect(atOne, "registered")
	})
}

// What is refused is tried again slowly, and at once when it changes. The other nodes
// stay.
func TestRefused(t *testing.T) {
	bubble(t, func(w *testProgram) {
		w.owner(a, answers(func(m *registrationv1.RegisterRequest) []*registrationv1.RegisterResponse {
			if m.GetActive().GetNode() == two && m.GetActive().GetInstance() == "" {
				return refused(m, "quota")
			}
			return granted(m, ttl)
		}))
		p := w.provider(a)
		w.run(p, one, two)
		synctest.Wait()
		if got := w.happened("status " + two); got != "status "+two+" refused quota: it is quota" {
			t.Errorf("has happened: %s", got)
		}
		time.Sleep(time.Hour)
		if n := len(w.times("a: active " + two)); n < 10 || n > 16 {
			t.Errorf("it was tried again %d times in an hour", n)
		}
		must.Do(t, p.Set(Node{Service: "shop.fed.example", URI: two, Instance: "v2"}))
		w.expect("a: active "+two+"\nstatus "+two+" registered a:1 https://192.0.2.1:443", two)
		w.set(p, two)
		w.expect("a: active "+two+"\nstatus "+two+" refused quota: it is quota", two)
		if s := p.Statuses(); s[0].State != Registered || s[1].State != Refused {
			t.Errorf("the status is %+v", s)
		}
	})
}

// What has expired is registered again, but not in a loop without end.
func TestExpired(t *testing.T) {
	bubble(t, func(w *testProgram) {
		w.owner(a, answers(func(m *registrationv1.RegisterRequest) []*registrationv1.RegisterResponse {
			expired := &registrationv1.Expired{Service: "shop.fed.example", Node: one}
			return append(granted(m, ttl), &registrationv1.RegisterResponse{Message: &registrationv1.RegisterResponse_Expired{Expired: expired}})
		}))
		p := w.provider(a)
		w.run(p, one)
		time.Sleep(10*time.Second + beforeEnd)
		if n := len(w.times("a: active")); n != 11 {
			t.Errorf("%d Actives in 10 seconds", n)
		}
		if s := p.Statuses()[0]; s.State != Pending || s.Err == nil {
			t.Errorf("the status is %+v", s)
		}
	})
}

// Another version of the protocol is said, and tried again slowly.
func TestVersionMismatch(t *testing.T) {
	for name, tc := range map[string]struct {
		script script
		want   string
		status string
	}{
		"theirs is another": {
			func(c conversation) error {
				if err := c.Send(opened(2)); err != nil {
					return err
				}
				return answers(silence)(c)
			},
			"a: close VERSION_MISMATCH this program speaks version 1",
			isOne + "pending: the owner speaks version 2 of the protocol, and this program version 1",
		},
		"theirs is another, and does not listen": {
			func(c conversation) error {
				if err := c.Send(opened(2)); err != nil {
					return err
				}
				<-c.Context().Done()
				return nil
			},
			"",
			isOne + "pending: the owner speaks version 2 of the protocol, and this program version 1",
		},
		"ours is another": {
			func(c conversation) error { return c.Send(closed(registrationv1.Close_VERSION_MISMATCH, 0)) },
			"",
			isOne + `pending: the owner does not speak version 1 of the protocol: going`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(w *testProgram) {
				w.serve(a, tc.script)
				p := w.provider(a)
				w.run(p, one)
				time.Sleep(closeWithin)
				if got := w.happened("close", "pending"); !strings.Contains(got, tc.want) || !strings.Contains(got, tc.status) {
					t.Errorf("has happened:\n%s", got)
				}
				time.Sleep(time.Hour)
				if n := len(w.times("dial")); n < 8 || n > 30 {
					t.Errorf("it was tried again %d times in an hour", n)
				}
				// New credentials may help: nothing else may.
				w.identity.Change()
				time.Sleep(closeWithin) // an attempt may be under way
				if n := len(w.times("dial")); n != 1 {
					t.Errorf("with new credentials it was tried %d times", n)
				}
			})
		})
	}
}

// An owner that does not let the program in is tried again slowly.
func TestNotLetIn(t *testing.T) {
	bubble(t, func(w *testProgram) {
		w.serve(a, func(conversation) error { return status.Error(codes.PermissionDenied, "who are you\n") })
		p := w.provider(a)
		w.run(p, one)
		synctest.Wait()
		w.expect(isOne+`pending: PermissionDenied: who are you\n`, "status")
		time.Sleep(time.Hour)
		if n := len(w.times("dial")); n > 30 {
			t.Errorf("it was tried again %d times in an hour", n)
		}
	})
}

// In TLS 1.3 a program is done with its handshake before the owner has judged the program's certificate: the
// alert that says why comes with the first that is read.
func TestCertificateRefused(t *testing.T) {
	bubble(t, func(w *testProgram) {
		authority, foreign := pki.New(t), must.Get(mtls.NewAuthority("foreign", 24*time.Hour))(t)
		w.Serve(w, a, network.GRPC(grpc.NewServer(grpc.Creds(pki.Source(t, authority, pki.Named("a")).Server()))))
		issued := must.Get(foreign.Issue(pki.Named("program.example")))(t)
		issued.CA = authority.PEM()
		files := pki.Files(t.TempDir())
		must.Do(t, issued.WriteFiles(files))
		w.identity.Of = mtls.Consumer{Source: must.Get(mtls.Load(files, nil))(t), ServerName: "a"}.Credentials
		w.run(w.provider(a), one)
		synctest.Wait()
		w.expect(isOne+`pending: TLS handshake: remote error: tls: unknown certificate authority`, "status")
	})
}

// An address is left alone for as long as it says; another one is taken at once.
func TestRetryAfter(t *testing.T) {
	bubble(t, func(w *testProgram) {
		w.serve(a, func(c conversation) error { return c.Send(closed(registrationv1.Close_PARTING_FRIENDS, time.Minute)) })
		p := w.provider(a)
		stop := w.run(p, one)
		time.Sleep(10 * time.Minute)
		times := w.times("dial")
		for i := 1; i < len(times); i++ {
			if d := times[i] - times[i-1]; d < time.Minute || d > time.Minute*11/10 {
				t.Errorf("it was tried again after %v", d)
			}
		}
		if len(times) < 9 {
			t.Errorf("it was tried %d times", len(times))
		}
		stop()

		w.owner(b, grants(ttl))
		p = w.provider(a, b)
		w.set(p, one)
		begun := time.Since(w.start)
		w.run(p)
		time.Sleep(time.Second)
		if at := w.times(isOne + "registered b:1"); len(at) != 1 || at[0] != begun {
			t.Errorf("another address was taken at %v, not at %v", at, begun)
		}
	})
}

// An owner that hangs, wherever it does, is given up after half a ttl for the next one.
func TestOwnerHangs(t *testing.T) {
	large := strings.Repeat("x", 60_000)
	for name, do := range map[string]script{
		"before it opens": func(c conversation) error {
			<-c.Context().Done()
			return nil
		},
		"before it grants": func(c conversation) error {
			if err := c.Send(opened(version)); err != nil {
				return err
			}
			return answers(silence)(c)
		},
		"before it reads": func(c conversation) error {
			if err := c.Send(opened(version)); err != nil {
				return err
			}
			<-c.Context().Done()
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(w *testProgram) {
				w.serve(a, do)
				w.owner(b, grants(ttl))
				p := w.provider(a, b)
				for _, uri := range []string{one, two, "tcp://192.0.2.1:1", "tcp://192.0.2.1:2"} {
					must.Do(t, p.Set(Node{Service: "shop.fed.example", URI: uri, TTL: ttl, Description: large}))
				}
				w.run(p)
				time.Sleep(ttl/2 + time.Millisecond)
				// Both are so at the same moment, and then the second one may be told alone.
				got := strings.TrimPrefix(w.happened(isOne), isOne+"pending: the owner does not answer\n")
				if got != isOne+"registered b:1 https://192.0.2.1:443" {
					t.Errorf("has happened:\n%s", got)
				}
				if log := w.log.String(); !strings.Contains(log, `address=a:1 error="the owner does not answer"`) {
					t.Errorf("the log is:\n%s", log)
				}
			})
		})
	}
	t.Run("before it accepts", func(t *testing.T) {
		bubble(t, func(w *testProgram) {
			w.owner(b, grants(ttl))
			p := w.provider(hanging, b)
			must.Do(t, p.Set(Node{Service: "shop.fed.example", URI: one, TTL: ttl}))
			w.run(p)
			time.Sleep(ttl/2 + time.Millisecond)
			if got := w.happened("registered"); got != isOne+"registered b:1 https://192.0.2.1:443" {
				t.Errorf("has happened:\n%s", got)
			}
		})
	})
	t.Run("after a while", func(t *testing.T) {
		bubble(t, func(w *testProgram) {
			heard := 0
			w.owner(a, answers(func(m *registrationv1.RegisterRequest) []*registrationv1.RegisterResponse {
				if heard++; heard > 3 {
					return nil
				}
				return granted(m, ttl)
			}))
			w.owner(b, grants(ttl))
			p := w.provider(a, b)
			w.run(p, one)
			for range 600 {
				time.Sleep(beforeEnd)
				// Owners expire a node 1.5 ttl after its last Active, of which one more
				// was sent than answered.
				synctest.Wait()
				if s := p.Statuses()[0]; time.Until(s.Until) < -ttl/10 {
					t.Fatalf("after %v the status is %+v", time.Since(w.start), s)
				}
			}
			if s := p.Statuses()[0]; s.Owner != b || s.State != Registered {
				t.Errorf("the status is %+v", s)
			}
		})
	})
}

// Owners that are slow are given more and more time, so that one is registered with in
// the end.
func TestSlowOwners(t *testing.T) {
	bubble(t, func(w *testProgram) {
		do := func(c conversation) error {
			time.Sleep(ttl * 2)
			return grants(ttl)(c)
		}
		w.owner(a, do)
		w.owner(b, do)
		p := w.provider(a, b)
		must.Do(t, p.Set(Node{Service: "shop.fed.example", URI: one, TTL: ttl}))
		w.run(p)
		time.Sleep(2 * time.Minute)
		if got := w.happened(isOne + "registered"); got == "" {
			t.Error("it is not registered in two minutes")
		}
	})
}

// While the store of an owner is away it answers heartbeats and nothing new. It is not
// left then.
func TestStoreAway(t *testing.T) {
	bubble(t, func(w *testProgram) {
		w.owner(a, answers(func(m *registrationv1.RegisterRequest) []*registrationv1.RegisterResponse {
			if m.GetActive().GetNode() != one {
				return nil
			}
			return granted(m, ttl)
		}))
		w.owner(b, grants(ttl))
		p := w.provider(a, b)
		w.run(p, one)
		time.Sleep(time.Minute)
		w.set(p, two)
		time.Sleep(10 * time.Minute)
		if n := len(w.times("a: active " + two)); n != 1 {
			t.Errorf("what is new was sent %d times", n)
		}
		if s := p.Statuses(); s[0].State != Registered || s[0].Owner != a || s[1].State != Pending {
			t.Errorf("the status is %+v", s)
		}
	})
}

// What was cleared while no owner could be reached is cleared later, unless it has expired.
// An answer does not say which Active it is to. The late one to a heartbeat is none to the
// node as it is since.
func TestLateAnswer(t *testing.T) {
	for _, rule := range []string{"", "quota"} {
		bubble(t, func(w *testProgram) {
			heard := 0
			w.owner(a, answers(func(m *registrationv1.RegisterRequest) []*registrationv1.RegisterResponse {
				heard++
				switch {
				case m.GetActive().GetDescription() != "":
					time.Sleep(time.Second)
					return refused(m, "full")
				case heard == 2:
					time.Sleep(time.Second)
					if rule != "" {
						return refused(m, rule)
					}
				}
				return granted(m, ttl)
			}))
			p := w.provider(a)
			w.run(p, one)
			for n := 0; n < 2; n += len(w.times("a: active")) {
				time.Sleep(100 * time.Millisecond)
			}
			w.times("")
			must.Do(t, p.Set(Node{Service: "shop.fed.example", URI: one, Description: "other"}))
			time.Sleep(3 * time.Second)
			w.expect("a: active "+one+"\n"+isOne+"refused full: it is full", "a: ", "status")
		})
	}
}

// clearAway has a provider clear one of two nodes while there is no owner.
func clearAway(w *testProgram) *Provider {
	stop := w.owner(a, grants(ttl))
	p := w.provider(a)
	w.run(p, one, two)
	synctest.Wait()
	stop()
	p.Clear("shop.fed.example", two)
	return p
}

// A node that is cleared without a stream may be published for one and a half ttls after it was
// told last: so long an owner that is back is told.
func TestClearedLately(t *testing.T) {
	bubble(t, func(w *testProgram) {
		clearAway(w)
		time.Sleep(ttl + time.Second)
		w.times("")
		w.owner(a, grants(ttl))
		time.Sleep(ttl/2 - time.Second - time.Nanosecond) // longer than any delay between two attempts
		if got := w.happened("a: "); !strings.HasPrefix(got, "a: clear "+two+"\na: active "+one) {
			t.Errorf("has happened:\n%s", got)
		}
	})
}

func TestClearedMeanwhile(t *testing.T) {
	bubble(t, func(w *testProgram) {
		p := clearAway(w)
		p.Clear("shop.fed.example", "tcp://192.0.2.9:9") // which never was
		time.Sleep(time.Second)
		w.times("")
		stop := w.owner(a, grants(ttl))
		time.Sleep(ttl / 2)
		if got := w.happened("a: "); !strings.HasPrefix(got, "a: clear "+two+"\na: active "+one) {
			t.Errorf("has happened:\n%s", got)
		}
		stop()
		p.Clear("shop.fed.example", one)
		time.Sleep(2 * ttl)
		w.owner(a, grants(ttl))
		w.times("")
		time.Sleep(time.Minute)
		w.expect("", "a: ", "dial")
		w.set(p, one)
		w.expect("a: active "+one+"\n"+atOne, "a: ", "status")
	})
}

// The end of Run clears everything, and waits for the owner.
func TestEnd(t *testing.T) {
	bubble(t, func(w *testProgram) {
		w.owner(a, func(c conversation) error {
			err := grants(ttl)(c)
			time.Sleep(2 * time.Second) // to store it
			w.recordf("stored")
			return err
		})
		p := w.provider(a)
		stop := w.run(p, one)
		synctest.Wait()
		if took := stop(); took != 2*time.Second {
			t.Errorf("the end takes %v", took)
		}
		w.expect("a: active "+one+"\na: clear "+one+"\n"+parting+"\nstored", "a: ", "stored")
		if err := p.Set(Node{Service: "shop.fed.example", URI: one}); !errors.Is(err, ErrEnded) {
			t.Errorf("Set after the end: %v", err)
		}
		if err := p.Run(w.Context()); err == nil {
			t.Error("it runs again")
		}
		if err := p.Drain(w.Context(), time.Hour); err != nil {
			t.Error(err)
		}
	})
}

// The end of Run is bounded, and takes another owner if the first one fails.
func TestEndWithTrouble(t *testing.T) {
	for name, tc := range map[string]struct {
		do   script // of a when it is told to close
		b    bool
		took time.Duration
		want string
	}{
		"hangs": {func(c conversation) error {
			<-c.Context().Done()
			return nil
		}, true, leaveTimeout, ""},
		"fails":            {func(conversation) error { return errGone }, true, 0, "b: clear " + one},
		"closes as well":   {func(c conversation) error { return c.Send(closed(registrationv1.Close_PARTING_FRIENDS, 0)) }, true, 0, ""},
		"goes away itself": {func(c conversation) error { return c.Send(closed(registrationv1.Close_PARTING_FRIENDS, 1)) }, true, 0, "b: clear " + one},
		"fails, alone":     {func(conversation) error { return errGone }, false, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(w *testProgram) {
				var stopA func()
				stopA = w.owner(a, func(c conversation) error {
					if err := grants(ttl)(c); err != nil {
						return err
					}
					err := tc.do(c)
					if tc.want != "" {
						go stopA()
					}
					return err
				})
				if tc.b {
					w.owner(b, grants(ttl))
				}
				p := w.provider(a, b)
				stop := w.run(p, one)
				synctest.Wait()
				if took := stop(); took != tc.took {
					t.Errorf("the end takes %v", took)
				}
				w.expect(tc.want, "b: clear")
			})
		})
	}
	t.Run("nobody is there", func(t *testing.T) {
		bubble(t, func(w *testProgram) {
			stopA := w.owner(a, grants(ttl))
			p := w.provider(a, b)
			stop := w.run(p, one)
			synctest.Wait()
			stopA()
			time.Sleep(time.Second)
			w.times("")
			if took := stop(); took != 0 {
				t.Errorf("the end takes %v", took)
			}
			if n := len(w.times("dial")); n != 2 {
				t.Errorf("%d connections are tried", n)
			}
		})
	})
	t.Run("nothing was registered", func(t *testing.T) {
		bubble(t, func(w *testProgram) {
			stop := w.run(w.provider(hanging))
			time.Sleep(time.Hour)
			if took := stop(); took != 0 {
				t.Errorf("the end takes %v", took)
			}
			w.expect("", "dial")
		})
	})
}

// Drain waits for the owner, and then for caches.
func TestDrain(t *testing.T) {
	bubble(t, func(w *testProgram) {
		w.owner(a, grants(ttl))
		p := w.provider(a)
		stop := w.run(p, one)
		synctest.Wait()
		begun := time.Now()
		if err := p.Drain(w.Context(), ttl); err != nil || time.Since(begun) != ttl {
			t.Errorf("Drain takes %v: %v", time.Since(begun), err)
		}
		w.expect("a: active "+one+"\na: clear "+one+"\n"+parting, "a: ")
		stop()

		p = w.provider(a)
		if err := p.Drain(w.Context(), ttl); err != nil {
			t.Error(err)
		}
		if err := p.Run(w.Context()); err != nil {
			t.Errorf("Run after Drain: %v", err)
		}
		if err := p.Drain(w.Context(), 0); err != nil {
			t.Error(err)
		}
	})
}

func TestNewErrors(t *testing.T) {
	for want, config := range map[string]Config{
		"no address of an owner":                   {Identity: plain()},
		"no identity: there is no unsecured mode":  {Addresses: []string{a}},
		`address "a" of an owner is not host:port`: {Addresses: []string{a, "a"}, Identity: plain()},
	} {
		if _, err := New(config); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("the error is %v, want %s", err, want)
		}
	}
}

func TestSetErrors(t *testing.T) {
	p := must.Get(New(Config{Addresses: []string{a}, Identity: plain()}))(t)
	const name = "shop.fed.example"
	for want, n := range map[string]Node{
		`service "a..b": `:             {Service: "a..b", URI: one},
		"node: no URI":                 {Service: name},
		"ttl -1s is negative":          {Service: name, URI: one, TTL: -time.Second},
		`"\xff" is not UTF-8`:          {Service: name, URI: one, Metadata: map[string]string{"a": "\xff"}},
		`node "https://:8443" takes 6`: {Service: name, URI: one, Description: strings.Repeat("x", maxMessage)},
	} {
		if err := p.Set(n); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("the error is %v, want %s", err, want)
		}
	}
	if n := len(p.Statuses()); n != 0 {
		t.Errorf("there are %d nodes", n)
	}
}
