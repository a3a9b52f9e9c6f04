// Package printable writes what peers have sent so that a terminal only shows it: plain text, in
// cells of tables and in lines of JSON.
//
// Only packages of this module import it: it is not a stable API.
package printable

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// Cells returns the columns of a service. What the peer sent is quoted unless it is
// plain ASCII: it cannot move the cursor, and every character takes one column.
func Cells(s *federation.Service) (name, fqdn, instances, endpoints string) {
	ids := make([]string, min(len(s.Instances), most))
	for i := range ids {
		in := &s.Instances[i]
		ids[i] = in.Protocol.String()
		if !in.Unnamed {
			ids[i] = Text(in.ID) + "/" + ids[i]
		}
	}
	places := make([]string, min(len(s.Endpoints), most))
	for i := range places {
		e := s.Endpoints[i]
		places[i] = net.JoinHostPort(strings.TrimSuffix(e.Address.String(), "."), strconv.Itoa(int(e.Port)))
	}
	return Text(s.Name), strings.TrimSuffix(s.FQDN.String(), "."), few(ids, len(s.Instances)), few(places, len(s.Endpoints))
}

// most is how many words a cell shows: a service may have a thousand endpoints.
const most = 4

// few joins the words, which are the first of a number of them.
func few(words []string, of int) string {
	text := strings.Join(words, ",")
	if of > len(words) {
		text += fmt.Sprintf(",... (%d)", of)
	}
	return text
}

// Text returns what a peer sent, quoted where it is not plain ASCII without spaces,
// commas and slashes.
func Text(s string) string {
	quoted := federation.Quote(s)
	if quoted == `"`+s+`"` && !strings.ContainsAny(s, " ,/") {
		return s
	}
	return quoted
}

// Count returns a number with its noun, in the plural unless n is 1.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
