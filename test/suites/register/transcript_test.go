package register

import (
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/suites/register/fleet"
)

// documented is the rule that docs/protocol.md describes before its conversation.
const documented = `
- name: shop
  providers: [spiffe://fed.example/ns/other/sa/default]
  services: [shop.fed.example]
  addresses: [192.0.2.0/24]
  ttl: {max: 1m}
  quota: 2
`

// TestLife has the conversation that docs/protocol.md shows. Then it registers a node, and takes it away:
// that is at once, and neither the ttl nor linger is waited for.
func TestLife(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Minute
	w := start(t, options{rules: usual + documented, linger: ttl})
	eventually(t, func() string {
		if place.Scrape(t, w.owners[0].metrics).Sum("federation_owner_ready") != 1 {
			return "the owner is not ready: it would say that nodes wait for its catalog"
		}
		return ""
	})
	converse(t, w.provider(t, w.owners[0], "other"))
	p := w.open(t, w.owners[0], "fleet")
	name := "web." + zone
	p.active(t, name, node(fleet.Address(1)), ttl)
	p.grants(t, node(fleet.Address(1)))
	resolvedTo(t, w, name, short([]string{fleet.Address(1).String()}))
	p.clear(t, name, node(fleet.Address(1)))
	resolvedTo(t, w, name, "NXDOMAIN")
}

// converse says what the provider of docs/protocol.md does, and expects what its owner says.
func converse(t *testing.T, p *peer) {
	t.Helper()
	lines := conversation(t)
	if len(lines) < 10 {
		t.Fatalf("docs/protocol.md has a conversation of %d lines", len(lines))
	}
	for _, line := range lines {
		who, said, _ := strings.Cut(line, " ")
		switch said = strings.TrimSpace(said); {
		case who == "provider":
			request := new(registrationv1.RegisterRequest)
			must.Do(t, prototext.Unmarshal([]byte(said), request))
			p.send(t, request)
		case said == "ends the stream: OK":
			timer := time.NewTimer(await.Patience)
			defer timer.Stop()
			select {
			case err := <-p.ended:
				if err != nil {
					t.Errorf("the stream ends with %v", err)
				}
			case <-timer.C:
				t.Error("the stream does not end")
			}
		default:
			want := new(registrationv1.RegisterResponse)
			must.Do(t, prototext.Unmarshal([]byte(said), want))
			if got := p.next(t); !proto.Equal(got, want) {
				t.Errorf("the owner says\n%v\nand docs/protocol.md has\n%v", got, want)
			}
		}
	}
}

// conversation returns what the two sides say in docs/protocol.md, one message in each.
func conversation(t *testing.T) (lines []string) {
	t.Helper()
	text := must.Get(os.ReadFile("../../../docs/protocol.md"))(t)
	_, block, _ := strings.Cut(string(text), "\n### A conversation\n")
	_, block, _ = strings.Cut(block, "\n```text\n")
	block, _, _ = strings.Cut(block, "\n```\n")
	for line := range strings.SplitSeq(block, "\n") {
		if strings.HasPrefix(line, " ") && len(lines) > 0 {
			lines[len(lines)-1] += " " + strings.TrimSpace(line)
			continue
		}
		lines = append(lines, line)
	}
	return lines
}
