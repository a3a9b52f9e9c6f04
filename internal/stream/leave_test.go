package stream

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network/simulation"
)

// An owner whose consumer goes on purpose sees the end of the stream, in both
// versions of the API and whether it is busy or idle.
func TestOwnerSeesTheEnd(t *testing.T) {
	for name, tc := range map[string]struct {
		version  wire.APIVersion
		services int
		after    time.Duration
	}{
		"v1alpha2, idle":        {wire.V1Alpha2, 1, time.Hour},
		"v1alpha2, no services": {wire.V1Alpha2, 0, time.Second},
		"v1alpha2, at once":     {wire.V1Alpha2, 1000, 0},
		"v1alpha1, idle":        {wire.V1Alpha1, 1, time.Hour},
		"v1alpha1, at once":     {wire.V1Alpha1, 1000, 0},
	} {
		t.Run(name, func(t *testing.T) {
			simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
				registry := registry.New()
				for i := range tc.services {
					service := upsert("s" + strconv.Itoa(i)).Service
					service.SANs = []string{"spiffe://owner.example/s"}
					must.Get(registry.Upsert(service))(t)
				}
				sim.secure()
				server, _ := sim.Publish(ownerAddress, registry)
				config := sim.config()
				config.Version = tc.version
				_, stop := sim.run(config)
				for server.Stats().Catalogs[""].Consumers[tc.version] == 0 {
					time.Sleep(time.Millisecond)
				}
				time.Sleep(tc.after)
				stop()
				synctest.Wait()
				if ended := server.Stats().Catalogs[""].Ended; len(ended) != 1 || ended[codes.OK] != 1 {
					t.Errorf("ended with %v", ended)
				}
				if sim.Records("lost") != nil {
					t.Errorf("lost: %v", sim.Details("lost"))
				}
			})
		})
	}
}
