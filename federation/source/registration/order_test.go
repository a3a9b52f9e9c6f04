package registration

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/internal/table"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/rules"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// A node that is refused while it is published, as it is stored, is not granted afterwards.
func TestRefusedBeforeGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := rules.Parse([]byte(`rules: [{name: all, providers: ["*"], services: ["*"], addresses: [0.0.0.0/0], ttl: {min: 1s, max: 1m, default: 10s}}]`))
		s := must.Get(New(Config{Rules: r, Owner: "a"}))(t)
		s.begin()
		s.table.State(nil, true, time.Now())
		id, _ := federation.ParseID("web.example")
		var answers []table.Answer
		stream := s.table.Open([]federation.ID{id}, netip.Addr{}, func(a table.Answer) { answers = append(answers, a) })
		active := table.Active{Text: table.Text{Service: "web.example", Node: "https://192.0.2.1"}}
		must.Do(t, s.table.Register(stream, s.table.Judge(r, stream, &active), time.Now()))
		must.Get(s.commitRound(t.Context()))(t)
		waiting := s.table.Answers()
		active.TTL = time.Hour
		if err := s.table.Register(stream, s.table.Judge(r, stream, &active), time.Now()); err == nil {
			t.Fatal("a ttl of an hour is taken")
		}
		s.table.Deliver(waiting)
		if len(answers) != 1 || answers[0].Kind != table.Refused {
			t.Errorf("the provider was told %+v", answers)
		}
	})
}
