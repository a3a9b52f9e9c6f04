package catalogentry

import (
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/source/file/internal/simpleyaml"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
)

// Usual returns the service that a text spells, as an [Entry] of the same text would
// and in a tenth of the time. It returns nil if the text is not in the form that
// package simpleyaml reads, or anything about the service is wrong or doubtful: who
// wants to know what that is asks the entry.
func Usual(r simpleyaml.Reader, policy wire.Policy) *federation.Service {
	u := usual{r}
	message := u.service()
	if message == nil || !u.End() {
		return nil
	}
	service, err := wire.DecodeService(message, policy)
	if err != nil {
		return nil
	}
	var doubts problem.List // without room: it counts them
	new(Entry).Doubts(service, &doubts)
	if doubts.More > 0 {
		return nil
	}
	return service
}

// usual reads the parts of a service. A field that is new in the message is one that
// it cannot read, until it is added here.
type usual struct{ simpleyaml.Reader }

func (u *usual) service() *typespb.FederatedService {
	m := new(typespb.FederatedService)
	var seen keys
	ok := u.Mapping(func(key string) bool {
		switch key {
		case "name":
			return seen.add(1) && u.text(&m.Name)
		case "description":
			return seen.add(2) && u.text(&m.Description)
		case "tags":
			return seen.add(3) && u.texts(&m.Tags)
		case "labels":
			return seen.add(4) && u.pairs(&m.Labels)
		case "fqdn":
			return seen.add(5) && u.text(&m.Fqdn)
		case "endpoints":
			return seen.add(6) && u.List(func() bool {
				e := new(typespb.FederatedService_Endpoint)
				m.Endpoints = append(m.Endpoints, e)
				return u.endpoint(e)
			})
		case "sans":
			return seen.add(7) && u.texts(&m.Sans)
		case "instances":
			return seen.add(8) && u.List(func() bool {
				in := new(typespb.FederatedService_Instance)
				m.Instances = append(m.Instances, in)
				return u.instance(in)
			})
		}
		return false
	})
	if !ok {
		return nil
	}
	return m
}

func (u *usual) endpoint(e *typespb.FederatedService_Endpoint) bool {
	var seen keys
	return u.Mapping(func(key string) bool {
		switch key {
		case "address":
			return seen.add(1) && u.text(&e.Address)
		case "port":
			port, ok := u.Number()
			e.Port = port
			return ok && seen.add(2)
		case "labels":
			return seen.add(3) && u.texts(&e.Labels)
		case "description":
			return seen.add(4) && u.text(&e.Description)
		}
		return false
	})
}

func (u *usual) instance(in *typespb.FederatedService_Instance) bool {
	var seen keys
	return u.Mapping(func(key string) bool {
		switch key {
		case "id":
			return seen.add(1) && u.text(&in.Id)
		case "protocol":
			return seen.add(2) && u.text(&in.Protocol)
		case "metadata":
			return seen.add(3) && u.pairs(&in.Metadata)
		case "endpointSelector", "endpoint_selector":
			return seen.add(4) && u.texts(&in.EndpointSelector)
		case "description":
			return seen.add(5) && u.text(&in.Description)
		}
		return false
	})
}

// Texts are copied, as package wire keeps some for other services, and each is part of
// the text of the whole service.

func (u *usual) text(target *string) bool {
	text, ok := u.Text()
	*target = strings.Clone(text)
	return ok
}

func (u *usual) texts(target *[]string) bool {
	return u.List(func() bool {
		text, ok := u.Text()
		*target = append(*target, strings.Clone(text))
		return ok
	})
}

func (u *usual) pairs(target *map[string]string) bool {
	*target = make(map[string]string)
	return u.Mapping(func(key string) bool {
		text, ok := u.Text()
		_, twice := (*target)[key]
		(*target)[strings.Clone(key)] = strings.Clone(text)
		return ok && !twice
	})
}

// keys are the keys of a mapping that have been there.
type keys uint16

// add reports whether a key was not there yet.
func (k *keys) add(key int) bool {
	before := *k
	*k |= 1 << key
	return *k != before
}
