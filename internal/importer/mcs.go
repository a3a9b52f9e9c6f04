package importer

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/kube"
	"github.com/hamlet-federation/coredns-federation/internal/mcs"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

// With ServiceImports, a name is that of one Service in all clusters that export it, and every offer under
// the name counts: it is the part of one cluster. This cluster has a part as well, if it exports the
// Service. Parts are merged into a ServiceImport, which owns the other objects: a derived Service without
// a selector, whose virtual addresses the ServiceImport has, and EndpointSlices of each part.
//
// A slice of an offer says in annotations whose it is. It stays as long as its owner may still make the
// offer. Meanwhile the ServiceImport, the derived Service and the condition Conflict stay as they are,
// because what that part says of them is not known.

// mcsManager stands for manager in the labels of these objects. So an importer of the other kind that writes to
// one of the namespaces does not take them for its own.
const mcsManager = manager + "-mcs"

// The kinds of the MCS API.
const (
	importKind = mcsv1beta1.ServiceImportPluralName
	exportKind = mcsv1beta1.ServiceExportPluralName
)

// mcsVersion returns the version that is read and written. The API server shows v1alpha1 of the same objects.
func mcsVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: mcsv1beta1.GroupName, Version: "v1beta1"}
}

// clusterPart is what one cluster exports under a name.
type clusterPart struct {
	mcs.Export

	offer   *offer         // nil: of this cluster
	service packed.Service // of the offer
}

// exportOf returns what a service has in its label for ServiceImports.
func exportOf(s *federation.Service) (e mcs.Export, invalid *federation.InvalidError) {
	i := slices.IndexFunc(s.Labels, func(l federation.Pair) bool { return l.Key == mcs.Label })
	if i < 0 {
		return e, catalog.ErrNotImported
	}
	e, err := mcs.Parse(s.Labels[i].Value)
	if err != nil {
		return e, federation.Invalidf("labels["+mcs.Label+"]", federation.ReasonUndecodable, "%v", err)
	}
	return e, nil
}

// admitPart returns why a service is no part of a ServiceImport, or nil. Other services are not imported, as
// well as those of this cluster, of which it knows best itself. The fqdn begins with name and namespace, so that
// zones and import_names say in which namespaces an owner has a part.
func (t *Target) admitPart(s *federation.Service) *federation.InvalidError {
	switch e, invalid := exportOf(s); {
	case invalid != nil:
		return invalid
	case e.Cluster == t.Cluster:
		return catalog.ErrNotImported
	case !strings.HasPrefix(s.FQDN.String(), e.Name+"."+e.Namespace+"."):
		return federation.Invalidf("labels["+mcs.Label+"]", federation.ReasonOutOfZone, "names %s/%s, with which the fqdn %s does not begin", e.Namespace, e.Name, s.FQDN)
	}
	return nil
}

// partsOf returns the parts of a name, one of each cluster. Of two offers for one cluster, that counts of
// which there are objects, or else the first. The caller holds mu.
func (m *Importer) partsOf(name types.NamespacedName, n *importedName) (parts []clusterPart) {
	if export, service := n.exported(name); export != nil && service != nil {
		parts = append(parts, clusterPart{Export: mcs.Describe(m.config.Target.Cluster, export, service)})
	}
	held := sets.New[*offer]()
	for _, there := range n.objects {
		o, _ := m.offerOf(there)
		held.Insert(o)
	}
	first := slices.DeleteFunc(slices.Clone(n.offers), func(o *offer) bool { return !held.Has(o) })
	for _, o := range append(first, n.offers...) {
		if !slices.ContainsFunc(parts, func(p clusterPart) bool { return p.Cluster == o.export.Cluster }) {
			parts = append(parts, clusterPart{o.export, o, o.service})
		}
	}
	return parts
}

// exported returns the ServiceExport of this cluster under a name, and the Service that it exports; nil
// where there is none.
func (n *importedName) exported(name types.NamespacedName) (export *mcsv1beta1.ServiceExport, service *corev1.Service) {
	export, _ = n.objects[objectKey{exportKind, name}].(*mcsv1beta1.ServiceExport)
	service, _ = n.objects[objectKey{serviceKind, name}].(*corev1.Service)
	if export != nil && export.DeletionTimestamp != nil || service != nil && (service.DeletionTimestamp != nil || service.Spec.Type == corev1.ServiceTypeExternalName) {
		service = nil
	}
	return export, service
}

// clusterSet is what the status of objects says of the parts of a name.
type clusterSet struct {
	clusters  []string                  // that the ServiceImport is of; none: its status stays as it is
	export    *mcsv1beta1.ServiceExport // of this cluster, unless its conditions stay as they are
	conflicts []mcs.Conflict            // of that with others
}

// planImport does the work of planName for a ServiceImport and its objects.
func (m *Importer) planImport(ctx context.Context, name types.NamespacedName, n *importedName) (p plan) {
	m.mu.Lock()
	parts := m.partsOf(name, n)
	export, service := n.exported(name)
	p.there = maps.Clone(n.objects)
	kept := false
	for key, o := range p.there {
		if _, left := m.offerOf(o); left > 0 {
			delete(p.there, key) // stays as it is
			kept, p.again = true, earlier(p.again, left)
		}
	}
	m.mu.Unlock()

	merged, conflicts := mergeParts(parts)
	if service == nil {
		conflicts = nil // between others
	}
	if !kept {
		p.export, p.conflicts = export, conflicts
	}
	of, found := p.there[objectKey{importKind, name}].(*mcsv1beta1.ServiceImport)
	derived := objectKey{serviceKind, types.NamespacedName{Namespace: name.Namespace, Name: derivedName(name)}}
	switch {
	case len(parts) == 0 && !(kept && found):
		return p
	case found && !m.isOurs(of):
		p.there, p.reason, p.rule = nil, status.ImportNameTaken, "there is a ServiceImport of the name that no importer has made"
		return p
	case !found:
		p.there, p.begun, p.wanted = nil, true, []object{newImport(name, merged, nil)}
		return p
	case kept && (of.Spec.Type != mcsv1beta1.ClusterSetIP || len(of.Spec.IPs) > 0): // it is whole, and what to change is not known
		delete(p.there, objectKey{importKind, name})
		delete(p.there, derived)
	default:
		is, _ := p.there[derived].(*corev1.Service)
		uid := of.UID
		of = newImport(name, merged, is)
		of.UID = uid
		p.wanted, p.clusters = []object{of}, merged.Clusters
		if merged.Spec.Type == mcsv1beta1.ClusterSetIP {
			p.wanted, p.begun = append(p.wanted, newDerived(of, merged)), is == nil // its addresses are missing in the ServiceImport
		}
	}
	for _, part := range parts {
		parted, again, unknown := m.composeSlices(ctx, of, part, p.there)
		if unknown != "" { // they stay as they are, for want of an answer
			p.reason, p.rule = status.ImportNoEndpoint, "the host "+unknown+" of cluster "+part.Cluster+" cannot be looked up"
			maps.DeleteFunc(p.there, func(_ objectKey, o object) bool { return o.GetLabels()[mcsv1beta1.LabelSourceCluster] == part.Cluster })
		}
		p.wanted, p.again = append(p.wanted, parted...), earlier(p.again, again)
	}
	return p
}

// mergeParts returns what parts make together, and the conflicts between them.
func mergeParts(parts []clusterPart) (merged mcs.Import, conflicts []mcs.Conflict) {
	exports := make([]mcs.Export, len(parts))
	for i, p := range parts {
		exports[i] = p.Export
	}
	if len(exports) > 0 {
		merged, conflicts = mcs.Merge(exports)
	}
	return merged, conflicts
}

// derivedName returns the name of the derived Service of a ServiceImport, with which those of its slices begin.
func derivedName(of types.NamespacedName) string { return "derived-" + hashOf(of.String()) }

// hashOf returns a text that names of objects may have for one that is too long for them.
func hashOf(text string) string {
	hash := fnv.New64a()
	hash.Write([]byte(text))
	return fmt.Sprintf("%016x", hash.Sum64())
}

// writeStatuses writes the status of a ServiceImport whose objects are written, and on the ServiceExport of
// this cluster in what the exports differ: a condition that goes when they do not. Other controllers have
// other conditions.
func (m *Importer) writeStatuses(ctx context.Context, name types.NamespacedName, n *importedName, p *plan) error {
	m.mu.Lock()
	written, _ := n.objects[objectKey{importKind, name}].(*mcsv1beta1.ServiceImport)
	m.mu.Unlock()
	if written != nil && len(p.clusters) > 0 {
		next := written.DeepCopy()
		next.Status = mcsv1beta1.ServiceImportStatus{EndpointSliceObjects: mcsv1beta1.EndpointSliceObjectsPresent}
		for _, cluster := range slices.Sorted(slices.Values(p.clusters)) {
			next.Status.Clusters = append(next.Status.Clusters, mcsv1beta1.ClusterStatus{Cluster: cluster})
		}
		if err := m.applyStatus(ctx, mcsv1beta1.ServiceImportKindName, written, next, next.Status); err != nil {
			return err
		}
	}
	if p.export == nil {
		return nil
	}
	next, now := p.export.DeepCopy(), []metav1.Condition{}
	const conflict = string(mcsv1beta1.ServiceExportConditionConflict)
	if len(p.conflicts) == 0 {
		meta.RemoveStatusCondition(&next.Status.Conditions, conflict)
	} else {
		var reasons, messages []string
		for _, c := range p.conflicts {
			reasons, messages = append(reasons, string(c.Reason)), append(messages, c.Message)
		}
		meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
			Type: conflict, Status: metav1.ConditionTrue, ObservedGeneration: next.Generation, Reason: strings.Join(reasons, ","), Message: strings.Join(messages, "; "),
		})
		now = append(now, *meta.FindStatusCondition(next.Status.Conditions, conflict))
	}
	err := m.applyStatus(ctx, mcsv1beta1.ServiceExportKindName, p.export, next, map[string]any{"conditions": now})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // another controller says what conflicts there are, or the export is gone
	}
	return err
}

// applyStatus writes the status that an object should have where it is another, without what other managers
// have there. It notes the object, so that nothing is written twice before a watch says so.
func (m *Importer) applyStatus(ctx context.Context, kind string, is, next object, said any) error {
	if apiequality.Semantic.DeepEqual(is, next) {
		return nil
	}
	key := keyOf(next)
	if err := kube.ApplyStatus(ctx, m.api[key.kind], next, mcsVersion(), kind, key.kind, manager, said, nil); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.names[nameOf(next)]; n != nil && n.objects[key] != nil && version(n.objects[key]) == version(next) {
		n.objects[key] = next
	}
	return nil
}

// newImport returns a ServiceImport, with the addresses of the derived Service if there is one. Exported labels
// and annotations cannot be those by which an importer knows what belongs to whom.
func newImport(name types.NamespacedName, merged mcs.Import, derived *corev1.Service) *mcsv1beta1.ServiceImport {
	i := &mcsv1beta1.ServiceImport{
		TypeMeta:   metav1.TypeMeta{APIVersion: mcsVersion().String(), Kind: mcsv1beta1.ServiceImportKindName},
		ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name, Labels: map[string]string{}, Annotations: maps.Clone(merged.Annotations)}, Spec: merged.Spec,
	}
	maps.Copy(i.Labels, merged.Labels)
	for _, exported := range []map[string]string{i.Labels, i.Annotations} {
		maps.DeleteFunc(exported, func(key, _ string) bool { return strings.HasPrefix(key, prefix) || key == mcsv1beta1.LabelServiceName })
	}
	i.Labels[managedBy] = mcsManager
	if derived != nil && len(derived.Spec.ClusterIPs) > 0 && i.Spec.Type == mcsv1beta1.ClusterSetIP {
		i.Spec.IPs, i.Spec.IPFamilies = derived.Spec.ClusterIPs, derived.Spec.IPFamilies
	}
	return i
}

// ownedBy returns the metadata of objects that a ServiceImport owns, with the name of the derived Service.
func ownedBy(i *mcsv1beta1.ServiceImport) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: i.Namespace, Name: derivedName(types.NamespacedName{Namespace: i.Namespace, Name: i.Name}),
		Labels:          map[string]string{managedBy: mcsManager, mcsv1beta1.LabelServiceName: i.Name},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: mcsVersion().String(), Kind: mcsv1beta1.ServiceImportKindName, Name: i.Name, UID: i.UID}},
	}
}

// newDerived returns the derived Service of a ServiceImport. It has the values that the API server would
// choose for what the exports do not say, and leaves out those that this server may not know.
func newDerived(of *mcsv1beta1.ServiceImport, merged mcs.Import) *corev1.Service {
	s := newService(ownedBy(of), nil, false)
	for _, p := range merged.Spec.Ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: p.Name, Protocol: p.Protocol, AppProtocol: p.AppProtocol, Port: p.Port, TargetPort: intstr.FromInt32(p.Port)})
	}
	s.Spec.SessionAffinity = cmp.Or(merged.Spec.SessionAffinity, corev1.ServiceAffinityNone)
	if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		s.Spec.SessionAffinityConfig = cmp.Or(merged.Spec.SessionAffinityConfig, &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(corev1.DefaultClientIPServiceAffinitySeconds)}})
	}
	s.Spec.InternalTrafficPolicy = cmp.Or(merged.Spec.InternalTrafficPolicy, new(corev1.ServiceInternalTrafficPolicyCluster))
	switch d := merged.Spec.TrafficDistribution; {
	case d == nil:
	case *d == corev1.ServiceTrafficDistributionPreferClose, *d == corev1.ServiceTrafficDistributionPreferSameZone, *d == corev1.ServiceTrafficDistributionPreferSameNode:
		s.Spec.TrafficDistribution = d
	}
	return s
}

// composeSlices returns the slices of a part, and the rest as resolveEndpoints. There has the slices of the
// exported Service, if the part is that of this cluster.
func (m *Importer) composeSlices(ctx context.Context, of *mcsv1beta1.ServiceImport, p clusterPart, there map[objectKey]object) (all []object, again time.Duration, unknown string) {
	meta := ownedBy(of)
	meta.Labels[discoveryv1.LabelServiceName], meta.Labels[discoveryv1.LabelManagedBy] = meta.Name, mcsManager
	meta.Labels[mcsv1beta1.LabelSourceCluster] = p.Cluster
	meta.Name += "-" + p.Cluster
	if p.offer == nil {
		return p.copySlices(meta, of.Spec.Ports, there), 0, ""
	}
	noteService(&meta, p.offer.owner, p.service)
	s := p.service.Unpack()
	addresses, again, unknown := m.resolveEndpoints(ctx, p.offer.owner, s)
	if unknown == "" {
		all = newSlices(meta, p.servedPorts(of.Spec.Ports, s, addresses))
	}
	return all, again, unknown
}

// servedPorts returns the places of the part for the ports of a ServiceImport: those endpoints of its
// service that have a target as their number. Endpoints are for TCP, and so a port of another protocol has
// the addresses of all with its one target. Of has the addresses of each endpoint, by index.
func (p *clusterPart) servedPorts(ports []mcsv1beta1.ServicePort, s *federation.Service, of [][]netip.Addr) (all []servedPort) {
	for _, port := range ports {
		served, targets := servedPort{name: port.Name, protocol: port.Protocol, number: port.Port}, p.PortFor(port).Targets
		for i, e := range s.Endpoints {
			number := e.Port
			if port.Protocol != corev1.ProtocolTCP && len(targets) > 0 {
				number = targets[0]
			}
			for _, address := range of[i] {
				if at := (place{address, number}); slices.Contains(targets, number) && !slices.Contains(served.places, at) {
					served.places = append(served.places, at)
				}
			}
		}
		all = append(all, served)
	}
	return all
}

// copySlices returns slices of a ServiceImport with what those of the exported Service of this cluster have,
// and with the names that the ServiceImport has for its ports.
func (p *clusterPart) copySlices(meta metav1.ObjectMeta, ports []mcsv1beta1.ServicePort, there map[objectKey]object) (all []object) {
	for key, o := range there {
		from, ok := o.(*discoveryv1.EndpointSlice)
		if !ok || from.Labels[discoveryv1.LabelServiceName] != p.Name || from.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		slice := newSlice(meta, hashOf(key.name.Name), from.AddressType)
		for _, port := range ports {
			own := p.PortFor(port)
			for _, at := range from.Ports {
				if at.Name != nil && *at.Name == own.Name && at.Protocol != nil && *at.Protocol == own.Protocol {
					slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &port.Name, Protocol: at.Protocol, Port: at.Port, AppProtocol: at.AppProtocol})
				}
			}
		}
		for _, e := range from.Endpoints {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: e.Addresses, Conditions: e.Conditions, Hostname: e.Hostname, NodeName: e.NodeName, Zone: e.Zone})
		}
		if len(slice.Ports) > 0 && len(slice.Endpoints) > 0 {
			all = append(all, slice)
		}
	}
	return all
}
