package importer

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// ensureAnchor returns a reference to the ConfigMap. It reads or makes the ConfigMap where that is not known,
// and writes into it since when owners are lost, if that is asked for.
func (m *Importer) ensureAnchor(ctx context.Context, write bool) (*metav1.OwnerReference, error) {
	m.anchoring.Lock()
	defer m.anchoring.Unlock()
	owned, before, now := m.knownAnchor()
	if owned != nil && (!write || now == before) {
		return owned, nil
	}
	there, of := new(corev1.ConfigMap), func(r *rest.Request) *rest.Request {
		return r.Namespace(m.config.Target.Namespace).Resource(mapKind).Timeout(oneRequest)
	}
	err := of(m.api[mapKind].Get()).Name(anchor).Do(ctx).Into(there)
	if err == nil && m.isOurs(there) && before == "" { // for the first time since this replica leads
		m.recallLosses(there.Data[lossesKey])
		_, _, now = m.knownAnchor()
	}
	unsaid := there.Data[lossesKey] != now
	there.Data = map[string]string{lossesKey: now}
	switch {
	case err == nil && !m.isOurs(there):
		return nil, fmt.Errorf("the ConfigMap %s is one that no importer has made; remove it, or import into another namespace", anchor)
	case apierrors.IsNotFound(err):
		there.ObjectMeta = metav1.ObjectMeta{Name: anchor, Labels: map[string]string{managedBy: m.manager()}}
		err = of(m.api[mapKind].Post()).Body(there).Do(ctx).Into(there)
	case err == nil && unsaid:
		err = of(m.api[mapKind].Put()).Name(anchor).Body(there).Do(ctx).Into(there)
	}
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.losses = now; m.anchor == nil || m.anchor.UID != there.UID {
		m.anchor = &metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: anchor, UID: there.UID}
		m.enqueueAll()
	}
	return m.anchor, nil
}

// knownAnchor returns the reference to the ConfigMap, nil where it is not known, the losses that are in it,
// and those that should be.
func (m *Importer) knownAnchor() (owned *metav1.OwnerReference, before, now string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	losses := make(map[string]time.Time)
	for _, f := range m.owners {
		if lost := f.lostSince(); !lost.IsZero() {
			losses[f.Name] = lost.UTC().Truncate(time.Second)
		}
	}
	text, err := json.Marshal(losses)
	if err != nil {
		panic(err) // of times and texts
	}
	return m.anchor, m.losses, string(text)
}

// lossesKey is the key of the ConfigMap with the times since when owners are lost, as JSON.
const lossesKey = "lost"

// recallLosses takes over since when owners were lost before this process began.
func (m *Importer) recallLosses(text string) {
	losses := make(map[string]time.Time)
	if json.Unmarshal([]byte(text), &losses) != nil {
		return // somebody has edited it: the retention counts from the start
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range m.owners {
		f.lost = losses[f.Name]
	}
}
