package registration

import (
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/source/internal/sourcetest"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/rules"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
)

// When the process was stopped, nothing expires before the convergence period is over.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := rules.Parse([]byte(`rules: [{name: all, providers: ["*"], services: ["*"], addresses: [0.0.0.0/0], ttl: {min: 1s, max: 1m, default: 10s}}]`))
		s := New(Config{Rules: r, Owner: "a", Convergence: time.Minute, Logger: slog.New(slog.DiscardHandler)})
		s.startTable(new(sourcetest.Recorder))
		s.table.SetState(nil, true, time.Now())
		id, _ := federation.ParseID("web.example")
		stream := s.table.OpenStream([]federation.ID{id}, netip.Addr{}, func(*registrationv1.RegisterResponse) {})
		register := func() {
			s.mu.Lock()
			defer s.unlockAndPublish()
			if refusal := s.table.Register(stream, &registrationv1.Active{Service: "web.example", Node: "https://192.0.2.1"}, time.Now()); refusal != nil {
				t.Error(refusal)
			}
		}
		register()
		time.Sleep(30 * time.Second) // the ttl is over
		s.expireDue(time.Now(), true)
		if n := s.Stats(); n.Old != 1 || n.Nodes != 1 || n.Convergence != time.Minute || n.Expired["silent"] != 0 {
			t.Errorf("after the pause: %+v", n)
		}
		time.Sleep(time.Minute - 1)
		s.expireDue(time.Now(), false)
		if n := s.Stats(); n.Old != 1 || n.Pending != 0 {
			t.Errorf("before the end of the convergence: %+v", n)
		}
		register()
		if n := s.Stats(); n.Old != 0 || n.Pending != 0 {
			t.Errorf("after an Active: %+v", n)
		}
		s.expireDue(time.Now().Add(time.Minute), true)
		s.expireDue(time.Now().Add(2*time.Minute), false)
		if n := s.Stats(); n.Old != 0 || n.Nodes != 0 || n.Expired["convergence"] != 1 {
			t.Errorf("after the convergence: %+v", n)
		}
	})
}
