package federationplugin

import (
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/coredns/coredns/plugin/metrics/vars"

	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// panicReporter reports panics of goroutines that clients cause. CoreDNS recovers those of queries,
// but not these.
type panicReporter struct{ logger *slog.Logger }

// maxStack bounds the part of a stack that is logged, in bytes.
const maxStack = 4096

// reportPanic counts and logs a panic that was recovered during something. The function that has
// recovered it calls reportPanic, because the stack is still there.
func (r panicReporter) reportPanic(during string, cause any) {
	vars.Panic.Inc()
	stack := debug.Stack()
	r.logger.Error("a panic was recovered: report it", "during", during,
		"error", safetext.Printable(fmt.Sprint(cause)), "stack", string(stack[:min(len(stack), maxStack)]))
}
