package federation

import (
	"errors"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

const (
	// maxNameLength bounds a domain name in presentation form, final dot
	// included: 255 octets on the wire (RFC 1035 section 2.3.4) are 254
	// characters of text when no label needs an escape.
	maxNameLength = 254

	// maxLabelLength is the limit of RFC 1035 section 2.3.4, in octets.
	maxLabelLength = 63
)

// The rules that a name can break. Every error of ParseFQDN, ParseOrigin,
// ParseLabel and FQDN.Rename is one of them, and ParseAddress wraps them. They do not
// repeat the name, which the caller knows and is to quote.
var (
	errNameEmpty      = errors.New("name is empty")
	errNameTooLong    = errors.New("name is longer than 254 characters with its final dot")
	errLabelEmpty     = errors.New("name has an empty label")
	errLabelTooLong   = errors.New("label is longer than 63 octets")
	errLabelCharacter = errors.New("label has a character other than a-z, 0-9, '-' and '_'")
	errLabelHyphen    = errors.New("label begins or ends with '-'")
	errLabelReserved  = errors.New("label begins with '_', which is kept for service labels")
	errNameNumeric    = errors.New("last label is a number, so the name looks like an address")
	errNameIDNA       = errors.New("name is not a valid internationalized name")
	errLabelAddr      = errors.New("name ends in the label 'addr', which is kept for endpoint addresses")
)

// FQDN is an absolute domain name: in lower case, with A-labels only, and with its
// final dot. [ParseFQDN] and [ParseOrigin] make one. The zero value is no name.
// Names are equal (==) when DNS takes them for the same.
type FQDN struct{ name string }

// ParseFQDN returns the name of a service or a host that s spells, with or without
// its final dot, in upper or lower case, in A-labels or U-labels.
//
// Every label is 1 to 63 of a-z, 0-9, '-' and '_', does not begin with '_' and
// neither begins nor ends with '-' (RFC 1123 section 2.1, RFC 8552). The last
// one is no number, neither in digits nor as 0x with hexadecimal digits or none, because
// browsers and resolvers would take the name for an address. The whole is at most 254
// characters with its final dot (RFC 1035 section 2.3.4). The root is not a name of this kind. The error is a sentence
// about the rule that s breaks, without s itself: whoever shows it knows s, and quotes it.
func ParseFQDN(s string) (FQDN, error) {
	name, err := normalizeName(s)
	if err != nil {
		return FQDN{}, err
	}
	if err := checkHostname(name); err != nil {
		return FQDN{}, err
	}
	return absoluteName(s, name)
}

// absoluteName returns the absolute name that s was normalized to. If s is that name already, the
// result is s without a copy, because packed services are read in this way.
func absoluteName(s, name string) (FQDN, error) {
	if n := len(name); len(s) == n+1 && s[n] == '.' && s[:n] == name && len(s) <= maxNameLength {
		return FQDN{s}, nil
	}
	return withFinalDot(name)
}

// checkHostname checks the labels of a name without its final dot by the rules of
// ParseFQDN.
func checkHostname(name string) error {
	for label := range strings.SplitSeq(name, ".") {
		if err := checkLabel(label); err != nil {
			return err
		}
	}
	if isNumber(name[strings.LastIndexByte(name, '.')+1:]) {
		return errNameNumeric
	}
	return nil
}

// ParseOrigin returns the origin of a zone. It accepts what [ParseFQDN] accepts,
// and also the root ("."), labels that begin with '_', and a last label of digits,
// since zones may be delegated at such names. Its errors are those of ParseFQDN.
func ParseOrigin(s string) (FQDN, error) {
	if s == "." {
		return FQDN{"."}, nil
	}
	name, err := normalizeName(s)
	if err != nil {
		return FQDN{}, err
	}
	for label := range strings.SplitSeq(name, ".") {
		if err := checkLabel(strings.TrimPrefix(label, "_")); err != nil {
			return FQDN{}, err
		}
		if len(label) > maxLabelLength {
			return FQDN{}, errLabelTooLong
		}
	}
	return absoluteName(s, name)
}

// String returns the name in lower case with its final dot, or "" for the zero
// value.
func (n FQDN) String() string { return n.name }

// IsZero reports whether n is the zero value.
func (n FQDN) IsZero() bool { return n.name == "" }

// Within reports whether n is origin or a name below it. Nothing is within the
// zero value, and the zero value is within nothing.
func (n FQDN) Within(origin FQDN) bool {
	if origin.name == "." {
		return n.name != ""
	}
	rest, ok := strings.CutSuffix(n.name, origin.name)
	return ok && origin.name != "" && (rest == "" || rest[len(rest)-1] == '.')
}

// Rename returns n with its suffix from replaced by to, or n itself when it is not
// within from. It fails when the new name has more than 254 characters with its final dot.
func (n FQDN) Rename(from, to FQDN) (FQDN, error) {
	if !n.Within(from) {
		return n, nil
	}
	prefix := strings.TrimSuffix(strings.TrimSuffix(n.name, from.name), ".")
	switch {
	case prefix == "":
		return to, nil
	case to.name == ".":
		return withFinalDot(prefix)
	}
	return withFinalDot(prefix + "." + strings.TrimSuffix(to.name, "."))
}

// Label is the name of an instance below the fqdn of its service: one label,
// or several with dots between them, in lower case without a final dot. The
// zero value is no name.
type Label struct{ name string }

// ParseLabel returns the name that an instance ID stands for. An ID with dots is
// several labels. It fails for an ID that is not a DNS name, or whose last label
// of several is 'addr'. Such an ID is not changed to fit, because clients build the
// name from the ID themselves. Its errors are those of ParseFQDN.
func ParseLabel(id string) (Label, error) {
	name, err := normalizeName(id)
	if err != nil {
		return Label{}, err
	}
	for label := range strings.SplitSeq(name, ".") {
		if err := checkLabel(label); err != nil {
			return Label{}, err
		}
	}
	// The SRV records of the service point to <ip>.addr.<fqdn>.
	if strings.HasSuffix(name, ".addr") {
		return Label{}, errLabelAddr
	}
	return Label{name}, nil
}

// String returns the labels in lower case, or "" for the zero value.
func (l Label) String() string { return l.name }

// normalizeName strips one final dot, folds case and turns U-labels into A-labels.
func normalizeName(s string) (string, error) {
	s = strings.TrimSuffix(s, ".")
	if s == "" {
		return "", errNameEmpty
	}
	if len(s) > 4*maxNameLength {
		return "", errNameTooLong // before the work of IDNA, which is linear in it
	}
	if isASCII(s) {
		if s = strings.ToLower(s); !strings.Contains(s, "xn--") {
			return s, nil
		}
	}
	if !utf8.ValidString(s) {
		return "", errNameIDNA // package idna takes it for a name with U+FFFD
	}
	// RFC 5891 section 5. STD3 rules are off because they refuse '_';
	// checkLabel applies ours afterwards.
	ascii, err := idna.New(idna.MapForLookup(), idna.StrictDomainName(false)).ToASCII(s)
	if err != nil {
		return "", errNameIDNA // err shows the label as the peer sent it
	}
	ascii = strings.TrimSuffix(ascii, ".") // an ideographic full stop at the end maps to one more dot
	if ascii == "" {
		return "", errNameEmpty
	}
	return ascii, nil
}

func withFinalDot(name string) (FQDN, error) {
	if len(name)+1 > maxNameLength {
		return FQDN{}, errNameTooLong
	}
	return FQDN{name + "."}, nil
}

func checkLabel(label string) error {
	switch {
	case label == "":
		return errLabelEmpty
	case len(label) > maxLabelLength:
		return errLabelTooLong
	case label[0] == '_':
		return errLabelReserved
	case label[0] == '-' || label[len(label)-1] == '-':
		return errLabelHyphen
	}
	for i := range len(label) {
		switch c := label[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_':
		default:
			return errLabelCharacter
		}
	}
	return nil
}

// isNumber reports whether a last label in lower case makes a name an address: browsers
// and inet_aton, which the resolver of libc asks first, take 0xa9fea9fe for 169.254.169.254
// (URL Standard section 3.5, ends-in-a-number checker).
func isNumber(label string) bool {
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}
