package receipt_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/hamlet-federation/coredns-federation/federation/wire/receipt"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

func TestHeader(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		receipt receipt.Receipt
		header  string
	}{
		{receipt.Receipt{Holder: "A1b"}, "holder=A1b; ttl=0; hold=0"},
		{receipt.Receipt{Holder: "A1b", TTL: 5 * time.Second, Hold: time.Hour, File: true}, "holder=A1b; ttl=5; hold=3600; file"},
		{receipt.Receipt{Holder: strings.Repeat("x", 64), Hold: receipt.Forever, Relay: true}, "holder=" + strings.Repeat("x", 64) + "; ttl=0; hold=forever; relay"},
	} {
		if got := tt.receipt.Header(); got != tt.header {
			t.Errorf("the header is %q, expected %q", got, tt.header)
		}
		if got := must.Get(receipt.Parse(tt.header))(t); got != tt.receipt {
			t.Errorf("%q is %+v, expected %+v", tt.header, got, tt.receipt)
		}
		if got, want := tt.receipt.Reports(), tt.receipt.Relay || tt.receipt.File; got != want {
			t.Errorf("%q reports: %v", tt.header, got)
		}
	}
	up := receipt.Receipt{Holder: "a", TTL: 1, Hold: time.Second + 1}
	if got := up.Header(); got != "holder=a; ttl=1; hold=2" {
		t.Errorf("a part of a second is not a whole one: %q", got)
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		"ttl=1;hold=2;holder=a;later=3;flag":            "",
		" holder=a ; ttl=1 ; hold=2 ":                   "",
		"holder=a; ttl=1; hold=forever":                 "",
		"holder=a; ttl=1; hold=99999999999":             "",
		"":                                              `federation-receipts: holder "" is not a word of letters and digits up to 64 bytes`,
		"holder=a b; ttl=1; hold=2":                     `federation-receipts: holder "a b" is not a word of letters and digits up to 64 bytes`,
		"holder=ä; ttl=1; hold=2":                       `federation-receipts: holder "\u00e4" is not a word of letters and digits up to 64 bytes`,
		"holder=a; hold=2":                              "federation-receipts: there is no ttl in seconds",
		"holder=a; ttl=forever; hold=2":                 "federation-receipts: there is no ttl in seconds",
		"holder=a; ttl=1":                               "federation-receipts: there is no hold",
		"holder=a; ttl=-1; hold=2":                      `federation-receipts: ttl: "-1" is neither a number of seconds nor forever`,
		"holder=a; ttl=1; hold=2s":                      `federation-receipts: hold: "2s" is neither a number of seconds nor forever`,
		"holder=a; ttl=1; hold=99999999999999999999999": `federation-receipts: hold: "99999999999999999999999" is neither a number of seconds nor forever`,
	} {
		if _, err := receipt.Parse(header); err == nil && want != "" || err != nil && err.Error() != want {
			t.Errorf("%q: the error is %v, expected %q", header, err, want)
		}
	}
	if _, err := receipt.Parse("ttl=1; hold=2; holder=" + strings.Repeat("x", 65)); err == nil {
		t.Error("a holder of 65 bytes is accepted")
	}
	if r := must.Get(receipt.Parse("holder=a; ttl=1; hold=99999999999"))(t); r.Hold != receipt.Forever {
		t.Errorf("what is longer than a hundred years is %v, and not for ever", r.Hold)
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 257)
	for _, r := range []receipt.Report{{}, {Settled: "7", Hold: time.Minute}, {Hold: receipt.Forever, Unknown: "it is lost; hold=9; unknown=x"}, {Unknown: long}} {
		got := must.Get(receipt.Reported(must.Get(r.Status())(t), r.Settled))(t)
		r.Unknown = r.Unknown[:min(len(r.Unknown), 256)]
		if got == nil || *got != r {
			t.Errorf("%+v is read as %+v", r, got)
		}
	}
	say := func(text string) *status.Status {
		return &status.Status{Message: "settled", Details: []*anypb.Any{must.Value(anypb.New(wrapperspb.String(text)))}}
	}
	for name, s := range map[string]*status.Status{
		"no status": nil, "an ACK": {}, "a NACK": {Code: 3, Message: "settled", Details: say("hold=1").GetDetails()}, "no detail": {Message: "settled"},
	} {
		if got, err := receipt.Reported(s, "1"); got != nil || err != nil {
			t.Errorf("%s is %+v, %v", name, got, err)
		}
	}
	for name, s := range map[string]*status.Status{
		"no number": say("hold=x"), "nothing": say(""), "no hold": say("unknown=x"),
		"another type": {Message: "settled", Details: []*anypb.Any{must.Value(anypb.New(wrapperspb.Bool(true)))}},
	} {
		if got, err := receipt.Reported(s, "1"); got != nil || err == nil {
			t.Errorf("%s is %+v", name, got)
		}
	}
	if got := must.Get(receipt.Reported(say("hold=1; unknown=\x1b[2Jgone"), ""))(t); strings.ContainsRune(got.Unknown, '\x1b') {
		t.Errorf("what a peer says may move the cursor: %q", got.Unknown)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("holder=a; ttl=1; hold=forever; relay; file")
	f.Add("hold=18446744073709551615;;=;holder==")
	f.Fuzz(func(t *testing.T, header string) {
		r, err := receipt.Parse(header)
		if err != nil {
			return
		}
		if r.TTL < 0 && r.TTL != receipt.Forever || r.Hold < 0 && r.Hold != receipt.Forever {
			t.Errorf("%+v", r)
		}
		if again := must.Get(receipt.Parse(r.Header()))(t); again != r {
			t.Errorf("unexpected result (-first +again):\n%s", cmp.Diff(r, again))
		}
	})
}

func FuzzReported(f *testing.F) {
	f.Add("hold=5; unknown=x")
	f.Fuzz(func(t *testing.T, text string) {
		detail, err := anypb.New(wrapperspb.String(text))
		if err != nil {
			return
		}
		r, err := receipt.Reported(&status.Status{Message: "settled", Details: []*anypb.Any{detail}}, "1")
		if err != nil {
			return
		}
		if len(r.Unknown) > 4*256 || r.Hold < receipt.Forever {
			t.Errorf("%+v", r)
		}
	})
}
