package importer

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/hamlet-federation/coredns-federation/federation"
)

const (
	manager = "federationctl-import" // the value of the labels that say who manages an object

	managedBy         = "app.kubernetes.io/managed-by"
	prefix            = "hamlet-federation.github.io/"
	ownerKey          = prefix + "owner" // label, fit for one, and annotation
	serviceAnnotation = prefix + "service"
	fqdnAnnotation    = prefix + "fqdn"

	// mostEndpoints is how many endpoints the API server takes in an EndpointSlice.
	mostEndpoints = 1000
)

// object is an object of Kubernetes, as it is read and written.
type object interface {
	metav1.Object
	runtime.Object
}

// objectNameFor returns the name of the objects of a service, or why there is none. The name has the
// labels of the fqdn below the longest of the owner's zones, or all of them without zones.
func (t *Target) objectNameFor(fqdn federation.FQDN, zones []federation.FQDN) (name, rule string) {
	below, longest := fqdn.String(), ""
	for _, zone := range zones {
		if z := zone.String(); fqdn.Within(zone) && len(z) > len(longest) {
			longest, below = z, strings.TrimSuffix(fqdn.String(), z)
		}
	}
	labels := strings.ReplaceAll(strings.Trim(below, "."), ".", "-")
	if labels == "" {
		return "", "its fqdn is that of the zone, so that no label is left for a name"
	}
	name = strings.ReplaceAll(t.Name, "{service}", labels)
	if len(validation.IsDNS1035Label(name)) > 0 {
		return "", name + " is no name of a Service, which begins with a letter and has 63 letters, digits and hyphens at most"
	}
	return name, ""
}

// place is where a service is reached.
type place struct {
	address netip.Addr
	number  uint16
}

// servedPort is a port of a Service, with the places where it is reached, in the order of the
// endpoints.
type servedPort struct {
	name     string
	protocol corev1.Protocol
	number   int32
	places   []place
}

// servedPorts returns the ports of a service, one for each protocol of its instances. Of has the
// addresses of each endpoint, by index. Where one address has several numbers for a protocol, these are
// ports of their own. Otherwise the numbers are those of different machines for one port, which has
// the number of the first.
func servedPorts(s *federation.Service, of [][]netip.Addr) (ports []servedPort) {
	var protocols []federation.Protocol
	byProtocol := make(map[federation.Protocol][]place)
	for _, in := range s.Instances {
		if !slices.Contains(protocols, in.Protocol) {
			protocols = append(protocols, in.Protocol)
		}
		// Hamlet, 'CREATE': an instance whose selector selects nothing has all endpoints.
		all := !slices.ContainsFunc(s.Endpoints, func(e federation.Endpoint) bool { return in.Selects(e.Labels) })
		for i, e := range s.Endpoints {
			for _, address := range of[i] {
				if at := (place{address, e.Port}); (all || in.Selects(e.Labels)) && !slices.Contains(byProtocol[in.Protocol], at) {
					byProtocol[in.Protocol] = append(byProtocol[in.Protocol], at)
				}
			}
		}
	}
	taken := make(map[int32]bool) // a Service has a number once
	for _, protocol := range protocols {
		for i, group := range splitNumbers(byProtocol[protocol]) {
			port := servedPort{strings.ToLower(protocol.String()), corev1.ProtocolTCP, int32(group[0].number), group}
			if i > 0 {
				port.name = fmt.Sprintf("%s-%d", port.name, port.number)
			}
			if !taken[port.number] {
				taken[port.number] = true
				ports = append(ports, port)
			}
		}
	}
	return ports
}

// splitNumbers returns the places of each port: those of one number, if an address has several
// numbers, and all places otherwise.
func splitNumbers(all []place) (groups [][]place) {
	numbers := make(map[netip.Addr]uint16)
	several := slices.ContainsFunc(all, func(p place) bool {
		before, known := numbers[p.address]
		numbers[p.address] = p.number
		return known && before != p.number
	})
	for _, p := range all {
		i := slices.IndexFunc(groups, func(g []place) bool { return !several || g[0].number == p.number })
		if i < 0 {
			i, groups = len(groups), append(groups, nil)
		}
		groups[i] = append(groups[i], p)
	}
	return groups
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
// and number. Their names begin with that of meta.
func newSlices(meta metav1.ObjectMeta, ports []servedPort) (all []*discoveryv1.EndpointSlice) {
	type group struct {
		port   string
		number uint16
		is4    bool
	}
	begun := make(map[group]*discoveryv1.EndpointSlice) // the last of each group
	counts := make(map[group]int)
	for _, p := range ports {
		for _, at := range p.places {
			g := group{p.name, at.number, at.address.Is4()}
			slice := begun[g]
			if slice == nil || len(slice.Endpoints) == mostEndpoints {
				counts[g]++
				slice = newSlice(meta, p, at, counts[g])
				begun[g], all = slice, append(all, slice)
			}
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{at.address.String()}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			})
		}
	}
	return all
}

// newSlice returns a slice without endpoints, the nth of its family, port and number.
func newSlice(meta metav1.ObjectMeta, p servedPort, at place, nth int) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		TypeMeta:   metav1.TypeMeta{APIVersion: discoveryv1.SchemeGroupVersion.String(), Kind: "EndpointSlice"},
		ObjectMeta: *meta.DeepCopy(), AddressType: discoveryv1.AddressTypeIPv6,
	}
	family := "v6"
	if at.address.Is4() {
		slice.AddressType, family = discoveryv1.AddressTypeIPv4, "v4"
	}
	slice.Name = fmt.Sprintf("%s-%s-%s-%d", meta.Name, family, p.name, at.number)
	if nth > 1 {
		slice.Name += fmt.Sprintf("-%d", nth)
	}
	slice.Ports = []discoveryv1.EndpointPort{{Name: &p.name, Protocol: &p.protocol, Port: new(int32(at.number))}}
	return slice
}

// labelValue returns a text as a label may have it.
func labelValue(text string) string {
	fit := func(r rune) rune {
		if r < 128 && validation.IsValidLabelValue("a"+string(r)+"a") == nil {
			return r
		}
		return '_'
	}
	text = strings.Map(fit, text)
	return strings.Trim(text[:min(len(text), validation.LabelValueMaxLength)], "-_.")
}

// metaOf returns the metadata of an object for a service of an owner.
func metaOf(namespace, name string, anchor metav1.OwnerReference, o *offer) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, OwnerReferences: []metav1.OwnerReference{anchor},
		Labels:      map[string]string{managedBy: manager, ownerKey: labelValue(o.owner.Name)},
		Annotations: map[string]string{ownerKey: o.owner.Name, serviceAnnotation: o.service.Name(), fqdnAnnotation: o.service.FQDN()},
	}
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

// serviceObjects returns the Service and the EndpointSlices of an offer, in the order in which they are
// written: clients see no endpoints of a Service that could be somebody else's.
func (t *Target) serviceObjects(meta metav1.ObjectMeta, ports []servedPort) (all []object) {
	all = append(all, newService(meta, ports, t.Headless))
	ofSlice := meta.DeepCopy()
	ofSlice.Labels[discoveryv1.LabelServiceName], ofSlice.Labels[discoveryv1.LabelManagedBy] = meta.Name, manager
	for _, slice := range newSlices(*ofSlice, ports) {
		all = append(all, slice)
	}
	return all
}

// contains reports whether a value of JSON has all of another one: a map each of its keys, and a
// list its entries in order.
func contains(whole, part any) bool {
	switch part := part.(type) {
	case map[string]any:
		of, ok := whole.(map[string]any)
		for key, value := range part {
			ok = ok && contains(of[key], value)
		}
		return ok
	case []any:
		of, ok := whole.([]any)
		return ok && slices.EqualFunc(of, part, contains)
	}
	return whole == part
}

// overlay puts the values of JSON over others. Lists are replaced.
func overlay(under, over map[string]any) {
	for key, value := range over {
		below, ok := under[key].(map[string]any)
		if above, also := value.(map[string]any); ok && also {
			overlay(below, above)
		} else {
			under[key] = value
		}
	}
}

// update returns an object as it is there with what is wanted of it, or nil where it has that.
func update(there, wanted object) (object, error) {
	if next, known := replaceImport(there, wanted); known {
		return next, nil
	}
	is, err := runtime.DefaultUnstructuredConverter.ToUnstructured(there)
	want, wrong := runtime.DefaultUnstructuredConverter.ToUnstructured(wanted)
	if err = cmp.Or(err, wrong); err != nil {
		return nil, err
	}
	for _, key := range []string{"status", "kind", "apiVersion"} {
		delete(want, key) // which is not written with the rest, or never differs
	}
	if meta, ok := want["metadata"].(map[string]any); ok {
		delete(meta, "creationTimestamp")
	}
	if contains(is, want) {
		return nil, nil //nolint:nilnil // nothing to change
	}
	overlay(is, want)
	next := there.DeepCopyObject().(object)
	return next, runtime.DefaultUnstructuredConverter.FromUnstructured(is, next)
}
