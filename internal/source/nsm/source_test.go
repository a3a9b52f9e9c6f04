package nsm

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/source/nsm/internal/endpoint"
)

const minute = time.Minute

// What is registered, refreshed, changed and unregistered is published at once.
func TestFollow(t *testing.T) {
	runStand(t, func(f *fakeRegistry) { f.put(expiring(minute, "a", "web")) }, func(t *testing.T, s *stand) {
		s.Want(t, "web: a")
		s.put(expiring(minute, "b", "web", "dns"))
		s.Want(t, "dns: b, web: a b")
		updates := s.Part.Updates
		s.At(40 * time.Second)
		s.put(expiring(minute, "a", "web"))
		s.put(expiring(minute, "b", "web", "dns"))
		s.Want(t, "dns: b, web: a b")
		if s.Part.Updates != updates {
			t.Errorf("refreshing was published %d times", s.Part.Updates-updates)
		}
		s.put(expiring(minute, "b", "mail", "dns"))
		s.Want(t, "dns: b, mail: b, web: a")
		moved := expiring(minute, "a", "web")
		moved.Url = "https://192.0.2.9:8443"
		s.put(moved)
		s.Want(t, "dns: b, mail: b, web: a")
		if got := s.Part.Services["nsm/web"].Service().Endpoints[0].Port; got != 8443 {
			t.Errorf("port is %d", got)
		}
		s.remove("b")
		s.Want(t, "web: a")
		s.remove("a")
		s.Want(t, "")
		if s.Part.Times > 0 {
			t.Error("it was said to be away")
		}
	})
}

// The first state is published when it is whole, and not before.
func TestFirstState(t *testing.T) {
	t.Run("empty", func(t *testing.T) {
		runStand(t, nil, func(t *testing.T, s *stand) { s.Want(t, "") })
	})
	t.Run("watch comes later than the list", func(t *testing.T) {
		begin := make(chan struct{})
		runStand(t, func(f *fakeRegistry) {
			begin = make(chan struct{})
			f.beforeWatch = func() { <-begin }
			f.put(expiring(2*minute, "a", "web"))
			f.put(expiring(minute, "gone", "web"))
		}, func(t *testing.T, s *stand) {
			s.At(time.Second)
			s.Want(t, "web: a gone")
			s.remove("gone") // of which no watch will tell
			close(begin)
			s.At(minute + listGap)
			s.Want(t, "web: a")
		})
	})
	t.Run("watch that begins with nothing", func(t *testing.T) {
		runStand(t, func(f *fakeRegistry) {
			f.silent = true
			f.put(expiring(minute, "a", "web"))
		}, func(t *testing.T, s *stand) { s.Want(t, "web: a") })
	})
	t.Run("registered while the list is read", func(t *testing.T) {
		runStand(t, func(f *fakeRegistry) {
			end := make(chan struct{})
			f.afterList = func() { <-end }
			f.put(expiring(minute, "a", "web"))
			time.AfterFunc(5*time.Second, func() {
				f.put(expiring(minute, "b", "web"))
				f.remove("a")
				close(end)
			})
		}, func(t *testing.T, s *stand) {
			s.At(6 * time.Second)
			s.Want(t, "web: b")
		})
	})
	t.Run("list without an end", func(t *testing.T) {
		runStand(t, func(f *fakeRegistry) {
			end := make(chan struct{})
			f.afterList = func() { <-end }
			f.put(nse("a", "web"))
			time.AfterFunc(10*time.Second, func() { close(end) })
		}, func(t *testing.T, s *stand) {
			s.At(9 * time.Second)
			s.Want(t, "silent")
			s.At(11 * time.Second)
			s.Want(t, "web: a")
		})
	})
	t.Run("deleted while the list is read", func(t *testing.T) {
		runStand(t, func(f *fakeRegistry) {
			f.put(nse("a", "web"))
			f.put(nse("b", "web"))
			removed := false
			f.afterList = func() {
				if !removed {
					removed = true
					time.Sleep(500 * time.Millisecond) // the watch is there
					f.remove("b")
				}
			}
		}, func(t *testing.T, s *stand) {
			s.At(time.Second)
			s.Want(t, "web: a")
			s.At(5 * minute)
			s.Want(t, "web: a")
		})
	})
}

// An endpoint goes at its expiration_time, even if the registry goes on telling of it.
func TestExpiration(t *testing.T) {
	runStand(t, nil, func(t *testing.T, s *stand) {
		s.put(expiring(45*time.Second, "a", "web"))
		s.put(expiring(2*minute, "b", "web"))
		s.put(nse("forever", "web"))
		s.At(45*time.Second - 1)
		s.Want(t, "web: a b forever")
		s.At(45 * time.Second)
		s.Want(t, "web: b forever")
		s.At(3 * minute)
		s.Want(t, "web: forever")
		if got := s.Part.Refused[endpoint.Expired]; got != 2 {
			t.Errorf("%d endpoints are counted as expired, want 2", got)
		}
		s.remove("b")
		s.put(expiring(minute, "a", "web"))
		s.Want(t, "web: a forever")
		if got := s.Part.Refused[endpoint.Expired]; got != 0 {
			t.Errorf("%d endpoints are counted as expired, want 0", got)
		}
		s.put(expiring(-time.Second, "a", "web"))
		s.Want(t, "web: forever")
	})
}

// What a watch has lost is found by a list: a refresh before anything expires, a new
// endpoint and a deletion in time.
func TestLostWords(t *testing.T) {
	runStand(t, func(f *fakeRegistry) {
		f.put(expiring(minute, "a", "web"))
		f.put(expiring(minute, "b", "web"))
		f.put(nse("c", "web"))
	}, func(t *testing.T, s *stand) {
		s.deaf = true
		s.At(35 * time.Second)
		s.put(expiring(minute, "a", "web")) // until 95 s
		s.remove("b")
		s.remove("c")
		s.put(nse("d", "web"))
		s.Want(t, "web: a b c")
		s.At(minute - 1)
		s.Want(t, "web: a b c")
		s.At(minute + listGap)
		s.Want(t, "web: a c d")
		s.At(95*time.Second - 1)
		s.Want(t, "web: a c d")
		s.put(expiring(minute, "a", "web"))
		s.At(minute + defaultConvergence + listInterval + listGap)
		s.Want(t, "web: d") // a's time was over at 155 s
	})
}

// A registry that is away withdraws nothing, whatever would have expired meanwhile.
func TestAway(t *testing.T) {
	runStand(t, func(f *fakeRegistry) {
		f.put(expiring(minute, "a", "web"))
		f.put(expiring(minute, "b", "web"))
	}, func(t *testing.T, s *stand) {
		s.At(10 * time.Second)
		s.stop()
		s.wantAway(t, true)
		s.At(30 * minute)
		s.Want(t, "web: a b")
		s.wantAway(t, true)
		s.start() // with what it had: it is kept on a disk
		s.At(31*minute + 5*time.Second)
		s.wantAway(t, false)
		s.Want(t, "web: a b")
		s.put(expiring(10*minute, "a", "web"))
		s.At(34 * minute)
		s.Want(t, "web: a")
		if s.Part.Times != 1 {
			t.Errorf("it was away %d times", s.Part.Times)
		}
	})
}

// A connection that ends is made anew at once, and nobody notices; a registry that ends
// each of them is away.
func TestReconnect(t *testing.T) {
	runStand(t, func(f *fakeRegistry) { f.put(expiring(10*minute, "a", "web")) }, func(t *testing.T, s *stand) {
		for i := range 3 {
			s.At(time.Duration(i+1) * minute)
			s.start()
			s.Want(t, "web: a")
		}
		if s.Part.Times > 0 {
			t.Errorf("it was away %d times", s.Part.Times)
		}
		s.At(3*minute + 5*time.Second)
		s.start()
		s.wantAway(t, true)
		s.At(4 * minute)
		s.wantAway(t, false)
		s.Want(t, "web: a")
	})
}

// A registry that has lost its state learns of its endpoints when they refresh. What does
// not come back stays for the convergence period, and as long as it was to live.
func TestRestart(t *testing.T) {
	runStand(t, func(f *fakeRegistry) {
		f.put(expiring(minute, "back", "web"))
		f.put(expiring(minute, "gone", "web"))
		f.put(expiring(10*minute, "long", "web"))
		f.put(nse("forever", "web"))
		f.put(expiring(minute, "deleted", "web"))
	}, func(t *testing.T, s *stand) {
		s.stop()
		s.lose()
		s.start()
		s.At(5 * time.Second)
		s.wantAway(t, false)
		s.Want(t, "web: back deleted forever gone long")
		s.put(expiring(minute, "back", "web"))
		s.put(expiring(minute, "deleted", "web"))
		s.remove("deleted")
		s.Want(t, "web: back forever gone long")
		s.At(50 * time.Second)
		s.put(expiring(3*minute, "back", "web"))
		s.At(110 * time.Second)
		s.Want(t, "web: back forever gone long")
		s.At(130 * time.Second)
		s.Want(t, "web: back long")
		s.At(6 * minute)
		s.Want(t, "web: long")
		s.At(10*minute + listGap)
		s.Want(t, "")
	})
}

// A connection that carries nothing any more is noticed, and withdraws nothing.
func TestHalfOpen(t *testing.T) {
	runStand(t, func(f *fakeRegistry) { f.put(expiring(10*time.Second, "a", "web")) }, func(t *testing.T, s *stand) {
		s.stalled.Store(true)
		s.At(listInterval + listTimeout + time.Second)
		s.wantAway(t, true)
		s.Want(t, "web: a")
		s.stalled.Store(false)
		s.put(expiring(10*minute, "b", "web"))
		s.At(150 * time.Second)
		s.wantAway(t, false)
		s.Want(t, "web: a b")
		s.At(5 * minute)
		s.Want(t, "web: b")
	})
}

// A service has no more endpoints than a consumer takes, and the same ones always.
func TestManyEndpoints(t *testing.T) {
	runStand(t, func(f *fakeRegistry) {
		for i := range limits.Instances + 10 {
			f.put(nse(fmt.Sprintf("nse-%05d", i), "big"))
		}
		f.put(nse("other", "small"))
	}, func(t *testing.T, s *stand) {
		if got := len(s.Part.Services); got != 2 {
			t.Fatalf("%d services, want 2", got)
		}
		big := s.Part.Services["nsm/big"].Service()
		if n := len(big.Instances); n != limits.Instances || big.Instances[n-1].ID != "nse-00999" {
			t.Errorf("%d instances, the last is %s", n, big.Instances[n-1].ID)
		}
		if got := s.Part.Refused[endpoint.Limit]; got != 10 {
			t.Errorf("%d are refused, want 10", got)
		}
		updates := s.Part.Updates
		s.remove("nse-00000")
		synctest.Wait()
		if big = s.Part.Services["nsm/big"].Service(); big.Instances[0].ID != "nse-00001" || big.Instances[999].ID != "nse-01000" {
			t.Errorf("instances are %s to %s", big.Instances[0].ID, big.Instances[999].ID)
		}
		if got := s.Part.Refused[endpoint.Limit]; got != 9 || s.Part.Updates != updates+1 {
			t.Errorf("%d are refused, want 9; %d updates", got, s.Part.Updates-updates)
		}
	})
}

// Before its first state a registry that is away is said to be, with a reason that is
// bounded and quoted.
func TestNotThere(t *testing.T) {
	runStand(t, func(f *fakeRegistry) { f.stop() }, func(t *testing.T, s *stand) {
		s.wantAway(t, true)
		s.Want(t, "silent")
		if got := s.Part.Away.Error(); !strings.HasPrefix(got, "registry tcp://127.0.0.1:5002: Unavailable: ") {
			t.Errorf("reason is %s", got)
		}
		s.put(nse("a", "web"))
		s.start()
		s.At(minute)
		s.Want(t, "web: a")
		s.wantAway(t, false)
	})
}

// TestPayload follows the payload of a network service, which is in every list. Where the
// registry does not tell it, nothing else changes.
func TestPayload(t *testing.T) {
	services := new(networkServices)
	runStand(t, func(f *fakeRegistry) {
		f.services = services
		f.start()
		f.put(nse("a", "web", "dns"))
	}, func(t *testing.T, s *stand) {
		expect := func(want string) {
			t.Helper()
			synctest.Wait()
			for _, of := range []string{"web", "dns"} {
				if of == "dns" {
					want = ""
				}
				got := ""
				for _, pair := range s.Part.Services["nsm/"+of].Service().Instances[0].Metadata {
					got += pair.Key + "=" + pair.Value
				}
				if got != want {
					t.Errorf("metadata of %s are %q, expected %q", of, got, want)
				}
			}
		}
		s.Want(t, "dns: a, web: a")
		expect("")
		services.payload.Store("IP")
		s.At(listInterval + time.Second)
		expect("payload=IP")
		services.payload.Store("ETHERNET")
		s.At(2*listInterval + 2*time.Second)
		expect("payload=ETHERNET")
	})
}
