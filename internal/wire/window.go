package wire

import (
	"strconv"

	grpcmetadata "google.golang.org/grpc/metadata"
)

// WindowHeader is the request header in which a consumer says how many responses it takes before
// it has answered the first of them, as a decimal number. The specification allows one message in
// flight, so a consumer that says nothing gets one.
const WindowHeader = "federation-window"

// MaxWindow is the largest number that WindowHeader can say: an owner remembers each response
// until it is answered.
const MaxWindow = 1024

// ParseWindow returns how many responses a consumer takes ahead, by the metadata of its request:
// 1 to MaxWindow, and 1 if the metadata say nothing that makes sense.
func ParseWindow(request grpcmetadata.MD) int {
	values := request.Get(WindowHeader)
	if len(values) == 0 {
		return 1
	}
	n, _ := strconv.ParseUint(values[0], 10, 64) // 0 for what is no number
	return int(min(max(n, 1), MaxWindow))
}
