package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"
)

// logFormatName is the name of the flag for the form of the log.
const logFormatName = "log-format"

// logJSON is the form that has an object in each line; the other one is text.
const logJSON = "json"

// logFormatFlag adds the flag to a command. It is no key of a configuration file, because
// what is wrong with that file is logged as well.
func logFormatFlag(command *cobra.Command, format *string) {
	choiceFlag(command, format, logFormatName, "", "`format` of the log and of errors: text or json, one object a line; also with --config", "text", logJSON)
}

// logHandler returns what writes the log in a form.
func logHandler(w io.Writer, format string) slog.Handler {
	if format == logJSON {
		return slog.NewJSONHandler(w, nil)
	}
	return slog.NewTextHandler(w, nil)
}

// logLibraries has what libraries write to standard error written by the logger: that of the
// Kubernetes client, and that of gRPC, which is for errors only.
func logLibraries(logger *slog.Logger) {
	klog.SetSlogLogger(logger)
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, lineWriter{logger}))
}

// logAll is logLibraries, and for the log package as well. It is for a process that does
// nothing else.
func logAll(ctx context.Context, logger *slog.Logger) {
	if ctx.Value(endsItself{}) == nil {
		return // a test runs the command in its own process
	}
	slog.SetDefault(logger)
	logLibraries(logger)
}

// lineWriter logs what is written to it.
type lineWriter struct{ logger *slog.Logger }

// Write implements io.Writer.
func (w lineWriter) Write(text []byte) (int, error) {
	w.logger.Error("gRPC reports an error", "error", string(bytes.TrimSpace(text)))
	return len(text), nil
}

// reportFailure writes why the command has failed, and a hint if there is one, in the form
// that the command logs in.
func reportFailure(stderr io.Writer, command *cobra.Command, err error, hint string) {
	if flag := command.Flags().Lookup(logFormatName); flag != nil && flag.Value.String() == logJSON {
		logger := slog.New(logHandler(stderr, logJSON)).With("error", err.Error())
		if hint != "" {
			logger = logger.With("remedy", hint)
		}
		logger.Error("the process could not start, or has ended")
		return
	}
	var text strings.Builder
	fmt.Fprintf(&text, "federationctl: %v\n", err)
	if hint != "" {
		fmt.Fprintf(&text, "federationctl: %s\n", hint)
	}
	_, _ = io.WriteString(stderr, text.String()) // there is nobody else to tell
}
