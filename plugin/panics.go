package federationplugin

import (
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/coredns/coredns/plugin/metrics/vars"

	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// panicReporter reports the panics of goroutines that clients cause and CoreDNS does not recover, as
// it recovers those of queries.
type panicReporter struct{ logger *slog.Logger }

// maxStack bounds what is logged of a stack, in bytes.
const maxStack = 4096

// reportPanic counts and logs what was recovered during something. It is called by the function that
// has recovered it, which still has the stack.
func (r panicReporter) reportPanic(during string, cause any) {
	vars.Panic.Inc()
	stack := debug.Stack()
	r.logger.Error("a panic was recovered: report it", "during", during,
		"error", safetext.Printable(fmt.Sprint(cause)), "stack", string(stack[:min(len(stack), maxStack)]))
}
