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

	offer *offer // nil: of this cluster
}

// exportOf returns the part that a service is, and whether it is one. An error says why its label is not
// that of a part.
func exportOf(s *federation.Service) (e mcs.Export, is bool, err error) {
	i := slices.IndexFunc(s.Labels, func(l federation.Pair) bool { return l.Key == mcs.Label })
	if i < 0 {
		return e, false, nil
	}
	e, err = mcs.Parse(s.Labels[i].Value)
	return e, err == nil, err
}

// admitPart returns why a service is no part of a ServiceImport, or nil. Other services are not imported, as
// well as those of this cluster, of which it knows best itself. The fqdn begins with name and namespace, so that
// zones and import_names say in which namespaces an owner has a part.
func (t *Target) admitPart(s *federation.Service) *federation.InvalidError {
	switch e, is, err := exportOf(s); {
	case err != nil:
		return federation.Invalidf("labels["+mcs.Label+"]", federation.ReasonUndecodable, "%v", err)
	case !is, e.Cluster == t.Cluster:
		return catalog.ErrNotImported
	case !strings.HasPrefix(s.FQDN.String(), e.Name+"."+e.Namespace+"."):
		return federation.Invalidf("labels["+mcs.Label+"]", federation.ReasonOutOfZone, "names %s/%s, with which the fqdn %s does not begin", e.Namespace, e.Name, s.FQDN)
	}
	return nil
}

// importNameFor returns the name of the ServiceImport that a service is a part of, or why there is none.
func importNameFor(p packed.Service) (name types.NamespacedName, rule string) {
	e, is, _ := exportOf(p.Unpack())
	if !is {
		return name, "its label " + mcs.Label + " is not valid" // never: it has been admitted
	}
	return types.NamespacedName{Namespace: e.Namespace, Name: e.Name}, ""
}

// partsOf returns the parts of a name, one of each cluster. Of two offers for one cluster, that counts of
// which there are objects, or else the first. The caller holds mu.
func (m *Importer) partsOf(name types.NamespacedName, n *importedName) (parts []clusterPart) {
	if export, service := n.exported(name); export != nil && service != nil {
		parts = append(parts, clusterPart{Export: mcs.Describe(m.config.Target.Cluster, export, service)})
	}
	written := sets.New[*offer]()
	for _, there := range n.objects {
		if m.isOurs(there) {
			written.Insert(n.offerOf(there))
		}
	}
	rank := func(o *offer) uint64 {
		if written.Has(o) {
			return 0
		}
		return o.age
	}
	for _, o := range slices.SortedFunc(maps.Values(n.offers), func(a, b *offer) int { return cmp.Compare(rank(a), rank(b)) }) {
		e, is, _ := exportOf(o.service.Unpack())
		if is && !slices.ContainsFunc(parts, func(p clusterPart) bool { return p.Cluster == e.Cluster }) {
			parts = append(parts, clusterPart{e, o})
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

// writeImport does the work of writeName for a ServiceImport and its objects.
func (m *Importer) writeImport(ctx context.Context, name types.NamespacedName, n *importedName) (again time.Duration, refused refusal, err error) {
	m.mu.Lock()
	parts, there := m.partsOf(name, n), maps.Clone(n.objects)
	export, service := n.exported(name)
	n.kept, n.holder = false, nil
	for key, o := range there {
		if until, kept := m.keptUntil(n, o); kept {
			delete(there, key) // stays as it is
			n.kept, again = true, earlier(again, time.Until(until))
		}
	}
	for _, p := range parts {
		n.holder = cmp.Or(n.holder, p.offer)
	}
	kept := n.kept
	m.mu.Unlock()

	merged, conflicts := mergeParts(parts)
	current, found := there[objectKey{importKind, name}].(*mcsv1beta1.ServiceImport)
	switch {
	case len(parts) == 0 && (!kept || !found):
		err = m.writeDifference(ctx, there, nil)
	case found && !m.isOurs(current):
		refused = refusal{status.ImportNameTaken, "there is a ServiceImport of the name that no importer has made"}
	default:
		if !found || !kept {
			current, err = m.putImport(ctx, name, there, merged)
		}
		if err == nil {
			var look time.Duration
			look, err = m.writeParts(ctx, current, there, parts)
			again = earlier(again, look)
		}
		if apierrors.IsNotFound(err) && !found {
			return longestPause, refusal{status.ImportNamespace, "there is no namespace " + name.Namespace + " in this cluster"}, nil
		}
	}
	if export != nil && err == nil && !kept {
		if service == nil {
			conflicts = nil // between others
		}
		err = m.tellConflicts(ctx, export, conflicts)
	}
	return again, refused, err
}

// earlier returns the shorter time, where 0 is never.
func earlier(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
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

// putImport writes the ServiceImport and its derived Service: first the ServiceImport, which owns the
// other, then the Service, and then the addresses of that and the status into the ServiceImport.
func (m *Importer) putImport(ctx context.Context, name types.NamespacedName, there map[objectKey]object, merged mcs.Import) (*mcsv1beta1.ServiceImport, error) {
	key := objectKey{importKind, name}
	current := there[key]
	if current == nil {
		created, err := m.put(ctx, key, nil, newImport(name, merged, nil))
		if err != nil {
			return nil, err
		}
		current = created
	}
	derived := newDerived(current.(*mcsv1beta1.ServiceImport), merged)
	var service object
	var err error
	if merged.Spec.Type == mcsv1beta1.ClusterSetIP {
		service, err = m.put(ctx, keyOf(serviceKind, derived), there[keyOf(serviceKind, derived)], derived)
	}
	if err == nil {
		current, err = m.put(ctx, key, current, newImport(name, merged, service))
	}
	if err != nil {
		return nil, err
	}
	said := mcsv1beta1.ServiceImportStatus{EndpointSliceObjects: mcsv1beta1.EndpointSliceObjectsPresent}
	for _, cluster := range slices.Sorted(slices.Values(merged.Clusters)) {
		said.Clusters = append(said.Clusters, mcsv1beta1.ClusterStatus{Cluster: cluster})
	}
	next := current.DeepCopyObject().(*mcsv1beta1.ServiceImport)
	if next.Status = said; !apiequality.Semantic.DeepEqual(current, next) {
		err = m.applyStatus(ctx, key, mcsv1beta1.ServiceImportKindName, next, said)
	}
	return next, err
}

// applyStatus writes the status that an object has, without what other managers have there. It notes the
// object, so that nothing is written twice before a watch says so.
func (m *Importer) applyStatus(ctx context.Context, key objectKey, kind string, o object, said any) error {
	if err := kube.ApplyStatus(ctx, m.api[key.kind], o, mcsVersion(), kind, key.kind, manager, said, nil); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.names[nameOf(o)]; n != nil && n.objects[key] != nil && version(n.objects[key]) == version(o) {
		n.objects[key] = o
	}
	return nil
}

// newImport returns a ServiceImport, with the addresses of the derived Service if there is one. Exported labels
// and annotations cannot be those by which an importer knows what belongs to whom.
func newImport(name types.NamespacedName, merged mcs.Import, derived object) *mcsv1beta1.ServiceImport {
	i := &mcsv1beta1.ServiceImport{
		TypeMeta:   metav1.TypeMeta{APIVersion: mcsVersion().String(), Kind: mcsv1beta1.ServiceImportKindName},
		ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name, Labels: map[string]string{}, Annotations: maps.Clone(merged.Annotations)}, Spec: merged.Spec,
	}
	maps.Copy(i.Labels, merged.Labels)
	for _, exported := range []map[string]string{i.Labels, i.Annotations} {
		maps.DeleteFunc(exported, func(key, _ string) bool { return strings.HasPrefix(key, prefix) || key == mcsv1beta1.LabelServiceName })
	}
	i.Labels[managedBy] = mcsManager
	if s, ok := derived.(*corev1.Service); ok {
		i.Spec.IPs, i.Spec.IPFamilies = s.Spec.ClusterIPs, s.Spec.IPFamilies
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

// replaceImport does what update does, for ServiceImports and derived Services: of these, fields that are
// not wanted any more go.
func replaceImport(there, wanted object) (next object, known bool) {
	switch w := wanted.(type) {
	case *mcsv1beta1.ServiceImport:
		n := there.(*mcsv1beta1.ServiceImport).DeepCopy()
		n.Labels, n.Annotations, n.Spec = w.Labels, w.Annotations, w.Spec
		next = n
	case *corev1.Service:
		if w.Labels[managedBy] != mcsManager {
			return nil, false
		}
		n := there.(*corev1.Service).DeepCopy()
		n.Labels, n.OwnerReferences = w.Labels, w.OwnerReferences
		n.Spec.Ports, n.Spec.SessionAffinity, n.Spec.SessionAffinityConfig = w.Spec.Ports, w.Spec.SessionAffinity, w.Spec.SessionAffinityConfig
		n.Spec.InternalTrafficPolicy, n.Spec.TrafficDistribution = w.Spec.InternalTrafficPolicy, w.Spec.TrafficDistribution
		next = n
	default:
		return nil, false
	}
	if apiequality.Semantic.DeepEqual(there, next) {
		next = nil
	}
	return next, true
}

// composeImport returns the objects of a ServiceImport as they would be in a cluster that exports nothing.
func (m *Importer) composeImport(ctx context.Context, name types.NamespacedName) (all []object, again time.Duration, rule string) {
	m.mu.Lock()
	parts := m.partsOf(name, m.names[name])
	m.mu.Unlock()
	merged, _ := mergeParts(parts)
	of := newImport(name, merged, nil)
	if all = append(all, of); merged.Spec.Type == mcsv1beta1.ClusterSetIP {
		all = append(all, newDerived(of, merged))
	}
	for _, p := range parts {
		parted, look := m.composeSlices(ctx, of, p, nil)
		if all = append(all, parted...); look == unknownHosts {
			rule = "a host of cluster " + p.Cluster + " cannot be looked up"
		}
	}
	return all, 0, rule
}

// writeParts writes the slices of the parts of a ServiceImport, and removes what else there is. Slices of a
// part of which a host cannot be looked up stay as they are.
func (m *Importer) writeParts(ctx context.Context, of *mcsv1beta1.ServiceImport, there map[objectKey]object, parts []clusterPart) (again time.Duration, err error) {
	var wanted []object
	for _, p := range parts {
		all, look := m.composeSlices(ctx, of, p, there)
		if look == unknownHosts {
			look = retryHosts
			maps.DeleteFunc(there, func(_ objectKey, o object) bool { return o.GetLabels()[mcsv1beta1.LabelSourceCluster] == p.Cluster })
		}
		wanted, again = append(wanted, all...), earlier(again, look)
	}
	maps.DeleteFunc(there, func(key objectKey, _ object) bool {
		return key.kind == importKind || key.kind == serviceKind && of.Spec.Type == mcsv1beta1.ClusterSetIP
	})
	return again, m.writeDifference(ctx, there, wanted)
}

// composeSlices returns the slices of a part, and when to look hosts up again. There has the slices of the
// exported Service, if the part is that of this cluster.
func (m *Importer) composeSlices(ctx context.Context, of *mcsv1beta1.ServiceImport, p clusterPart, there map[objectKey]object) (all []object, again time.Duration) {
	meta := ownedBy(of)
	meta.Labels[discoveryv1.LabelServiceName], meta.Labels[discoveryv1.LabelManagedBy] = meta.Name, mcsManager
	meta.Labels[mcsv1beta1.LabelSourceCluster] = p.Cluster
	meta.Name += "-" + p.Cluster
	if p.offer == nil {
		return p.copySlices(meta, of.Spec.Ports, there), 0
	}
	noted := metaOf("", "", metav1.OwnerReference{}, p.offer)
	meta.Labels[ownerKey], meta.Annotations = noted.Labels[ownerKey], noted.Annotations
	s := p.offer.service.Unpack()
	addresses, again, unknown := m.resolveEndpoints(ctx, p.offer.owner, s)
	if unknown != "" {
		return nil, unknownHosts
	}
	for _, slice := range newSlices(meta, p.servedPorts(of.Spec.Ports, s, addresses)) {
		all = append(all, slice)
	}
	return all, again
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
		slice := &discoveryv1.EndpointSlice{
			TypeMeta:   metav1.TypeMeta{APIVersion: discoveryv1.SchemeGroupVersion.String(), Kind: "EndpointSlice"},
			ObjectMeta: *meta.DeepCopy(), AddressType: from.AddressType,
		}
		slice.Name += "-" + hashOf(key.name.Name)
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

// tellConflicts says on the ServiceExport of this cluster in what the exports differ, as a condition that
// goes when they do not. Other controllers have other conditions.
func (m *Importer) tellConflicts(ctx context.Context, export *mcsv1beta1.ServiceExport, conflicts []mcs.Conflict) error {
	const kind = string(mcsv1beta1.ServiceExportConditionConflict)
	before := meta.FindStatusCondition(export.Status.Conditions, kind)
	now := []metav1.Condition{}
	var reasons, messages []string
	for _, c := range conflicts {
		reasons, messages = append(reasons, string(c.Reason)), append(messages, c.Message)
	}
	if len(conflicts) > 0 {
		now = append(now, metav1.Condition{
			Type: kind, Status: metav1.ConditionTrue, ObservedGeneration: export.Generation, LastTransitionTime: metav1.Now(),
			Reason: strings.Join(reasons, ","), Message: strings.Join(messages, "; "),
		})
	}
	if len(now) > 0 && before != nil && before.Status == now[0].Status {
		now[0].LastTransitionTime = before.LastTransitionTime
	}
	if before == nil && len(now) == 0 || before != nil && len(now) > 0 && *before == now[0] {
		return nil
	}
	export = export.DeepCopy()
	if meta.RemoveStatusCondition(&export.Status.Conditions, kind); len(now) > 0 {
		meta.SetStatusCondition(&export.Status.Conditions, now[0])
	}
	err := m.applyStatus(ctx, keyOf(exportKind, export), mcsv1beta1.ServiceExportKindName, export, map[string]any{"conditions": now})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // another controller says what conflicts there are, or the export is gone
	}
	return err
}
