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
			return fmt.Errorf("the catalogs of these owners are not complete: %s; 'federationctl watch' shows why", strings.Join(waiting, ", "))
		}
	}
	for _, name := range m.sortedNames() {
		m.mu.Lock()
		n := m.names[name]
		n.holder = m.chooseOffer(n, name)
		for _, p := range m.problemsOf(name, n) {
			fmt.Fprintf(out, "# service %q of owner %s is not imported: %s\n", p.Service, p.Owner, p.Rule)
		}
		m.mu.Unlock()
		if name.Name == "" || n.holder == nil {
			continue
		}
		objects, _, rule := m.composeObjects(ctx, name, n.holder, metav1.OwnerReference{})
		if rule != "" {
			fmt.Fprintf(out, "# %s is not written: %s\n", name, rule)
		}
		for _, o := range objects {
			o.SetOwnerReferences(nil)
			if err := writeYAML(out, o); err != nil {
				return err
			}
		}
	}
	return nil
}

// sortedNames returns the names, in order.
func (m *Importer) sortedNames() []types.NamespacedName {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Keys(m.names), func(a, b types.NamespacedName) int { return cmp.Compare(a.String(), b.String()) })
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
