package corefile

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestCheck checks Corefiles with several mistakes each, in the shape, in blocks and between
// server blocks.
func TestCheck(t *testing.T) {
	const required = "owner owner.example:8008\ntls cert.pem key.pem ca.pem\n"
	for _, tc := range []struct {
		name, corefile    string
		mistakes, warning []string
	}{
		{name: "nothing wrong", corefile: "fed.example:1053 {\nfederation {\n" + required + "ttl 30s\n}\ncache\n}\n"},
		{
			name: "all mistakes", corefile: "fed.example {\nfederation {\nowner a\ntls a b\nretension 5\nTTL 30\nbogus\nttl 2h\n}\nfederation {\n" + required + "settle 1x\n}\n}\n",
			mistakes: []string{
				`3: owner: "a" is not HOST:PORT or https://HOST:PORT`,
				`4: tls: takes CERT KEY CA, not 2 arguments`,
				`5: retension: is not a property of federation; did you mean retention?`,
				`6: TTL: is not a property of federation; did you mean ttl?`,
				`7: bogus: is not a property of federation`,
				`8: ttl: "2h" is not a whole number of seconds from 1 to 3600`,
				`13: settle: "1x" is not a duration of 100ms to 10m0s`,
			},
		},
		{
			name: "outside", corefile: "a.example b.example {\nfederation c.a.example c.example example {\n" + required + "}\n}\n",
			warning: []string{
				"2: zones: c.example. is not within its server block, a.example. b.example.; queries for names outside of that do not arrive here",
				"2: zones: example. is not within its server block, a.example. b.example.; queries for names outside of that do not arrive here",
			},
		},
		{
			name: "two roots, of which the last counts", corefile: "fed.example {\nroot /a\nroot /b\nfederation {\nowner owner.example:8008\ntls cert.pem /b/key.pem ca.pem\npersist key.pem\n}\n}\n",
			mistakes: []string{`4: persist: "/b/key.pem" is a file of tls and would be overwritten`},
		},
		{name: "no block", corefile: ". {\nwhoami\n}\n", warning: []string{"0: there is no federation block"}},
		{
			name: "server blocks", corefile: "fed.example {\nfederation {\n" + required + "status localhost:1\n}\n}\nfed.example:53 b.example {\n" +
				"federation {\n" + required + "status localhost:2\n}\n}\nfed.example {\nbind 127.0.0.1\n}\n",
			mistakes: []string{
				"9: the server block for dns://fed.example.:53 is there twice",
				"9: status: localhost:2 is not localhost:1, and a process has one status, in the block at Corefile:2",
			},
		},
		{
			name: "shared names", corefile: "a.example b.example {\nfederation {\n" + required + "share *\n}\nfederation a.example {\nowner b:1\ntls a b c\nmin 2\nshare web.a.example\n}\n" +
				"federation b.example {\nowner c:1\ntls a b c\nshare web.b.example\nshare *.c.b.example\nmin 1\n}\n}\n",
			mistakes: []string{
				"10: min: is 2 here and 1 by default at Corefile:5, in blocks that share web.a.example",
			},
		},
		{
			name: "shared with nobody", corefile: "a.example b.example {\nfederation a.example {\n" + required + "share web.a.example *.x.a.example\n}\nfederation a.example {\nowner b:1\ntls a b c\nshare *.x.a.example\nshare api.a.example\n}\n" +
				"federation b.example {\nowner c:1\ntls a b c\nshare *\n}\n}\na.example:54 {\nfederation {\n" + required + "share web.a.example\n}\n}\n",
			warning: []string{
				"5: share: no other block with the same zone shares web.a.example, so nothing is shared; it takes both sides",
				"10: share: no other block with the same zone shares api.a.example, so nothing is shared; it takes both sides",
				"16: share: no other block with the same zone shares *, so nothing is shared; it takes both sides",
				"23: share: no other block with the same zone shares web.a.example, so nothing is shared; it takes both sides",
			},
		},
		{name: "an unclosed block", corefile: "fed.example {\nfederation {\n", mistakes: []string{"2: Unexpected EOF"}},
		{name: "a brace too many", corefile: "fed.example {\nfederation {\n" + required + "}\n}\n}\n", mistakes: []string{`0: unexpected "}" between server blocks`}},
		{name: "nested", corefile: "fed.example {\nfederation {\n" + required + "ttl {\n5\n}\n}\n}\n", mistakes: []string{"5: ttl: takes no block in braces"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			mistakes, warnings := Check("Corefile", strings.NewReader(tc.corefile), nil)
			if diff := cmp.Diff([][]string{tc.mistakes, tc.warning}, [][]string{placedIn(mistakes), placedIn(warnings)}); diff != "" {
				t.Errorf("mistakes and warnings (-want +got):\n%s", diff)
			}
		})
	}
}

func placedIn(found []*MistakeError) []string {
	var texts []string
	for _, m := range found {
		texts = append(texts, strconv.Itoa(m.Line)+": "+m.Text)
	}
	return texts
}

// TestCheckImport finds a mistake in a file that the Corefile imports.
func TestCheckImport(t *testing.T) {
	dir := t.TempDir()
	imported := filepath.Join(dir, "blocks.conf")
	must.Do(t, os.WriteFile(imported, []byte("federation {\nowner a:1\n}\n"), 0o600))
	mistakes, _ := Check(filepath.Join(dir, "Corefile"), strings.NewReader("fed.example {\nimport blocks.conf\n}\n"), nil)
	if len(mistakes) != 1 || mistakes[0].File != imported || mistakes[0].Line != 1 || !strings.HasPrefix(mistakes[0].Text, "tls: is missing") {
		t.Errorf("mistakes %v, expected one in %s", mistakes, imported)
	}
	mistakes, _ = Check(filepath.Join(dir, "Corefile"), strings.NewReader("fed.example {\nimport none.conf\n}\n"), nil)
	if len(mistakes) != 1 || mistakes[0].Line != 2 {
		t.Errorf("mistakes %v, expected that there is no such file, on line 2", mistakes)
	}
}

// TestDidYouMean compares words with the properties.
func TestDidYouMean(t *testing.T) {
	for word, want := range map[string]string{
		"ttl": "ttl", "tttl": "ttl", "tsl": "tls", "negativ_ttl": "negative_ttl", "owner-id": "owner_id", "import_name": "import_names",
		"fall_through": "fallthrough", "max_catalogue": "max_catalog", "x": "", "": "", "kubernetes": "",
	} {
		if want != "" {
			want = "; did you mean " + want + "?"
		}
		if got := didYouMean(word); got != want {
			t.Errorf("didYouMean(%q) = %q, want %q", word, got, want)
		}
	}
}
