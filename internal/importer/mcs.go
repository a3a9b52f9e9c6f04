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

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/kube"
	"github.com/hamlet-federation/coredns-federation/internal/mcs"
	"github.com/hamlet-federation/coredns-federation/internal/status"
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

// mcsVersion is read and written. The API server shows v1alpha1 of the same objects.
var mcsVersion = schema.GroupVersion(mcsv1beta1.GroupVersion) //nolint:gochecknoglobals // never changed

// admitPart returns what a service has in its label for ServiceImports, or why it is no part of one. Other services
// are not imported, as well as those of this cluster, of which it knows best itself. The fqdn begins with name and
// namespace, so that zones and import_names say in which namespaces an owner has a part.
func (t *Target) admitPart(s *federation.Service) (e mcs.Export, invalid *federation.InvalidError) {
	const key = "labels[" + mcs.Label + "]"
	i := slices.IndexFunc(s.Labels, func(l federation.Pair) bool { return l.Key == mcs.Label })
	if i < 0 {
		return e, catalog.ErrNotImported
	}
	e, err := mcs.Parse(s.Labels[i].Value)
	switch {
	case err != nil:
		invalid = federation.Invalidf(key, federation.ReasonUndecodable, "%v", err)
	case e.Cluster == t.Cluster:
		invalid = catalog.ErrNotImported
	case !strings.HasPrefix(s.FQDN.String(), e.Name+"."+e.Namespace+"."):
		invalid = federation.Invalidf(key, federation.ReasonOutOfZone, "names %s/%s, with which the fqdn %s does not begin", e.Namespace, e.Name, s.FQDN)
	}
	return e, invalid
}

// partsOf returns the parts of a name, one of each cluster, and the ServiceExport that has this cluster's, or nil.
// Of two offers for one cluster, that counts of which there are objects, or else the first. The caller holds mu.
func (m *Importer) partsOf(name types.NamespacedName, n *importedName) (parts []offer, export *mcsv1beta1.ServiceExport) {
	export, _ = n.objects[objectKey{exportKind, name}].(*mcsv1beta1.ServiceExport)
	service, _ := n.service(name).(*corev1.Service)
	if export == nil || service == nil || export.DeletionTimestamp != nil || service.DeletionTimestamp != nil || service.Spec.Type == corev1.ServiceTypeExternalName {
		export = nil
	} else {
		parts = append(parts, offer{export: mcs.Describe(m.config.Target.Cluster, export, service)}) // of no owner
	}
	var ranked []*offer
	for _, there := range n.objects {
		if o, _ := m.offerOf(there); o != nil {
			ranked = append(ranked, o)
		}
	}
	for _, o := range append(ranked, n.offers...) {
		if !slices.ContainsFunc(parts, func(part offer) bool { return part.export.Cluster == o.export.Cluster }) {
			parts = append(parts, *o)
		}
	}
	return parts, export
}

// planImport does the work of planName for a ServiceImport and its objects.
func (m *Importer) planImport(ctx context.Context, name types.NamespacedName, n *importedName) (p plan) {
	m.mu.Lock()
	parts, export := m.partsOf(name, n)
	p.there = maps.Clone(n.objects)
	is, found := p.there[objectKey{importKind, name}].(*mcsv1beta1.ServiceImport)
	kept := false
	for key, o := range p.there {
		if _, left := m.offerOf(o); left > 0 && found {
			delete(p.there, key) // stays as it is, whoever else has a part of the cluster
			parts = slices.DeleteFunc(parts, func(part offer) bool { return part.export.Cluster == o.GetLabels()[mcsv1beta1.LabelSourceCluster] })
			kept, p.again = true, earlier(p.again, left)
		}
	}
	m.mu.Unlock()

	var exports []mcs.Export
	for _, part := range parts {
		exports = append(exports, part.export)
	}
	merged, conflict := mcs.Merge(exports)
	switch {
	case kept:
		merged = is.DeepCopy()
	case merged == nil:
		return p
	case export != nil:
		p.noteConflict(export, conflict)
	}
	labelImport(merged)
	p.wanted = []object{merged}
	if !found { // the others refer to it, and a new object has no status
		p.there, p.begun, merged.Status = nil, true, mcsv1beta1.ServiceImportStatus{}
		return p
	}
	if merged.UID = is.UID; !apiequality.Semantic.DeepEqual(is.Status, merged.Status) {
		p.statuses = append(p.statuses, statusChange{merged, mcsv1beta1.ServiceImportKindName, merged.Status})
	}
	if merged.Spec.Type == mcsv1beta1.ClusterSetIP {
		s := newDerived(merged)
		derived, there := p.there[keyOf(s)].(*corev1.Service)
		p.wanted, p.begun = append(p.wanted, s), !there // until the ServiceImport has its addresses
		if there {
			merged.Spec.IPs, merged.Spec.IPFamilies = slices.Clone(derived.Spec.ClusterIPs), slices.Clone(derived.Spec.IPFamilies)
		}
	}
	for _, part := range parts {
		m.planSlices(ctx, &p, merged, part)
	}
	return p
}

// statusChange is a status to write, in which fields of other managers are left out.
type statusChange struct {
	of     object
	kind   string // as objects say it
	status any
}

// noteConflict has the condition Conflict of a ServiceExport written where it is another. Other controllers have
// other conditions.
func (p *plan) noteConflict(export *mcsv1beta1.ServiceExport, conflict metav1.Condition) {
	conflict.ObservedGeneration = export.Generation
	conditions := slices.Clone(export.Status.Conditions)
	if meta.SetStatusCondition(&conditions, conflict) {
		now := []metav1.Condition{*meta.FindStatusCondition(conditions, conflict.Type)}
		p.statuses = append(p.statuses, statusChange{export, mcsv1beta1.ServiceExportKindName, map[string]any{"conditions": now}})
	}
}

// writeStatuses writes what is to change of statuses, once the objects are written. Where another controller
// has one of the fields, or the object is gone, nothing is left to do.
func (m *Importer) writeStatuses(ctx context.Context, changes []statusChange) error {
	for _, c := range changes {
		key := keyOf(c.of)
		request, err := kube.ApplyStatus(m.api[key.kind], c.of, mcsVersion, c.kind, manager, c.status)
		if err == nil {
			err = m.send(ctx, key, request, c.of.DeepCopyObject().(object))
		}
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// derivedName returns the name of the derived Service of a ServiceImport, with which those of its slices begin. Its
// length does not depend on the ServiceImport, whose own name may be as long as a name of a Service may be.
func derivedName(i *mcsv1beta1.ServiceImport) string {
	hash := fnv.New64a()
	hash.Write([]byte(i.Namespace + "/" + i.Name))
	return fmt.Sprintf("derived-%016x", hash.Sum64())
}

// labelImport says that a ServiceImport is ours. Exported labels and annotations cannot be those by which an
// importer knows what belongs to whom.
func labelImport(i *mcsv1beta1.ServiceImport) {
	for _, exported := range []map[string]string{i.Labels, i.Annotations} {
		maps.DeleteFunc(exported, func(key, _ string) bool { return strings.HasPrefix(key, prefix) || key == mcsv1beta1.LabelServiceName })
	}
	metav1.SetMetaDataLabel(&i.ObjectMeta, managedBy, mcsManager)
}

// ownedBy returns the metadata of objects that a ServiceImport owns, with the name of the derived Service.
func ownedBy(i *mcsv1beta1.ServiceImport) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: i.Namespace, Name: derivedName(i), Labels: map[string]string{managedBy: mcsManager, mcsv1beta1.LabelServiceName: i.Name},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: mcsv1beta1.GroupVersion.String(), Kind: mcsv1beta1.ServiceImportKindName, Name: i.Name, UID: i.UID}},
	}
}

// newDerived returns the derived Service of a ServiceImport. It has the values that the API server would
// choose for what the exports do not say. It has no traffic distribution, because the server computes the hints
// that this needs for the slices of Services with a selector only.
func newDerived(of *mcsv1beta1.ServiceImport) *corev1.Service {
	s := newService(ownedBy(of), nil, false)
	for _, p := range of.Spec.Ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: p.Name, Protocol: p.Protocol, AppProtocol: p.AppProtocol, Port: p.Port, TargetPort: intstr.FromInt32(p.Port)})
	}
	s.Spec.SessionAffinity = cmp.Or(of.Spec.SessionAffinity, corev1.ServiceAffinityNone)
	if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		s.Spec.SessionAffinityConfig = cmp.Or(of.Spec.SessionAffinityConfig, &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(corev1.DefaultClientIPServiceAffinitySeconds)}})
	}
	s.Spec.InternalTrafficPolicy = cmp.Or(of.Spec.InternalTrafficPolicy, new(corev1.ServiceInternalTrafficPolicyCluster))
	return s
}

// planSlices adds the slices of a part to a plan.
func (m *Importer) planSlices(ctx context.Context, p *plan, of *mcsv1beta1.ServiceImport, part offer) {
	meta := ownedBy(of)
	meta.Labels[discoveryv1.LabelServiceName], meta.Labels[discoveryv1.LabelManagedBy] = meta.Name, mcsManager
	meta.Labels[mcsv1beta1.LabelSourceCluster] = part.export.Cluster
	meta.Name += "-" + part.export.Cluster
	if part.owner == nil {
		p.wanted = append(p.wanted, part.copySlices(meta, of.Spec.Ports, p.there)...)
		return
	}
	noteService(&meta, part.owner, part.service)
	s := part.service.Unpack()
	addresses, again, unknown := m.resolveEndpoints(ctx, part.owner, s)
	p.again = earlier(p.again, again)
	if unknown != "" { // its slices stay as they are, for want of an answer
		p.reason, p.rule = status.ImportNoEndpoint, "the host "+unknown+" of cluster "+part.export.Cluster+" cannot be looked up"
		maps.DeleteFunc(p.there, func(_ objectKey, o object) bool {
			return o.GetLabels()[mcsv1beta1.LabelSourceCluster] == part.export.Cluster
		})
		return
	}
	p.wanted = append(p.wanted, newSlices(meta, part.servedPorts(of.Spec.Ports, s, addresses))...)
}

// servedPorts returns the places of the part for the ports of a ServiceImport: those endpoints of its
// service that have a target as their number. Endpoints are for TCP, and so a port of another protocol has
// the addresses of all with its one target. Of has the addresses of each endpoint, by index.
func (o *offer) servedPorts(ports []mcsv1beta1.ServicePort, s *federation.Service, of [][]netip.Addr) (all []servedPort) {
	for _, port := range ports {
		served, targets := servedPort{name: port.Name, protocol: port.Protocol, number: port.Port}, o.export.Targets[mcs.PortKey(port)]
		for i, e := range s.Endpoints {
			number := e.Port
			if port.Protocol != corev1.ProtocolTCP && len(targets) > 0 {
				number = targets[0]
			}
			for _, address := range of[i] {
				if number > 0 && slices.Contains(targets, number) {
					served.addPlace(address, number)
				}
			}
		}
		all = append(all, served)
	}
	return all
}

// copySlices returns slices of a ServiceImport with what those of the exported Service of this cluster have,
// and with the names that the ServiceImport has for its ports.
func (o *offer) copySlices(meta metav1.ObjectMeta, ports []mcsv1beta1.ServicePort, there map[objectKey]object) (all []object) {
	keys, names := make(map[string]string), make(map[string]string)
	for _, port := range o.export.Ports {
		keys[port.Name] = mcs.PortKey(port)
	}
	for _, port := range ports {
		names[mcs.PortKey(port)] = port.Name
	}
	for _, is := range there {
		from, ok := is.(*discoveryv1.EndpointSlice)
		if !ok || from.Labels[discoveryv1.LabelServiceName] != o.export.Name || from.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		from = from.DeepCopy()
		slice := newSlice(meta, string(from.UID), from.AddressType)
		slice.Endpoints = from.Endpoints
		for _, port := range from.Ports {
			if name, served := names[keys[ptr.Deref(port.Name, "")]]; served {
				port.Name = &name
				slice.Ports = append(slice.Ports, port)
			}
		}
		if len(slice.Ports) > 0 && len(slice.Endpoints) > 0 {
			all = append(all, slice)
		}
	}
	return all
}
