package inspect_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/inspect"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestWait waits for an answer behind an error and a denial, for one to go, and for what does
// not come.
func TestWait(t *testing.T) {
	changing := func(answer *dns.Msg, _ string, n int) *dns.Msg {
		switch {
		case answer.Question[0].Name == "web.fed.example." && n == 1:
			answer.Rcode, answer.Answer = dns.RcodeServerFailure, nil
		case answer.Question[0].Name == "web.fed.example." && n < 4, answer.Question[0].Name == "old.fed.example." && n > 2:
			answer.Rcode, answer.Answer = dns.RcodeNameError, nil
		}
		return answer
	}
	address := newNameServer(t, changing, service(t, "web", "web.fed.example", "192.0.2.1"), service(t, "old", "old.fed.example", "192.0.2.2"))
	server := must.Get(inspect.NewDNS(address, time.Second, 1000))(t)
	late := errors.New("late")
	for _, tc := range []struct {
		name string
		gone bool
		want []string
		said []string
		err  error
	}{
		{"web.fed.example", false, []string{"192.0.2.1"}, []string{"SERVFAIL", "no records"}, nil},
		{"old.fed.example", true, nil, []string{"192.0.2.2"}, nil},
		{"nope.fed.example", true, nil, nil, nil},
		{"nope.fed.example", false, nil, []string{"no records"}, late},
	} {
		name, qtype, err := inspect.NewQuestion(tc.name, "")
		must.Do(t, err)
		ctx, cancel := context.WithCancelCause(t.Context())
		var said []string
		got, err := server.Wait(ctx, name, qtype, tc.gone, func(text string) {
			if said = append(said, text); tc.err != nil {
				cancel(late)
			}
		})
		cancel(nil)
		if !errors.Is(err, tc.err) {
			t.Errorf("%s, gone %v: %v, want %v", tc.name, tc.gone, err, tc.err)
		}
		if diff := cmp.Diff([][]string{tc.want, tc.said}, [][]string{got, said}); diff != "" {
			t.Errorf("%s, gone %v (-want +got):\n%s", tc.name, tc.gone, diff)
		}
	}
}
