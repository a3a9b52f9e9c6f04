package main

import (
	"bytes"
	"log"
	"strings"
	"testing"

	"google.golang.org/grpc/grpclog"
)

// TestErrorsOfGRPC checks that what gRPC reports is one line of CoreDNS's log.
func TestErrorsOfGRPC(t *testing.T) {
	var text bytes.Buffer
	log.SetOutput(&text)
	logGRPC()
	grpclog.Info("nobody reads this")
	grpclog.Error("an owner complains\nof too many pings")
	if line := text.String(); !strings.Contains(line, "[ERROR] gRPC reports an error error=") || !strings.Contains(line, `complains\nof too many pings"`) || strings.Count(line, "\n") != 1 {
		t.Errorf("the log is %q", line)
	}
}
