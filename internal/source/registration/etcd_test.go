package registration_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/source/registration"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/store/etcd"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/store/storetest"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// shortLease is so short that leases end while owners are cut off.
const shortLease = 4 * time.Second

// inEtcd is an etcd, in real time.
type inEtcd struct {
	t        *testing.T
	random   *rand.Rand
	etcd     *realserver.Etcd
	gates    [2]*realserver.Gate // between the owners and etcd
	observer *storetest.Recorder
	steps    *time.Ticker
}

func newInEtcd(t *testing.T, random *rand.Rand) *inEtcd {
	t.Helper()
	r := &inEtcd{t: t, random: random, etcd: realserver.StartEtcd(t), steps: time.NewTicker(150 * time.Millisecond)}
	t.Cleanup(r.steps.Stop)
	for i := range r.gates {
		r.gates[i] = realserver.StartGate(t, strings.TrimPrefix(r.etcd.URL, "http://"))
	}
	r.observer, _ = storetest.StartStore(t, r.store(r.etcd.URL))
	return r
}

func (r *inEtcd) store(url string) *etcd.Store {
	return etcd.New(etcd.Config{
		Endpoints: []string{url}, Prefix: "/model", Lease: shortLease,
		Logger: slog.New(slog.NewTextHandler(r.t.Output(), nil)),
	})
}

func (r *inEtcd) open(owner int) registration.Config {
	return registration.Config{Store: r.store("http://" + r.gates[owner].Address), Convergence: shortLease}
}

func (r *inEtcd) away(owner int) {
	if r.random.IntN(2) == 0 {
		r.gates[owner].Stall(true)
		return
	}
	r.gates[owner].Refuse(true)
	r.gates[owner].Cut()
}

func (r *inEtcd) back(owner int, gap bool) {
	if gap {
		_ = r.etcd.Compact(r.t.Context()) // it fails where nothing has changed since the last time
	}
	r.gates[owner].Stall(false)
	r.gates[owner].Refuse(false)
}

func (r *inEtcd) fail(owner int) { r.gates[owner].Cut() }

func (r *inEtcd) lose() {
	must.Do(r.t, r.etcd.Restore(r.t.Context(), r.t.TempDir()))
}

func (r *inEtcd) has() int { return len(r.observer.Told().Nodes) }
func (r *inEtcd) pass()    { <-r.steps.C }
func (*inEtcd) settle()    {} // only the model itself says what there is to wait for

func (r *inEtcd) until(condition func() string) {
	r.t.Helper()
	await.Until(r.t, time.Minute, condition)
}

func (r *inEtcd) rest(pass func(), condition func() string) {
	r.t.Helper()
	await.Until(r.t, 2*time.Minute, func() string {
		pass()
		return condition()
	})
}

// TestModelWithEtcd runs the model with a real etcd. The simulated store decides who was first
// and tells everybody, by a few lines; this one does so by transactions, watches and leases, which
// the owners lose here.
func TestModelWithEtcd(t *testing.T) {
	t.Parallel()
	if os.Getenv("REAL_SERVERS") != "required" {
		t.Skip("needs an etcd and a minute: run with REAL_SERVERS=required")
	}
	for seed := range uint64(2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 1))
			runModel(t, newInEtcd(t, random), random, 200)
		})
	}
}
