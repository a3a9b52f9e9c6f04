// Package faults is what goes wrong in the world of somebody on call: two owners and a CoreDNS
// that follows both. Each fault is known by the alerts that it makes fire, and by what there
// is to find out. Command drill and the tests of package monitoring use both.
package faults

import (
	"context"
	"fmt"
	"slices"
	"syscall"

	"github.com/miekg/dns"
)

// Fault is one thing that goes wrong at night.
type Fault struct {
	Name  string // is not shown before the end
	Cause string // what there is to find out, and what to do

	Complaint string // of a user, who knows no more
	Ask       string // the name that it is about

	// happen makes it go wrong.
	happen func(ctx context.Context, w *World) error
	// mend ends it, as far as the usual files of both owners do not; it may be nil.
	mend func(ctx context.Context, w *World) error

	// Shows is the answer for the name Ask once it has gone wrong.
	Shows string
	// Alerts are what the pager says.
	Alerts []Alert
	// since says that the alert compares with a quarter of an hour ago, when the pager must
	// have been watching.
	since bool

	// Clues stand in what federationctl says of the name: why, at CoreDNS or at the owner.
	Clues []string
	// AtOwner asks the owner of that name as well.
	AtOwner string
}

// Alert is one that fires for a program: coredns, east or west.
type Alert struct{ Name, At string }

// All returns all of them.
func All() []Fault {
	return []Fault{
		{
			Name:      "killed",
			Cause:     "The owner east is down. Start it again; until then its records live on, for 2 minutes.",
			Complaint: "Is anything the matter with bank.east.fed.example? My resolver marks its answers as stale.",
			Ask:       "bank.east.fed.example", Shows: "NOERROR 192.0.2.11", Alerts: []Alert{{"FederationConsumerOwnerStale", "coredns"}},
			happen: func(_ context.Context, w *World) error {
				w.East.Kill()
				return nil
			},
			mend:  func(ctx context.Context, w *World) error { return w.East.Start(ctx) },
			Clues: []string{"stale", "connection refused"},
		},
		{
			Name:      "turned away",
			Cause:     "This CoreDNS is no longer in the allow file of west. Have it added there, and reload CoreDNS.",
			Complaint: "Changes in west don't arrive any more.",
			Ask:       "bank.west.fed.example", Shows: "NOERROR 192.0.2.12", Alerts: []Alert{{"FederationConsumerOwnerParked", "coredns"}},
			happen: func(_ context.Context, w *World) error {
				return w.Write("west-allow.txt", "spiffe://somebody.else.example/coredns\n")
			},
			mend:  func(_ context.Context, w *World) error { return w.Issue("coredns", coreDNSID, 0) }, // has it try at once
			Clues: []string{"parked", "Unauthenticated"},
		},
		{
			Name:      "refused",
			Cause:     "East publishes bank at 169.254.7.7, a link-local address, which is refused here; the last good version is answered. Have east correct the address.",
			Complaint: "We moved bank.east.fed.example an hour ago, and still get the old address.",
			Ask:       "bank.east.fed.example", Shows: "NOERROR 192.0.2.11", Alerts: []Alert{{"FederationConsumerRefusals", "coredns"}, {"FederationOwnerRefusals", "east"}}, since: true,
			happen: func(_ context.Context, w *World) error {
				all := usual("east")
				all[0].address = "169.254.7.7"
				if err := w.configure(w.East, "allow_addresses: [169.254.0.0/16]\n"); err != nil {
					return err
				}
				return w.publish(w.East, all...)
			},
			Clues: []string{"169.254.7.7", "refused"},
		},
		{
			Name:      "shadowed",
			Cause:     "West publishes pay.shared.fed.example, and so does east, which comes first in the Corefile and has the name. One of the two has to go.",
			Complaint: "pay.shared.fed.example leads to the wrong address: it should be 192.0.2.99.",
			Ask:       "pay.shared.fed.example", Shows: "NOERROR 192.0.2.98", Alerts: []Alert{{"FederationConsumerConflicts", "coredns"}},
			happen: func(ctx context.Context, w *World) error {
				return w.both(ctx, service{"pay", "shared", "192.0.2.98", "gold"}, service{"pay", "shared", "192.0.2.99", "gold"})
			},
			Clues: []string{"comes later in the Corefile", "192.0.2.98"},
		},
		{
			Name:      "label lost",
			Cause:     "The service shop of west has lost its label tier=gold, so import_labels leaves it out here. Have the label put back.",
			Complaint: "shop.west.fed.example does not resolve any more.",
			Ask:       "shop.west.fed.example", Shows: "NXDOMAIN",
			happen: func(_ context.Context, w *World) error {
				all := usual("west")
				all[1].label = "lead"
				return w.publish(w.West, all...)
			},
			Clues: []string{"import_labels"}, AtOwner: "west",
		},
		{
			Name:      "not told",
			Cause:     "New exports of west tell this consumer of nothing but bank. Have west add a rule for shop.",
			Complaint: "shop.west.fed.example does not resolve any more.",
			Ask:       "shop.west.fed.example", Shows: "NXDOMAIN",
			happen: func(_ context.Context, w *World) error {
				return w.configure(w.West, fmt.Sprintf("  exports:\n  - match: {fqdn: [bank.west.fed.example]}\n    to: [%q]\n", coreDNSID))
			},
			Clues: []string{"withdrawn"}, AtOwner: "west",
		},
		{
			Name:      "withdrawn",
			Cause:     "West has withdrawn stock: it left the catalog file. Ask its authors.",
			Complaint: "stock.west.fed.example does not resolve any more.",
			Ask:       "stock.west.fed.example", Shows: "NXDOMAIN",
			happen: func(_ context.Context, w *World) error { return w.publish(w.West, usual("west")[:2]...) },
			Clues:  []string{"withdrawn"}, AtOwner: "west",
		},
		{
			Name:      "broken file",
			Cause:     "The catalog file of east has a mistake, so its last good version is published. 'federationctl lint' shows the line.",
			Complaint: "We changed bank.east.fed.example to 192.0.2.77 an hour ago, and still get the old address.",
			Ask:       "bank.east.fed.example", Shows: "NOERROR 192.0.2.11", Alerts: []Alert{{"FederationOwnerFileBroken", "east"}},
			happen: func(_ context.Context, w *World) error {
				return w.Write("east-catalog.yaml", "services:\n- name: bank\n  fqdn: bank.east.fed.example\n  endpoints: [{address: 192.0.2.77}]\n")
			},
			Clues: []string{"port"}, AtOwner: "east",
		},
		{
			Name:      "hung",
			Cause:     "The owner west hangs: its process is stopped. It was noticed after 50 s. Restart it.",
			Complaint: "Is anything the matter with bank.west.fed.example? My resolver marks its answers as stale.",
			Ask:       "bank.west.fed.example", Shows: "NOERROR 192.0.2.12", Alerts: []Alert{{"FederationConsumerOwnerStale", "coredns"}},
			happen: func(_ context.Context, w *World) error {
				w.West.Signal(syscall.SIGSTOP)
				return nil
			},
			mend: func(_ context.Context, w *World) error {
				w.West.Signal(syscall.SIGCONT)
				return nil
			},
			Clues: []string{"stale"},
		},
	}
}

// both publishes one more service of each owner, and waits until the later one has come.
func (w *World) both(ctx context.Context, east, west service) error {
	if err := w.publish(w.East, append(usual("east"), east)...); err != nil {
		return err
	}
	if err := w.publish(w.West, append(usual("west"), west)...); err != nil {
		return err
	}
	return Eventually(ctx, func(ctx context.Context) error {
		return w.answers(ctx, "v1."+east.fqdn(), "NOERROR "+east.address)
	})
}

// answers fails unless CoreDNS answers that.
func (w *World) answers(ctx context.Context, name, want string) error {
	if got := w.DNS.Answer(ctx, name, dns.TypeA); got != want {
		return fmt.Errorf("%s: %s, expected %s", name, got, want)
	}
	return nil
}

// Find returns the fault of that name.
func Find(name string) (Fault, error) {
	all := All()
	i := slices.IndexFunc(all, func(f Fault) bool { return f.Name == name })
	if i < 0 {
		return Fault{}, fmt.Errorf("there is no fault %q", name)
	}
	return all[i], nil
}
