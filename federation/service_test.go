package federation_test

import (
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// fullService returns a valid service with every field set, a new one each time.
// It fails the test where a name in it does not parse.
func fullService(tb testing.TB) *federation.Service {
	tb.Helper()
	return &federation.Service{
		Name:        "shop",
		FQDN:        fqdn(tb, "shop.fed.example"),
		Description: "The shop",
		Tags:        []string{"production"},
		Labels:      []federation.Pair{{Key: "team", Value: "sales"}},
		SANs:        []string{"spiffe://owner.example/shop"},
		Endpoints: []federation.Endpoint{
			{Address: address(tb, "192.0.2.1"), Port: 443, Labels: []string{"eu"}, Description: "Frankfurt"},
		},
		Instances: []federation.Instance{{
			ID: "v1", Protocol: federation.HTTPS, Metadata: []federation.Pair{{Key: "version", Value: "1.0"}},
			EndpointSelector: []string{"eu"}, Description: "stable",
		}},
	}
}

func fqdn(tb testing.TB, s string) federation.FQDN {
	tb.Helper()
	return must.Get(federation.ParseFQDN(s))(tb)
}

func address(tb testing.TB, s string) federation.Address {
	tb.Helper()
	return must.Get(federation.ParseAddress(s))(tb)
}

// TestEqualComparesEveryField changes every field of a service and of its parts,
// one at a time. It finds the fields by reflection, so a new one is covered, or
// fails the test because nothing sets it.
func TestEqualComparesEveryField(t *testing.T) {
	original := fullService(t)
	if same := original; !original.Equal(same) || !original.Equal(fullService(t)) {
		t.Fatal("a service is not equal to its copy")
	}
	changed := fullService(t)
	paths := 0
	change(t, reflect.ValueOf(changed).Elem(), "Service", func(path string) {
		paths++
		if original.Equal(changed) || changed.Equal(original) {
			t.Errorf("services that differ in %s are equal", path)
		}
	})
	if !original.Equal(changed) {
		t.Fatal("a change was not undone")
	}
	for _, part := range []any{federation.Service{}, federation.Endpoint{}, federation.Instance{}, federation.Pair{}} {
		if paths < reflect.TypeOf(part).NumField() {
			t.Errorf("%d changes were tried", paths)
		}
	}
}

// change calls try after each of the changes that it makes in v, and undoes them.
func change(t *testing.T, v reflect.Value, path string, try func(path string)) {
	t.Helper()
	set := func(path string, to any) {
		old := reflect.New(v.Type()).Elem()
		old.Set(v)
		v.Set(reflect.ValueOf(to).Convert(v.Type()))
		try(path)
		v.Set(old)
	}
	switch value := v.Interface().(type) {
	case federation.FQDN:
		set(path, fqdn(t, "other.fed.example"))
		return
	case federation.Address:
		set(path, address(t, "192.0.2.2"))
		set(path+" (a host)", address(t, "other.example"))
		return
	case string:
		set(path, value+"x")
		return
	case bool:
		set(path, !value)
		return
	}
	switch v.Kind() {
	case reflect.Uint8, reflect.Uint16:
		set(path, v.Uint()+1)
	case reflect.Slice:
		if v.Len() == 0 {
			t.Fatalf("%s is empty; fill it in fullService", path)
		}
		set(path+" (one entry less)", v.Slice(0, v.Len()-1).Interface())
		set(path+" (one entry more)", reflect.Append(v.Slice3(0, v.Len(), v.Len()), v.Index(0)).Interface())
		for i := range v.Len() {
			change(t, v.Index(i), path+"["+strconv.Itoa(i)+"]", try)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			change(t, v.Field(i), path+"."+v.Type().Field(i).Name, try)
		}
	default:
		t.Fatalf("%s has the type %v, for which this test has no other value", path, v.Type())
	}
}

func TestEqualCountsTheOrder(t *testing.T) {
	a, b := fullService(t), fullService(t)
	a.Tags, b.Tags = []string{"x", "y"}, []string{"y", "x"}
	if a.Equal(b) {
		t.Error("tags in another order are equal")
	}
}

func TestPairs(t *testing.T) {
	for _, tt := range []struct {
		m    map[string]string
		want []federation.Pair
	}{
		{nil, nil},
		{map[string]string{}, nil},
		{
			map[string]string{"b": "1", "a": "2", "B": "3", "": "4"},
			[]federation.Pair{{Key: "", Value: "4"}, {Key: "B", Value: "3"}, {Key: "a", Value: "2"}, {Key: "b", Value: "1"}},
		},
	} {
		if diff := cmp.Diff(tt.want, federation.Pairs(tt.m)); diff != "" {
			t.Errorf("of %v (-want +got):\n%s", tt.m, diff)
		}
	}
}

func TestSelects(t *testing.T) {
	for _, tt := range []struct {
		selector, labels []string
		want             bool
	}{
		{nil, nil, false},
		{[]string{"eu"}, nil, false},
		{nil, []string{"eu"}, false},
		{[]string{"eu"}, []string{"eu"}, true},
		{[]string{"us", "eu"}, []string{"blue", "eu"}, true},
		{[]string{"us"}, []string{"eu"}, false},
		{[]string{"EU"}, []string{"eu"}, false},
	} {
		if got := (federation.Instance{EndpointSelector: tt.selector}).Selects(tt.labels); got != tt.want {
			t.Errorf("the selector %q selects %q: %v, expected %v", tt.selector, tt.labels, got, tt.want)
		}
	}
}

func TestParseProtocol(t *testing.T) {
	all := map[string]federation.Protocol{
		"HTTP": federation.HTTP, "HTTPS": federation.HTTPS, "GRPC": federation.GRPC, "HTTP2": federation.HTTP2,
		"MONGO": federation.MONGO, "TCP": federation.TCP, "TLS": federation.TLS, "MTLS": federation.MTLS,
	}
	for name, want := range all {
		for _, s := range []string{name, strings.ToLower(name), name[:1] + strings.ToLower(name[1:])} {
			if got, ok := federation.ParseProtocol(s); got != want || !ok {
				t.Errorf("%q is %v, %v", s, got, ok)
			}
		}
		if want.String() != name {
			t.Errorf("%s is written %q", name, want)
		}
	}
	for _, s := range []string{"", " ", "UDP", "HTTP ", "HTTP/2", "HTTPS2", "\xff"} {
		if got, ok := federation.ParseProtocol(s); got != 0 || ok {
			t.Errorf("%q is %v, %v", s, got, ok)
		}
	}
	for _, p := range []federation.Protocol{0, federation.MTLS + 1, 255} {
		if p.String() != "" {
			t.Errorf("%d is written %q", p, p.String())
		}
	}
	if len(all) != int(federation.MTLS) {
		t.Errorf("%d protocols are tested of %d", len(all), federation.MTLS)
	}
}

func TestEndpointString(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.1": "192.0.2.1:443", "2001:db8::1": "[2001:db8::1]:443", "host.example": "host.example:443",
	} {
		if got := (federation.Endpoint{Address: must.Get(federation.ParseAddress(address))(t), Port: 443}).String(); got != want {
			t.Errorf("an endpoint at %s is %s, expected %s", address, got, want)
		}
	}
}
