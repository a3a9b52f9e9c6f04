package config

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/owner"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/setting"
	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes/export"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// valueFormats returns those of the values of a file, by the names that the tags have for them.
func valueFormats() map[string]problem.Format {
	return map[string]problem.Format{
		"address":    textFormat("is not host:port, such as localhost:9155, or :8008 for all addresses of this machine", isAddress),
		"agent":      textFormat("is not the URL of an agent of Consul, such as http://127.0.0.1:8500 or https://consul.example:8501", isMember),
		"bool":       oneOf("is neither true nor false", map[string]any{"true": true, "false": false}),
		"datacenter": textFormat("is no name of a datacenter such as dc1", func(text string) bool { return isWord(text) && !strings.Contains(text, "/") }),
		"duration":   parseDuration,
		"health":     oneOf("is neither passing nor warning", map[string]any{"passing": false, "warning": true}),
		"fqdn":       problem.FormatOf(parseHostName),
		"host":       problem.FormatOf(parseServerName),
		"id":         problem.FormatOf(federation.ParseID),
		"instances":  oneOf("must be tags; leave it out for one instance", map[string]any{"tags": true}),
		"ip or host": problem.FormatOf(setting.ParseHost),
		"key":        textFormat("is no key such as tier or acme.example/tier", func(text string) bool { return validation.IsQualifiedName(text) == nil }),
		"kind":       problem.FormatOf(parseKind),
		"label":      textFormat(noLabel, isLabel),
		"lifetime":   durationOr("forever", 0),
		"member":     textFormat("is not the URL of a member, such as https://etcd-0.example:2379", isMember),
		"namespace":  textFormat(noLabel, func(text string) bool { return text == "*" || isLabel(text) }),
		"number":     parseNumber,
		"none":       oneOf("must be none; leave it out for mutual TLS with the identity of the owner", map[string]any{"none": true}),
		"object":     textFormat("is no name of Services: it has {service} once, and beside that lower-case letters, digits and '-', with a letter before the first of them", isObjectName),
		"objects":    oneOf("is neither services nor mcs", map[string]any{"services": false, "mcs": true}),
		"owner":      problem.FormatOf(limits.ParseOwnerName),
		"patience":   durationOr("never", 0),
		"pattern":    problem.FormatOf(pattern.ParseName),
		"prefix":     textFormat(fmt.Sprintf("is not a prefix of keys, such as /federation/west: at most %d characters, the first of them '/' and the last another one", mostText), isPrefix),
		"range":      problem.FormatOf(setting.ParsePrefix),
		"registry":   textFormat("is not the address of a registry, such as tcp://registry.nsm-system:5002 or unix:///run/nsm/registry.sock", isRegistry),
		"replica":    problem.FormatOf(setting.ParseAddress),
		"retention":  durationOr("forever", catalog.Forever),
		"routable":   oneOf("must be routable; leave it out where consumers do not reach pods", map[string]any{"routable": true}),
		"selector":   problem.FormatOf(parseSelector),
		"service":    textFormat("is no service, nor a pattern such as shop-*", isPattern),
		"share":      problem.FormatOf(parseShare),
		"size":       parseSize,
		"socket":     textFormat("is not the address of a SPIFFE agent, such as unix:///run/spire/agent.sock or tcp://127.0.0.1:8081", isSocket),
		"tag":        textFormat(fmt.Sprintf("has more than %d characters", limits.TagBytes), func(text string) bool { return len(text) <= limits.TagBytes }),
		"trust":      textFormat("is not a trust domain such as partner.example", isTrustDomain),
		"version":    problem.FormatOf(wire.ParseVersion),
		"window":     problem.FormatOf(setting.WholeNumber(owner.MaxWindow)),
		"word":       textFormat(fmt.Sprintf("is not 1 to %d characters of ASCII without blanks", mostText), isWord),
		"zone":       problem.FormatOf(parseZone),
	}
}

// noLabel is what breaks isLabel.
const noLabel = "is not a name of up to 63 lower-case letters, digits and '-'"

// textFormat returns the format of a text that is taken as it stands in the file, if it is right.
func textFormat(rule string, right func(text string) bool) problem.Format {
	return func(text string, _ reflect.StructTag) (any, error) {
		if !right(text) {
			return nil, fmt.Errorf("%s %s", safetext.Quote(text), rule)
		}
		return text, nil
	}
}

// oneOf is the format of a text that stands for one of a few values.
func oneOf(rule string, words map[string]any) problem.Format {
	return func(text string, _ reflect.StructTag) (any, error) {
		if value, ok := words[text]; ok {
			return value, nil
		}
		return nil, fmt.Errorf("%s %s", safetext.Quote(text), rule)
	}
}

// durationOr returns the format of a duration, or of the word for endless, which stands for a value.
func durationOr(endless string, value time.Duration) problem.Format {
	return problem.FormatOf(func(text string) (time.Duration, error) { return setting.ParseDurationOr(text, endless, value) })
}

// parseShare takes a share in percent, or the word off, for which it returns 0 as for all.
func parseShare(text string) (int, error) {
	if text == "off" {
		return 0, nil
	}
	digits, percent := strings.CutSuffix(text, "%")
	share, err := strconv.Atoi(digits)
	if err != nil || !percent || share < 1 || share > 100 {
		return 0, fmt.Errorf("%s is neither a share of 1%% to 100%%, such as 50%%, nor off", safetext.Quote(text))
	}
	return share % 100, nil
}

// parseHostName takes a host name.
func parseHostName(text string) (federation.FQDN, error) {
	name, err := federation.ParseFQDN(text)
	if err != nil {
		return name, fmt.Errorf("%s is no host name: %w", safetext.Quote(text), err)
	}
	return name, nil
}

// parseServerName takes a host name, and returns it as names are compared.
func parseServerName(text string) (string, error) {
	name, err := parseHostName(text)
	return strings.TrimSuffix(name.String(), "."), err
}

// parseKind takes a kind of endpoints.
func parseKind(text string) (export.EndpointKind, error) {
	kind := export.EndpointKind(text)
	if !slices.Contains(export.EndpointKinds(), kind) {
		return "", fmt.Errorf("%s is not one of gateway, load-balancer, external-ips, node-ports, pods", safetext.Quote(text))
	}
	return kind, nil
}

func parseSelector(text string) (string, error) {
	selector, err := labels.Parse(text)
	switch {
	case err != nil:
		return "", fmt.Errorf("%s is no selector of labels: %w", safetext.Quote(text), err)
	case selector.Empty():
		return "", errors.New("is empty; leave it out for all")
	}
	return text, nil
}

// parseDuration takes a duration within the bounds of a tag. 0 may be without a unit.
func parseDuration(text string, tag reflect.StructTag) (any, error) {
	least, _ := time.ParseDuration(tag.Get("min")) // tests read every key
	most, _ := time.ParseDuration(tag.Get("max"))
	return setting.ParseDurationIn(text, least, most)
}

// parseNumber takes a whole number from 1 to the bound of a tag.
func parseNumber(text string, tag reflect.StructTag) (any, error) {
	most, _ := strconv.Atoi(tag.Get("max")) // tests read every key
	return setting.WholeNumber(most)(text)
}

// parseSize takes a size within the bounds of a tag, if it has any.
func parseSize(text string, tag reflect.StructTag) (any, error) {
	least, _ := setting.ParseSize(tag.Get("min"))
	most, err := setting.ParseSize(tag.Get("max"))
	if err != nil {
		most = math.MaxInt64
	}
	return setting.ParseSizeIn(text, least, most)
}

// isObjectName reports whether {service} in a text stands for what makes it the name of a Service.
func isObjectName(text string) bool {
	return strings.Contains(text, "{service}") && validation.IsDNS1035Label(strings.Replace(text, "{service}", "a", 1)) == nil
}

func isLabel(text string) bool { return validation.IsDNS1123Label(text) == nil }

func isAddress(text string) bool {
	_, port, err := net.SplitHostPort(text)
	_, failure := strconv.ParseUint(port, 10, 16)
	return err == nil && failure == nil
}

func isSocket(text string) bool { return text != "" && (mtls.SPIFFE{Socket: text}).Check() == nil }

func isTrustDomain(text string) bool {
	return (mtls.SPIFFE{TrustDomains: []string{text}}).Check() == nil
}

// isWord reports whether a text has no blanks.
func isWord(text string) bool {
	return text != "" && len(text) <= mostText && !strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' })
}

// isPrefix reports whether keys of etcd can begin with a text.
func isPrefix(text string) bool {
	return isWord(text) && text[0] == '/' && !strings.HasSuffix(text, "/")
}

// isMember reports whether a text is the URL of a member of an etcd cluster, or of an agent of Consul.
func isMember(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && isHostPort(u)
}

// isHostPort reports whether there is a host and a port in a URL behind its scheme, and
// nothing else.
func isHostPort(u *url.URL) bool {
	return isAddress(u.Host) && u.Hostname() != "" && u.Port() != "" && *u == url.URL{Scheme: u.Scheme, Host: u.Host}
}

// isRegistry reports whether a text is the address of an NSM registry.
func isRegistry(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "tcp" && isHostPort(u) || *u == url.URL{Scheme: "unix", Path: u.Path} && len(u.Path) > 1)
}
