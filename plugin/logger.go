package federationplugin

import (
	"context"
	"log/slog"
	"strconv"
	"strings"

	clog "github.com/coredns/coredns/plugin/pkg/log"
)

// newLogger returns a logger that writes the lines of a CoreDNS plugin, with the
// attributes behind the message. CoreDNS has no handler for slog.
func newLogger(p clog.P) *slog.Logger { return slog.New(&logHandler{plugin: p}) }

type logHandler struct {
	plugin     clog.P
	attributes string
}

// Enabled implements slog.Handler. CoreDNS drops what is below its level.
func (h *logHandler) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (h *logHandler) Handle(_ context.Context, r slog.Record) error {
	var line strings.Builder
	line.WriteString(r.Message)
	line.WriteString(h.attributes)
	r.Attrs(func(a slog.Attr) bool {
		writeAttribute(&line, a)
		return true
	})
	switch {
	case r.Level >= slog.LevelError:
		h.plugin.Error(line.String())
	case r.Level >= slog.LevelWarn:
		h.plugin.Warning(line.String())
	case r.Level >= slog.LevelInfo:
		h.plugin.Info(line.String())
	default:
		h.plugin.Debug(line.String())
	}
	return nil
}

// WithAttrs implements slog.Handler.
func (h *logHandler) WithAttrs(attributes []slog.Attr) slog.Handler {
	var line strings.Builder
	line.WriteString(h.attributes)
	for _, a := range attributes {
		writeAttribute(&line, a)
	}
	return &logHandler{h.plugin, line.String()}
}

// WithGroup implements slog.Handler. Groups are not used.
func (h *logHandler) WithGroup(string) slog.Handler { return h }

func writeAttribute(line *strings.Builder, a slog.Attr) {
	line.WriteString(" " + a.Key + "=")
	value := a.Value.Resolve().String()
	if strings.ContainsAny(value, " \"") || value == "" {
		value = strconv.Quote(value)
	}
	line.WriteString(value)
}
