package main

import (
	"context"
	"fmt"
	"slices"
	"syscall"

	"github.com/miekg/dns"
)

// fault is one thing that goes wrong at night.
type fault struct {
	name  string // is not shown before the end
	cause string // what there is to find out, and what to do

	complaint string // of a user, who knows no more
	ask       string // the name that it is about

	// happen makes it go wrong.
	happen func(ctx context.Context, w *world) error
	// shows is the answer for the name ask once it has gone wrong.
	shows string
	// alert is what the pager says; empty where nothing fires.
	alert string
	// since says that the alert compares with a quarter of an hour ago, when the pager must
	// have been watching.
	since bool

	// clues stand in what federationctl says of the name: why, at CoreDNS or at the owner.
	clues []string
	// atOwner asks the owner of that name as well.
	atOwner string
}

// faults returns all of them.
func faults() []fault {
	return []fault{
		{
			name:      "killed",
			cause:     "The owner east is down. Start it again; until then its records live on, for 2 minutes.",
			complaint: "Is anything the matter with bank.east.fed.example? My resolver marks its answers as stale.",
			ask:       "bank.east.fed.example", shows: "NOERROR 192.0.2.11", alert: "FederationConsumerOwnerStale",
			happen: func(_ context.Context, w *world) error {
				w.east.Kill()
				return nil
			},
			clues: []string{"stale", "connection refused"},
		},
		{
			name:      "turned away",
			cause:     "This CoreDNS is no longer in the allow file of west. Have it added there, and reload CoreDNS.",
			complaint: "Changes in west don't arrive any more.",
			ask:       "bank.west.fed.example", shows: "NOERROR 192.0.2.12", alert: "FederationConsumerOwnerParked",
			happen: func(_ context.Context, w *world) error {
				return w.write("west-allow.txt", "spiffe://somebody.else.example/coredns\n")
			},
			clues: []string{"parked", "Unauthenticated"},
		},
		{
			name:      "refused",
			cause:     "East publishes bank at 169.254.7.7, a link-local address, which is refused here; the last good version is answered. Have east correct the address.",
			complaint: "We moved bank.east.fed.example an hour ago, and still get the old address.",
			ask:       "bank.east.fed.example", shows: "NOERROR 192.0.2.11", alert: "FederationConsumerRefusals", since: true,
			happen: func(_ context.Context, w *world) error {
				all := usual("east")
				all[0].address = "169.254.7.7"
				if err := w.configure(w.east, "allow_addresses: [169.254.0.0/16]\n"); err != nil {
					return err
				}
				return w.publish(w.east, all...)
			},
			clues: []string{"169.254.7.7", "refused"},
		},
		{
			name:      "shadowed",
			cause:     "West publishes pay.shared.fed.example, and so does east, which comes first in the Corefile and has the name. One of the two has to go.",
			complaint: "pay.shared.fed.example leads to the wrong address: it should be 192.0.2.99.",
			ask:       "pay.shared.fed.example", shows: "NOERROR 192.0.2.98", alert: "FederationConsumerConflicts",
			happen: func(ctx context.Context, w *world) error {
				return w.both(ctx, service{"pay", "shared", "192.0.2.98", "gold"}, service{"pay", "shared", "192.0.2.99", "gold"})
			},
			clues: []string{"comes later in the Corefile", "192.0.2.98"},
		},
		{
			name:      "label lost",
			cause:     "The service shop of west has lost its label tier=gold, so import_labels leaves it out here. Have the label put back.",
			complaint: "shop.west.fed.example does not resolve any more.",
			ask:       "shop.west.fed.example", shows: "NXDOMAIN",
			happen: func(_ context.Context, w *world) error {
				all := usual("west")
				all[1].label = "lead"
				return w.publish(w.west, all...)
			},
			clues: []string{"import_labels"}, atOwner: "west",
		},
		{
			name:      "not told",
			cause:     "New exports of west tell this consumer of nothing but bank. Have west add a rule for shop.",
			complaint: "shop.west.fed.example does not resolve any more.",
			ask:       "shop.west.fed.example", shows: "NXDOMAIN",
			happen: func(_ context.Context, w *world) error {
				return w.configure(w.west, fmt.Sprintf("  exports:\n  - match: {fqdn: [bank.west.fed.example]}\n    to: [%q]\n", coreDNSID))
			},
			clues: []string{"withdrawn"}, atOwner: "west",
		},
		{
			name:      "withdrawn",
			cause:     "West has withdrawn stock: it left the catalog file. Ask its authors.",
			complaint: "stock.west.fed.example does not resolve any more.",
			ask:       "stock.west.fed.example", shows: "NXDOMAIN",
			happen: func(_ context.Context, w *world) error { return w.publish(w.west, usual("west")[:2]...) },
			clues:  []string{"withdrawn"}, atOwner: "west",
		},
		{
			name:      "broken file",
			cause:     "The catalog file of east has a mistake, so its last good version is published. 'federationctl lint' shows the line.",
			complaint: "We changed bank.east.fed.example to 192.0.2.77 an hour ago, and still get the old address.",
			ask:       "bank.east.fed.example", shows: "NOERROR 192.0.2.11", alert: "FederationOwnerFileBroken",
			happen: func(_ context.Context, w *world) error {
				return w.write("east-catalog.yaml", "services:\n- name: bank\n  fqdn: bank.east.fed.example\n  endpoints: [{address: 192.0.2.77}]\n")
			},
			clues: []string{"port"}, atOwner: "east",
		},
		{
			name:      "hung",
			cause:     "The owner west hangs: its process is stopped. It was noticed after keepalive and 20 s. Restart it.",
			complaint: "Is anything the matter with bank.west.fed.example? My resolver marks its answers as stale.",
			ask:       "bank.west.fed.example", shows: "NOERROR 192.0.2.12", alert: "FederationConsumerOwnerStale",
			happen: func(_ context.Context, w *world) error {
				w.west.Signal(syscall.SIGSTOP)
				return nil
			},
			clues: []string{"stale"},
		},
	}
}

// both publishes one more service of each owner, and waits until the later one has come.
func (w *world) both(ctx context.Context, east, west service) error {
	if err := w.publish(w.east, append(usual("east"), east)...); err != nil {
		return err
	}
	if err := w.publish(w.west, append(usual("west"), west)...); err != nil {
		return err
	}
	return eventually(ctx, func(ctx context.Context) error {
		return w.answers(ctx, "v1."+east.fqdn(), "NOERROR "+east.address)
	})
}

// answers fails unless CoreDNS answers that.
func (w *world) answers(ctx context.Context, name, want string) error {
	if got := w.dns.Answer(ctx, name, dns.TypeA); got != want {
		return fmt.Errorf("%s: %s, expected %s", name, got, want)
	}
	return nil
}

// find returns the fault of that name.
func find(name string) (fault, error) {
	all := faults()
	i := slices.IndexFunc(all, func(f fault) bool { return f.name == name })
	if i < 0 {
		return fault{}, fmt.Errorf("there is no fault %q", name)
	}
	return all[i], nil
}
