package export

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/mcs"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

const (
	maxMessage  = 1024 // bytes of a finding's message
	maxWarnings = 16   // of one Service
)

// translation is the work of one call of Translate: each of its steps fills in a part of verdict
// and service.
type translation struct {
	Rules
	Input
	of      *metav1.ObjectMeta // of the ServiceExport, or of the Service where its label exports it
	verdict Verdict
	notes   map[string]foundAnnotation // annotations by their names without our prefix
	ports   []publishedPort
	found   endpointSet
	service federation.Service // as far as it is known
}

// Translate returns the verdict on an exported Service.
func (r Rules) Translate(in Input) Verdict {
	t := &translation{Rules: r, Input: in}
	v := &t.verdict
	if in.Export == nil {
		t.of, v.Claim = &in.Service.ObjectMeta, Claim{Labelled: true, Since: in.Labelled}
	} else {
		t.of, v.Claim = &in.Export.ObjectMeta, Claim{Since: in.Export.CreationTimestamp.Time}
	}
	v.Service = &t.service
	for _, step := range []func() *Finding{t.checkExists, t.findAnnotations, t.findFQDN, t.findSANs, t.findPorts, t.addMetadata, t.findEndpoints, t.composeService} {
		if v.Refusal = step(); v.Refusal != nil {
			v.Service, v.Kind = nil, ""
			break
		}
	}
	slices.SortFunc(v.Warnings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Message, b.Message))
	})
	v.Warnings = slices.Compact(v.Warnings)
	if len(v.Warnings) > maxWarnings {
		v.Warnings = slices.Clip(v.Warnings[:maxWarnings])
	}
	return *v
}

func (t *translation) checkExists() *Finding {
	switch s := t.Service; {
	case t.Export != nil && t.Export.DeletionTimestamp != nil:
		return refusef(BeingDeleted, "the ServiceExport %s is being deleted", t.serviceName())
	case s == nil:
		return refusef(NoService, "there is no Service %s", t.serviceName())
	case s.DeletionTimestamp != nil:
		return refusef(NoService, "the Service %s is being deleted", t.serviceName())
	case s.Spec.Type == corev1.ServiceTypeExternalName:
		return refusef(InvalidServiceType, "the Service %s is of type ExternalName: it has no endpoints of its own", t.serviceName())
	}
	return nil
}

// findFQDN sets the name under which the Service is published.
func (t *translation) findFQDN() *Finding {
	own := t.of.Namespace + "." + t.Zone.String()
	text, place := t.of.Name+"."+own, "the Service "+t.serviceName()
	if note, ok := t.notes[fqdnAnnotation]; ok {
		text, place = note.value, note.place
	}
	name, err := federation.ParseFQDN(text)
	belongs := t.belongsToNamespace(name)
	switch {
	case err != nil:
		return refusef(InvalidName, "%s cannot have the name %s: %v", place, safetext.Quote(text), err)
	case !name.Within(t.Zone):
		return refusef(NameOutsideZone, "%s has the name %s, which is outside the zone %s", place, safetext.Quote(name.String()), t.Zone)
	case name == t.Zone:
		return refusef(NameNotAllowed, "%s has the name %s, which is that of the zone and can be nobody's", place, safetext.Quote(name.String()))
	case !belongs && !t.isGranted(name):
		return refusef(NameNotAllowed, "%s has the name %s, which the configuration of the owner does not give to the namespace %s: without that its names end in .%s", place, safetext.Quote(name.String()), t.of.Namespace, own)
	}
	t.service.FQDN, t.verdict.Claim.Granted = name, !belongs
	return nil
}

// belongsToNamespace reports whether the name is below the name of the namespace.
func (t *translation) belongsToNamespace(name federation.FQDN) bool {
	return strings.HasSuffix(name.String(), "."+t.of.Namespace+"."+t.Zone.String())
}

// isGranted reports whether the configuration gives the name to the namespace. A pattern of the
// whole zone gives no name: each name that is two labels or more below the zone belongs to the
// namespace of its last label there, and a name of one label is above all of these.
func (t *translation) isGranted(name federation.FQDN) bool {
	zone, _ := pattern.ParseName("*." + t.Zone.String()) // fails where no name fits below it
	return slices.ContainsFunc(t.Grants, func(g Grant) bool {
		return (slices.Contains(g.Namespaces, t.of.Namespace) || slices.Contains(g.Namespaces, AnyNamespace)) &&
			slices.ContainsFunc(g.Names, func(p pattern.Name) bool { return p.Matches(name) && !p.Covers(zone) })
	})
}

// instanceID returns the ID of the instance of a port or a pod: its label, which is a name below
// the fqdn. Where that name belongs to another namespace, the ID is no DNS name.
func (t *translation) instanceID(label string) string {
	name, err := federation.ParseFQDN(label + "." + t.service.FQDN.String())
	if err == nil && !t.belongsToNamespace(name) && !t.isGranted(name) {
		return t.serviceName() + "/" + label
	}
	return label
}

// composeService makes the service of what was found, or returns why it cannot be published. Names
// and addresses were checked before.
func (t *translation) composeService() *Finding {
	t.cutEndpoints()
	s := &t.service
	s.Name, s.Labels = t.Cluster+"/"+t.serviceName(), t.serviceLabels()
	s.Endpoints, s.Instances = t.found.sortedEndpoints(), t.composeInstances()
	broken, ok := errors.AsType[*federation.InvalidError](s.Validate())
	switch {
	case !ok:
		return nil
	case broken.Reason == federation.ReasonLimit:
		return refusef(TooLarge, "%v", broken)
	}
	return refusef(InvalidName, "%v", broken)
}

// serviceLabels returns the labels and annotations of the Service that are published, and the label
// of a ServiceExport.
func (t *translation) serviceLabels() []federation.Pair {
	found := make(map[string]string, len(t.Publish.Labels)+len(t.Publish.Annotations))
	pick := func(from map[string]string, keys []string) {
		for _, key := range keys {
			if value, ok := from[key]; ok {
				found[key] = value
			}
		}
	}
	pick(t.Service.Labels, t.Publish.Labels)
	pick(t.Service.Annotations, t.Publish.Annotations)
	delete(found, mcs.Label) // which only a ServiceExport gives
	if t.Export != nil {
		t.addExportLabel(found)
	}
	return federation.Pairs(found)
}

// composeInstances returns an instance for each port, in the order of the Service, and then for
// each pod with a hostname, in the order of hostnames.
func (t *translation) composeInstances() []federation.Instance {
	labels := t.found.allLabels()
	var instances []federation.Instance
	protocol := federation.Protocol(0) // of a pod
	for _, p := range t.ports {
		if !labels.Has(p.id) {
			t.warnf(UnreachablePort, "port %s of the Service %s has no endpoint among those of %s, and is left out", p.id, t.serviceName(), t.verdict.Kind)
			continue
		}
		labels.Delete(p.id)
		instances = append(instances, federation.Instance{ID: t.instanceID(p.id), Protocol: p.protocol, Metadata: p.metadata, EndpointSelector: []string{p.id}})
		if protocol == 0 {
			protocol = p.protocol
		} else if protocol != p.protocol {
			protocol = federation.TCP // which is true of all
		}
	}
	for _, hostname := range sets.List(labels) {
		instances = append(instances, federation.Instance{ID: t.instanceID(hostname), Protocol: protocol, EndpointSelector: []string{hostname}})
	}
	return instances
}

// serviceName returns the namespace and the name of the Service.
func (t *translation) serviceName() string { return t.of.Namespace + "/" + t.of.Name }

func (t *translation) warnf(rule Rule, format string, args ...any) {
	t.verdict.Warnings = append(t.verdict.Warnings, *refusef(rule, format, args...))
}

func refusef(rule Rule, format string, args ...any) *Finding {
	return &Finding{Rule: rule, Message: boundMessage(fmt.Sprintf(format, args...))}
}

// boundMessage returns s, or its beginning where s is too long for a message, as valid UTF-8.
func boundMessage(s string) string {
	if len(s) > maxMessage {
		s = s[:maxMessage-len("...")] + "..."
	}
	return strings.ToValidUTF8(s, "")
}
