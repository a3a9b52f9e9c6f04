// Package printable writes what peers have sent so that a terminal only shows it: plain text, in
// cells of tables and in lines of JSON.
//
// Only packages of this module import it: it is not a stable API.
package printable

import (
	"fmt"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// ServiceCells returns the columns of a service. What the peer sent is quoted unless it is
// plain ASCII: it cannot move the cursor, and every character takes one column.
func ServiceCells(s *federation.Service) (name, fqdn, instances, endpoints string) {
	const most = 4 // a service may have a thousand endpoints
	instances = JoinFew(s.Instances, most, ",", func(in federation.Instance) string {
		if in.Unnamed {
			return in.Protocol.String()
		}
		return QuoteText(in.ID) + "/" + in.Protocol.String()
	})
	return QuoteText(s.Name), strings.TrimSuffix(s.FQDN.String(), "."), instances, JoinFew(s.Endpoints, most, ",", federation.Endpoint.String)
}

// JoinFew joins what is shown of the first few entries of a list, and counts all of them where
// there are more.
func JoinFew[E any](list []E, most int, separator string, show func(E) string) string {
	var words []string
	for _, entry := range list[:min(len(list), most)] {
		words = append(words, show(entry))
	}
	if len(list) > most {
		words = append(words, fmt.Sprintf("... (%d)", len(list)))
	}
	return strings.Join(words, separator)
}

// QuoteText returns what a peer sent, quoted where it is not plain ASCII without spaces,
// commas and slashes.
func QuoteText(s string) string {
	if strings.ContainsAny(s, ",/") {
		return safetext.Quote(s)
	}
	return QuoteWord(s)
}

// QuoteWord returns a text, quoted where it is not one short word of plain ASCII.
func QuoteWord(s string) string {
	if quoted := safetext.Quote(s); quoted != `"`+s+`"` || s == "" || strings.Contains(s, " ") {
		return quoted
	}
	return s
}
