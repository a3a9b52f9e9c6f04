package importer

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

const (
	manager = "federationctl-import" // the value of the labels that say who manages an object

	managedBy         = "app.kubernetes.io/managed-by"
	prefix            = "hamlet-federation.github.io/"
	ownerKey          = prefix + "owner" // label, fit for one, and annotation
	serviceAnnotation = prefix + "service"
	fqdnAnnotation    = prefix + "fqdn"
)

// object is an object of Kubernetes, as it is read and written.
type object interface {
	metav1.Object
	runtime.Object
}

// objectKey names an object of a kind.
type objectKey struct {
	kind string // the resource
	name types.NamespacedName
}

// The kinds, by their resources.
const (
	serviceKind = "services"
	sliceKind   = "endpointslices"
	mapKind     = "configmaps"
)

// keyOf returns the key of an object.
func keyOf(o object) objectKey {
	kind := serviceKind
	switch o.(type) {
	case *discoveryv1.EndpointSlice:
		kind = sliceKind
	case *mcsv1beta1.ServiceImport:
		kind = importKind
	case *mcsv1beta1.ServiceExport:
		kind = exportKind
	}
	return objectKey{kind, types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}}
}

// nameOf returns the name that an object belongs to.
func nameOf(o object) types.NamespacedName {
	name, labels := o.GetName(), o.GetLabels()
	if _, ok := o.(*discoveryv1.EndpointSlice); ok {
		name = labels[discoveryv1.LabelServiceName]
	}
	if labels[managedBy] == mcsManager {
		name = cmp.Or(labels[mcsv1beta1.LabelServiceName], name)
	}
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: name}
}

// objectStore is what one watch fills: the objects of the names that they belong to. It implements
// cache.ReflectorStore, and keeps nothing itself.
type objectStore struct {
	importer *Importer
	kind     string
}

// Add notes an object that is new or has changed.
func (s *objectStore) Add(o any) error {
	s.importer.mu.Lock()
	defer s.importer.mu.Unlock()
	if is := o.(object); s.importer.noteObject(is, false) {
		s.importer.enqueue(nameOf(is))
	}
	return nil
}

// Update does what Add does.
func (s *objectStore) Update(o any) error { return s.Add(o) }

// Delete notes that an object is gone.
func (s *objectStore) Delete(o any) error {
	s.importer.mu.Lock()
	defer s.importer.mu.Unlock()
	if gone := o.(object); s.importer.forgetObject(gone) {
		s.importer.enqueue(nameOf(gone))
		s.importer.anchored = s.importer.anchored && !s.importer.isOurs(gone) // somebody may have removed the ConfigMap, and with it everything
	}
	return nil
}

// Replace notes all objects. Once all kinds are known, everything is compared.
func (s *objectStore) Replace(objects []any, _ string) error {
	m := s.importer
	m.mu.Lock()
	defer m.mu.Unlock()
	listed := sets.New[types.UID]()
	for _, o := range objects {
		is := o.(object)
		if listed.Insert(is.GetUID()); m.noteObject(is, true) {
			m.enqueue(nameOf(is))
		}
	}
	for _, n := range m.names {
		for key, o := range n.objects {
			if key.kind == s.kind && !listed.Has(o.GetUID()) && m.forgetObject(o) {
				m.enqueue(nameOf(o))
			}
		}
	}
	if m.unread--; m.unread == 0 {
		m.listed, m.broken = true, false
		m.enqueueAll()
	}
	return nil
}

// Resync does nothing, because there is nothing to repeat.
func (*objectStore) Resync() error { return nil }

// noteObject notes an object, and reports whether that is news. One that is older than what is known is passed
// over, unless a list has it, because answers to writes may come before what a watch says. The caller holds mu.
func (m *Importer) noteObject(o object, listed bool) bool {
	key, n := keyOf(o), m.entry(nameOf(o))
	if before := n.objects[key]; before != nil && before.GetUID() == o.GetUID() {
		order, err := resourceversion.CompareResourceVersion(before.GetResourceVersion(), o.GetResourceVersion())
		if err == nil && (order == 0 || order > 0 && !listed) {
			return false
		}
	}
	o.SetManagedFields(nil)
	n.objects[key] = o
	return true
}

// forgetObject notes that an object is gone, and reports whether it was known. The caller holds mu.
func (m *Importer) forgetObject(o object) bool {
	n, key := m.names[nameOf(o)], keyOf(o)
	if n == nil || n.objects[key] == nil || n.objects[key].GetUID() != o.GetUID() {
		return false
	}
	delete(n.objects, key)
	return true
}

// service returns the Service of a name that is there, or nil.
func (n *importedName) service(name types.NamespacedName) object {
	return n.objects[objectKey{serviceKind, name}]
}

// objectNameFor returns the name of the objects of a service, or why there is none. The name has the
// labels of the fqdn below the longest of the owner's zones, or all of them without zones.
func (t *Target) objectNameFor(fqdn federation.FQDN, zones []federation.FQDN) (name string, invalid *federation.InvalidError) {
	longest := ""
	for _, zone := range zones {
		if z := zone.String(); fqdn.Within(zone) && len(z) > len(longest) {
			longest = z
		}
	}
	joined := strings.ReplaceAll(strings.Trim(strings.TrimSuffix(fqdn.String(), longest), "."), ".", "-")
	if joined == "" {
		return "", federation.Invalidf("fqdn", federation.ReasonName, "is that of the zone, so that no label is left for a name")
	}
	name = strings.ReplaceAll(t.Name, "{service}", joined)
	if len(validation.IsDNS1035Label(name)) > 0 {
		return "", federation.Invalidf("fqdn", federation.ReasonName, "%s is no name of a Service, which begins with a letter and has 63 letters, digits and hyphens at most", name)
	}
	return name, nil
}

// servedPort is a port of a Service, with the addresses and numbers where it is reached, in the order of the
// endpoints.
type servedPort struct {
	name     string
	protocol corev1.Protocol
	number   int32
	places   []netip.AddrPort
}

// addPlace adds a place, unless it is there.
func (p *servedPort) addPlace(address netip.Addr, number uint16) {
	if at := netip.AddrPortFrom(address, number); !slices.Contains(p.places, at) {
		p.places = append(p.places, at)
	}
}

// servedPorts returns the ports of a service, one for each protocol of its instances. Of has the
// addresses of each endpoint, by index.
func servedPorts(s *federation.Service, of [][]netip.Addr) (ports []servedPort) {
	var whole []servedPort // of each protocol
	for _, in := range s.Instances {
		name := strings.ToLower(in.Protocol.String())
		p := slices.IndexFunc(whole, func(p servedPort) bool { return p.name == name })
		if p < 0 {
			p, whole = len(whole), append(whole, servedPort{name: name, protocol: corev1.ProtocolTCP})
		}
		// Hamlet, 'CREATE': an instance whose selector selects nothing has all endpoints.
		all := !slices.ContainsFunc(s.Endpoints, func(e federation.Endpoint) bool { return in.Selects(e.Labels) })
		for i, e := range s.Endpoints {
			for _, address := range of[i] {
				if all || in.Selects(e.Labels) {
					whole[p].addPlace(address, e.Port)
				}
			}
		}
	}
	for i := range whole {
		for _, p := range whole[i].splitNumbers() {
			if !slices.ContainsFunc(ports, func(q servedPort) bool { return q.number == p.number }) { // a Service has a number once
				ports = append(ports, p)
			}
		}
	}
	return ports
}

// splitNumbers returns a port for each number where one address has several. Otherwise the numbers are those of
// different machines for one port, which has the number of the first.
func (p *servedPort) splitNumbers() (parts []servedPort) {
	addresses := sets.New[netip.Addr]()
	for _, at := range p.places {
		addresses.Insert(at.Addr())
	}
	for _, at := range p.places {
		number := int32(at.Port())
		i := slices.IndexFunc(parts, func(q servedPort) bool { return q.number == number || len(addresses) == len(p.places) })
		if i < 0 {
			part := servedPort{name: p.name, protocol: p.protocol, number: number}
			if i = len(parts); i > 0 {
				part.name = fmt.Sprintf("%s-%d", p.name, number)
			}
			parts = append(parts, part)
		}
		parts[i].places = append(parts[i].places, at)
	}
	return parts
}

// newService returns a Service without a selector.
func newService(meta metav1.ObjectMeta, ports []servedPort, headless bool) *corev1.Service {
	s := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: meta}
	s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack)
	s.Spec.Type = corev1.ServiceTypeClusterIP
	if headless {
		s.Spec.ClusterIP = corev1.ClusterIPNone
	}
	for _, p := range ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: p.name, Protocol: p.protocol, Port: p.number, TargetPort: intstr.FromInt32(p.number)})
	}
	return s
}

// newSlices returns the EndpointSlices of ports: those of each port have the endpoints of one family
// and number, of which a service has as many as the API server takes in a slice. Their names begin with that of meta.
func newSlices(meta metav1.ObjectMeta, ports []servedPort) (all []object) {
	begun := make(map[string]*discoveryv1.EndpointSlice)
	for _, p := range ports {
		for _, at := range p.places {
			family, kind := "v6", discoveryv1.AddressTypeIPv6
			if at.Addr().Is4() {
				family, kind = "v4", discoveryv1.AddressTypeIPv4
			}
			suffix := fmt.Sprintf("%s-%s-%d", family, p.name, at.Port())
			slice := begun[suffix]
			if slice == nil {
				slice = newSlice(meta, suffix, kind)
				slice.Ports = []discoveryv1.EndpointPort{{Name: &p.name, Protocol: &p.protocol, Port: new(int32(at.Port()))}}
				begun[suffix], all = slice, append(all, slice)
			}
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{at.Addr().String()}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			})
		}
	}
	return all
}

// newSlice returns a slice without ports and endpoints, whose name begins with that of meta.
func newSlice(meta metav1.ObjectMeta, suffix string, kind discoveryv1.AddressType) *discoveryv1.EndpointSlice {
	meta = *meta.DeepCopy()
	meta.Name += "-" + suffix
	return &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: discoveryv1.SchemeGroupVersion.String(), Kind: "EndpointSlice"}, ObjectMeta: meta, AddressType: kind,
	}
}

// unfit is what a label may not have.
var unfit = regexp.MustCompile("[^A-Za-z0-9_.-]")

// labelValue returns a text as a label may have it.
func labelValue(text string) string {
	text = unfit.ReplaceAllString(text, "_")
	return strings.Trim(text[:min(len(text), validation.LabelValueMaxLength)], "-_.")
}

// noteService says in the metadata of an object for which service of which owner it is.
func noteService(meta *metav1.ObjectMeta, owner *followedOwner, p packed.Service) {
	meta.Labels[ownerKey] = labelValue(owner.Name)
	meta.Annotations = map[string]string{ownerKey: owner.Name, serviceAnnotation: p.Name(), fqdnAnnotation: p.FQDN()}
}

// manager returns what the labels of the objects of this importer say. One that makes other objects may
// write to the same namespace.
func (m *Importer) manager() string {
	if m.config.Target.MCS {
		return mcsManager
	}
	return manager
}

// isOurs reports whether an importer of this kind has made an object.
func (m *Importer) isOurs(o metav1.Object) bool {
	return o != nil && o.GetLabels()[managedBy] == m.manager()
}

// withWanted returns a copy of an object that is there with what is wanted of it. Labels and annotations of
// others stay, but for those of a ServiceImport, which are those that are exported.
func withWanted(there, wanted object) object {
	next := there.DeepCopyObject().(object)
	switch n := next.(type) {
	case *corev1.Service:
		w := &wanted.(*corev1.Service).Spec
		n.Spec.Type, n.Spec.IPFamilyPolicy, n.Spec.Ports = w.Type, w.IPFamilyPolicy, w.Ports
		if w.SessionAffinity != "" { // that of a ServiceImport; a Service of an importer of Services may have any
			n.Spec.SessionAffinity, n.Spec.SessionAffinityConfig = w.SessionAffinity, w.SessionAffinityConfig
			n.Spec.InternalTrafficPolicy, n.Spec.TrafficDistribution = w.InternalTrafficPolicy, w.TrafficDistribution
		}
	case *discoveryv1.EndpointSlice:
		w := wanted.(*discoveryv1.EndpointSlice)
		n.Endpoints, n.Ports = w.Endpoints, w.Ports
	case *mcsv1beta1.ServiceImport:
		n.Spec, n.Labels, n.Annotations = wanted.(*mcsv1beta1.ServiceImport).Spec, nil, nil
	}
	next.SetLabels(labels.Merge(next.GetLabels(), wanted.GetLabels()))
	next.SetAnnotations(labels.Merge(next.GetAnnotations(), wanted.GetAnnotations()))
	next.SetOwnerReferences(wanted.GetOwnerReferences())
	return next
}
