package importer

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/hamlet-federation/coredns-federation/internal/dns/hostname"
)

// DryRun writes the objects of all services as YAML, by name, once the catalogs of all owners are complete,
// and returns an error with the owners that are missing when ctx ends before that. It asks no cluster, so that
// objects lack their reference to the ConfigMap, and conflicts there are not known.
func (m *Importer) DryRun(ctx context.Context, out io.Writer) error {
	following, end := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer end()
	for _, f := range m.owners {
		running.Go(func() { _ = f.mirror.Run(following) }) // it returns nil when the context ends
	}
	defer hostname.Close(m.hosts)
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for waiting := m.unsyncedOwners(); len(waiting) > 0; waiting = m.unsyncedOwners() {
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("the catalogs of these owners are not complete: %v; 'federationctl watch' shows why", waiting)
		}
	}
	m.mu.Lock()
	chosen := make(map[types.NamespacedName]*offer)
	for name, n := range m.names {
		if n.holder = n.chooseOffer(name); name.Name != "" && n.holder != nil {
			chosen[name] = n.holder
		}
	}
	problems := m.reportImports().Problems
	m.mu.Unlock()
	names := slices.SortedFunc(maps.Keys(chosen), func(a, b types.NamespacedName) int { return cmp.Compare(a.Name, b.Name) })
	for _, name := range names {
		objects, _, rule := m.composeObjects(ctx, name, chosen[name], metav1.OwnerReference{})
		if rule != "" {
			fmt.Fprintf(out, "# %s: %s\n", name.Name, rule)
		}
		for _, o := range objects {
			o.SetOwnerReferences(nil)
			if err := writeYAML(out, o); err != nil {
				return err
			}
		}
	}
	for _, p := range problems {
		fmt.Fprintf(out, "# service %q of owner %s is not imported: %s\n", p.Service, p.Owner, p.Rule)
	}
	return nil
}

// unsyncedOwners returns the owners whose catalogs are not complete.
func (m *Importer) unsyncedOwners() (names []string) {
	for _, f := range m.owners {
		if s := f.mirror.Status(); s.LastSync.IsZero() {
			names = append(names, f.Name)
		}
	}
	return names
}

// writeYAML writes an object as a document.
func writeYAML(out io.Writer, o object) error {
	value, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return err
	}
	delete(value, "status")
	text, err := yaml.Marshal(value)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "---\n%s", text)
	return err
}
