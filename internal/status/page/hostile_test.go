package page

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"golang.org/x/net/html"

	"github.com/hamlet-federation/coredns-federation/internal/status"
)

// shape returns the elements of a page with the names of their attributes, without the
// values and the text. It fails where a value or a text is more than that.
func shape(t *testing.T, page string) []string {
	t.Helper()
	var elements []string
	tokens := html.NewTokenizer(strings.NewReader(page))
	for {
		kind := tokens.Next()
		if kind == html.ErrorToken {
			return elements
		}
		token := tokens.Token()
		if kind == html.CommentToken {
			t.Errorf("a comment: %q", token.Data)
		}
		if i := strings.IndexFunc(token.Data, unsafe); i >= 0 {
			t.Errorf("a text has %+q", token.Data[i:min(len(token.Data), i+20)])
		}
		if kind == html.TextToken {
			continue
		}
		element := kind.String() + " " + token.Data
		for _, a := range token.Attr {
			element += " " + a.Key
			local := a.Val == "data:," || strings.HasPrefix(a.Val, "/") && !strings.HasPrefix(a.Val, "//") || strings.HasPrefix(a.Val, "?")
			manual := element == "StartTag a href" && strings.HasPrefix(a.Val, status.ManualBase)
			if slices.Contains([]string{"href", "action", "src"}, a.Key) && !local && !manual {
				t.Errorf("%s leads to %q", element, a.Val)
			}
			if strings.HasPrefix(a.Key, "on") || a.Key == "style" {
				t.Errorf("%s has %q", element, a.Key)
			}
		}
		elements = append(elements, element)
	}
}

// unsafe reports whether a text of a page must not have a character: one that is not
// shown, or that makes what follows it look like something else.
func unsafe(r rune) bool {
	return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
}

// fill sets everything in v: strings to text, and numbers to 7.
func fill(v reflect.Value, text string) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), text)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(noon))
			return
		}
		for _, field := range v.Fields() {
			fill(field, text)
		}
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() {
			quoted, err := json.Marshal(text)
			if err != nil {
				panic(err)
			}
			v.SetBytes(quoted)
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i), text)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for i := range 2 {
			value := reflect.New(v.Type().Elem()).Elem()
			fill(value, text)
			v.SetMapIndex(reflect.ValueOf(text+fmt.Sprint(i)), value)
		}
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Func:
	case reflect.Float64:
		v.SetFloat(7)
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(7)
	default:
		v.SetInt(7)
	}
}

// filled is a ReportSource whose every text is the same.
func filled(role status.ProcessRole, text string) *fixed {
	f := new(fixed)
	fill(reflect.ValueOf(&f.status).Elem(), text)
	fill(reflect.ValueOf(&f.why).Elem(), text)
	fill(reflect.ValueOf(&f.first).Elem(), text)
	f.status.Role, f.why.Role, f.status.Owners[1].ID = role, role, ownerID
	return f
}

// Text of a peer, whatever field it is in, is text on the page.
func TestHostileTexts(t *testing.T) {
	paths := []string{"/", "/?name=web.fed.example", "/services?of=" + ownerID}
	ask := func(role status.ProcessRole, text, path string) []string {
		w := httptest.NewRecorder()
		NewHandler(filled(role, text)).ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != http.StatusOK {
			t.Errorf("%s: the code is %d", path, w.Code)
		}
		return shape(t, w.Body.String())
	}
	for _, role := range []status.ProcessRole{status.Consumer, status.Owner, status.Importer} {
		for _, path := range paths {
			want := ask(role, "text", path)
			for _, text := range []string{
				hostile, `"><img src=x onerror=alert(1)>`, `' onmouseover='alert(1)`, "</style></title></textarea></pre></select><script>alert(1)</script>",
				"<!--", "javascript:alert(1)", "//evil.example/", "{{.}}{{define \"x\"}}", "&lt;b&gt;&#60;b&#62;", "\x00\xff\xfe\u2028\u2066\u200f\ufeff",
				"`${alert(1)}`", strings.Repeat("\U0001f600", 1000),
			} {
				if got := ask(role, text, path); !slices.Equal(got, want) {
					t.Errorf("%s of the %s with %.40q has other elements than with text:\n%q\n%q", path, role, text, got, want)
				}
			}
		}
	}
}

// FuzzRequest asks with any parameters.
func FuzzRequest(f *testing.F) {
	for _, name := range []string{"web.fed.example", "", "<b>", "\u202e", `a\.b`, "a..b", " ", "%zz", strings.Repeat("a.", 200)} {
		f.Add(uint8(0), name, "A", "1", false)
		f.Add(uint8(3), name, "<b>", "-1", true)
	}
	paths := []string{"/", "/services", "/v1/status", "/v1/why", "/v1/catalog"}
	sources := []*fixed{consumer(), owner(), importer()}
	f.Fuzz(func(t *testing.T, path uint8, text, qtype, limit string, ofOwner bool) {
		source := sources[0]
		if ofOwner {
			source = sources[1+len(text)%2]
		}
		query := url.Values{"name": {text}, "after": {text}, "of": {text}, "type": {qtype}, "limit": {limit}}
		if path >= 128 {
			query.Set("of", ownerID)
		}
		target := paths[int(path)%len(paths)] + "?" + query.Encode()
		w := httptest.NewRecorder()
		NewHandler(source).ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
		if w.Code != 200 && w.Code != 400 && w.Code != 404 {
			t.Errorf("%s: the code is %d", target, w.Code)
		}
		if w.Header().Get("Content-Type") == "text/html; charset=utf-8" {
			shape(t, w.Body.String())
			return
		}
		for decoder := json.NewDecoder(w.Body); decoder.More(); {
			if err := decoder.Decode(new(json.RawMessage)); err != nil {
				t.Errorf("%s: %v", target, err)
				break
			}
		}
	})
}
