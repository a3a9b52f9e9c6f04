package zone_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/zonetest"
)

var update = flag.Bool("update", false, "rewrite the transcripts in testdata; read the difference before you keep it")

// TestTranscripts plays every file of testdata. A line is a comment (#), empty,
// a command with the time at which it is given, or, indented, what came of the
// command above: the records, serials and faults that are not what they were.
// Times count from the first command, and serials are shown as such times.
//
//	0s config types=A,SRV hide=addr,i OWNER=ZONE,ZONE...  (the first command; hide leaves out names with such labels)
//	0s status OWNER live=1 known expires=1m grace=30s     (what is not said is zero)
//	0s put OWNER GENERATION NAME FQDN ADDRESS@PORT... ID/PROTOCOL...
//	0s remove OWNER NAME
//	0s look
//
// A version is published after every command.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want := string(must.Value(os.ReadFile(file)))
			got := play(want)
			if *update {
				must.Do(t, os.WriteFile(file, []byte(got), 0o644))
				return
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", file, diff)
			}
		})
	}
}

const indent = "    "

// play returns the transcript with the output of its commands made anew.
func play(transcript string) string {
	var p player
	var out strings.Builder
	for line := range strings.Lines(transcript) {
		if strings.HasPrefix(line, indent) {
			continue
		}
		out.WriteString(line)
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		for _, l := range p.play(strings.Fields(line)) {
			out.WriteString(indent + l + "\n")
		}
	}
	return out.String()
}

type player struct {
	builder *zonetest.Builder
	owners  []string
	zones   []string
	types   []uint16
	hidden  []string        // labels
	shown   map[string]bool // lines
}

func (p *player) play(fields []string) (output []string) {
	at := now.Add(must.Value(time.ParseDuration(fields[0])))
	switch command, args := fields[1], fields[2:]; command {
	case "config":
		p.configure(args)
	case "status":
		p.builder.SetStatus(p.owner(args[0]), parseStatus(args[1:]))
	case "put":
		p.builder.Put(p.owner(args[0]), service(strings.Join(args[2:], " ")), must.Value(strconv.ParseUint(args[1], 10, 64)))
	case "remove":
		p.builder.Remove(p.owner(args[0]), args[1])
	case "look":
	default:
		panic("command " + command)
	}
	before := p.shown
	p.shown = p.show(at)
	for _, line := range slices.Sorted(maps.Keys(before)) {
		if !p.shown[line] {
			output = append(output, "- "+line)
		}
	}
	for _, line := range slices.Sorted(maps.Keys(p.shown)) {
		if !before[line] {
			output = append(output, "+ "+line)
		}
	}
	return output
}

func (p *player) configure(args []string) {
	var owners []zone.Owner
	for _, arg := range args {
		key, list, _ := strings.Cut(arg, "=")
		values := strings.Split(list, ",")
		switch key {
		case "types":
			for _, v := range values {
				qtype, _ := typeOf(v)
				p.types = append(p.types, qtype)
			}
		case "hide":
			p.hidden = values
		default:
			owners = append(owners, owner(key, values...))
			p.owners = append(p.owners, key)
			for _, v := range values {
				p.zones = append(p.zones, origin(v).String())
			}
		}
	}
	slices.Sort(p.zones)
	p.zones = slices.Compact(p.zones)
	p.builder = zonetest.NewBuilder(config(owners...), nil)
}

func (p *player) owner(id string) int { return slices.Index(p.owners, id) }

func parseStatus(args []string) (s zone.Status) {
	for _, arg := range args {
		switch key, value, _ := strings.Cut(arg, "="); key {
		case "live":
			s.Live = must.Value(strconv.ParseUint(value, 10, 64))
		case "known":
			s.Known = true
		case "expires":
			s.Expires = now.Add(must.Value(time.ParseDuration(value)))
		case "grace":
			s.Grace = now.Add(must.Value(time.ParseDuration(value)))
		default:
			panic("status " + key)
		}
	}
	return s
}

// show returns all there is to say about a new version, line by line.
func (p *player) show(at time.Time) map[string]bool {
	all := make(map[string]bool)
	z := p.builder.Publish(at)
	for _, name := range p.zones {
		if _, synced := z.OriginSynced(name, at); !synced {
			all["* "+name+" is not synced"] = true
		}
		all[fmt.Sprintf("* serial of %s: %ds", name, int64(z.SOA(name).Serial)-now.Unix())] = true
		for rrs := range reply.FullTransfer(z, name, at) {
			for _, rr := range rrs {
				if p.shows(rr.Header()) {
					all[data("", []dns.RR{rr})[0]] = true
				}
			}
		}
	}
	for i, id := range p.owners {
		for fault, n := range faults(z, i) {
			all[fmt.Sprintf("* fault of %s: %s %d", id, fault, n)] = true
		}
	}
	if due, ok := p.builder.Due(); ok {
		all[fmt.Sprintf("* serial due at %s", due.Sub(now))] = true
	}
	return all
}

func (p *player) shows(h *dns.RR_Header) bool {
	return slices.Contains(p.types, h.Rrtype) && !strings.HasPrefix(h.Name, "ns.dns.") &&
		!slices.ContainsFunc(strings.Split(h.Name, "."), func(label string) bool { return slices.Contains(p.hidden, label) })
}
