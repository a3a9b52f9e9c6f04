// Package receipt is what a consumer says of how long something may be answered that an owner has
// withdrawn: in the header of its stream, and in reports on it.
//
// Only packages of this module import it: it is not a stable API.
package receipt

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// Header is the request header with which a consumer says what it may hold: its value is that of
// [Receipt.Header]. An owner that takes reports says so in the response header, with Taken.
const (
	Header = "federation-receipts"
	Taken  = "taken"
)

// Forever stands for a duration without an end.
const Forever = time.Duration(-1)

// maxHold bounds what a consumer may say that it holds something for. What is longer than a
// hundred years is for ever.
const maxHold = 100 * 365 * 24 * time.Hour

// MaxWordBytes bounds a word.
const MaxWordBytes = 64

// Receipt is what a consumer says of how long something may be answered that an owner has
// withdrawn.
type Receipt struct {
	// Holder names the copy of the catalog, across its streams. No other copy has the name: it
	// is a word of at most 64 letters and digits that nobody can guess.
	Holder string

	// TTL is how long others may keep an answer, in whole seconds: the largest TTL of any
	// answer that the consumer gives.
	TTL time.Duration

	// Hold is for how long at most the consumer answers what it holds after the owner has lost
	// its stream, in whole seconds, or Forever. It has all the time in it that the consumer may
	// take to notice.
	Hold time.Duration

	// Relay says that others hold what the consumer holds. It sends a report of what they
	// have settled, and before the first nothing is known of them.
	Relay bool

	// File says that a file has the copy for the next process, which answers what it has: the
	// consumer sends a report of what it has not any more.
	File bool
}

// Reports says that a response is settled only when a report says so.
func (r Receipt) Reports() bool { return r.Relay || r.File }

// Header returns the value of [Header].
func (r Receipt) Header() string {
	text := "holder=" + r.Holder + "; ttl=" + seconds(r.TTL) + "; hold=" + seconds(r.Hold)
	if r.Relay {
		text += "; relay"
	}
	if r.File {
		text += "; file"
	}
	return text
}

// seconds returns a duration in whole seconds, rounded up.
func seconds(d time.Duration) string {
	if d < 0 {
		return "forever"
	}
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}

// Parse reads the value of [Header]. Parts that it does not know, as a later
// version may have, are passed over.
func Parse(header string) (Receipt, error) {
	r := Receipt{TTL: -1, Hold: -2}
	for part := range strings.SplitSeq(header, ";") {
		key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		var err error
		switch key {
		case "holder":
			r.Holder = value
		case "ttl":
			r.TTL, err = parseSeconds(value)
		case "hold":
			r.Hold, err = parseSeconds(value)
		case "relay":
			r.Relay = true
		case "file":
			r.File = true
		}
		if err != nil {
			return Receipt{}, fmt.Errorf("%s: %s: %w", Header, key, err)
		}
	}
	switch {
	case !IsWord(r.Holder):
		return Receipt{}, fmt.Errorf("%s: holder %s is not a word of letters and digits up to %d bytes", Header, federation.Quote(r.Holder), MaxWordBytes)
	case r.TTL < 0:
		return Receipt{}, fmt.Errorf("%s: there is no ttl in seconds", Header)
	case r.Hold < Forever:
		return Receipt{}, fmt.Errorf("%s: there is no hold", Header)
	}
	return r, nil
}

// parseSeconds reads what seconds returns.
func parseSeconds(text string) (time.Duration, error) {
	if text == "forever" {
		return Forever, nil
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("%s is neither a number of seconds nor forever", federation.Quote(text))
	}
	if n > uint64(maxHold/time.Second) {
		return Forever, nil
	}
	return time.Duration(n) * time.Second, nil
}

// Report is what a consumer says later of what it may hold. It takes the place of what it has
// said before.
type Report struct {
	// Settled is the nonce of a response: no file has, and nobody behind a relay answers, what
	// that response and those before it have withdrawn. It is empty where there is none.
	Settled string

	Hold    time.Duration // of a Receipt
	Unknown string        // for a relay: why it cannot know what its own consumers hold; at most 256 bytes
}

// settledMessage tells a report from an ACK, of which the message is empty.
const settledMessage = "settled"

// maxUnknownBytes bounds Report.Unknown.
const maxUnknownBytes = 256

// Status returns the status with which a request is the report, in place of an answer to a
// response. An owner gets one only if it has announced [Taken].
func (r Report) Status() (*status.Status, error) {
	text := "hold=" + seconds(r.Hold)
	if r.Unknown != "" {
		text += "; unknown=" + strings.ToValidUTF8(r.Unknown[:min(len(r.Unknown), maxUnknownBytes)], "")
	}
	detail, err := anypb.New(wrapperspb.String(text))
	return &status.Status{Message: settledMessage, Details: []*anypb.Any{detail}}, err
}

// Reported returns the report that a request with the status and the nonce is, or nil where it
// answers a response. The error is of a report that cannot be read.
func Reported(s *status.Status, nonce string) (*Report, error) {
	if s.GetCode() != 0 || s.GetMessage() != settledMessage || len(s.GetDetails()) != 1 {
		return nil, nil //nolint:nilnil // it is none
	}
	var detail wrapperspb.StringValue
	if s.GetDetails()[0].UnmarshalTo(&detail) != nil {
		return nil, federation.Invalidf("status.details", federation.ReasonUndecodable, "a report is a StringValue")
	}
	said, unknown, _ := strings.Cut(detail.GetValue(), "; unknown=")
	value, ok := strings.CutPrefix(said, "hold=")
	hold, err := parseSeconds(value)
	if !ok || err != nil {
		return nil, federation.Invalidf("status.details", federation.ReasonUndecodable, "a report begins with hold= and a number of seconds, or forever")
	}
	return &Report{Settled: nonce, Hold: hold, Unknown: federation.Printable(unknown[:min(len(unknown), maxUnknownBytes)])}, nil
}

// IsWord reports whether a text is a word of letters and digits, MaxWordBytes at most. So owners are
// called in a path, and copies of their catalogs.
func IsWord(text string) bool {
	return text != "" && len(text) <= MaxWordBytes && !strings.ContainsFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9')
	})
}
