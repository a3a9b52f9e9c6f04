package importer

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/yaml"

	"github.com/hamlet-federation/coredns-federation/internal/dns/hostname"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// DryRun writes the objects of all services as YAML, by name, once the catalogs of all owners are complete,
// and returns an error with the owners that are missing when ctx ends before that. It asks no cluster, so that
// objects lack their reference to the ConfigMap, and conflicts there are not known.
func (m *Importer) DryRun(ctx context.Context, out io.Writer) error {
	following, end := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer hostname.Close(m.hosts)
	for _, f := range m.owners {
		running.Go(func() { _ = f.mirror.Run(following) })
	}
	var waiting []string
	_ = wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(context.Context) (bool, error) {
		waiting = nil
		for _, f := range m.owners {
			if s := f.mirror.Status(); s.LastSync.IsZero() {
				waiting = append(waiting, f.Name)
			}
		}
		return len(waiting) == 0, nil
	})
	end()
	running.Wait() // so that nothing changes from now on
	if len(waiting) > 0 {
		return fmt.Errorf("the catalogs of these owners are not complete: %s; 'federationctl watch' shows why", strings.Join(waiting, ", "))
	}
	for _, name := range slices.SortedFunc(maps.Keys(m.names), func(a, b types.NamespacedName) int { return cmp.Compare(a.String(), b.String()) }) {
		n, p := m.names[name], plan{begun: true}
		for p.begun {
			p = m.planName(ctx, name, n)
			for _, o := range p.wanted {
				m.noteObject(o, false) // as if the API server had taken it
			}
		}
		if p.rule != "" {
			fmt.Fprintf(out, "# %s: %s\n", name, p.rule)
		}
		for _, o := range p.wanted {
			o.SetOwnerReferences(nil)
			text, err := yaml.Marshal(o)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "---\n%s", text)
		}
	}
	for _, f := range m.owners {
		for _, r := range f.events.Refusals() {
			fmt.Fprintf(out, "# service %q of owner %s is not imported: %s\n", r.Service, f.Name, safetext.Printable(r.Rule))
		}
	}
	for _, s := range m.reportServices() {
		if s.Rule != "" {
			fmt.Fprintf(out, "# service %q of owner %s is not imported: %s\n", s.Service, s.Owner, s.Rule)
		}
	}
	return nil
}
