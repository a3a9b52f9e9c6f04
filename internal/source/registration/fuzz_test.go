package registration_test

import (
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/hamlet-federation/coredns-federation/internal/source/registration"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// FuzzRegister has a provider say anything after Open. Its stream ends in order, nothing of
// it is left in the end, and what another provider has registered lives on.
func FuzzRegister(f *testing.F) {
	for _, m := range []*registrationv1.RegisterRequest{opening(1), activating(web), {}} {
		data := must.Get(proto.Marshal(m))(f)
		f.Add(data, data, data)
	}
	f.Fuzz(func(t *testing.T, first, second, third []byte) {
		synctest.Test(t, func(t *testing.T) {
			w := settled(t, registration.Config{})
			other := w.connect("other")
			other.active("other.acme.example", one)
			other.expect(granted("other.acme.example", one))
			p := w.connect("web")
			for _, data := range [][]byte{first, second, third} {
				var m registrationv1.RegisterRequest
				if proto.Unmarshal(data, &m) == nil {
					p.say(&m)
				}
			}
			p.close()
			<-p.ended
			switch code := status.Code(p.err); code {
			case codes.OK, codes.InvalidArgument, codes.FailedPrecondition, codes.ResourceExhausted:
			default:
				t.Errorf("the stream ends with %v", p.err)
			}
			for range 7 {
				other.active("other.acme.example", one)
				synctest.Wait()
				sleepHalf()
			}
			w.expect("in the end", "other.acme.example 192.0.2.1:8443")
		})
	})
}
