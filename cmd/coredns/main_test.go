package main

import (
	"bytes"
	"flag"
	"log"
	"os"
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

// TestManPage has every flag of the program on its manual page.
func TestManPage(t *testing.T) {
	page, err := os.ReadFile("../../deploy/package/files/share/coredns-federation/man/man1/coredns-federation.1")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(page), `\-`, "-")
	flag.VisitAll(func(f *flag.Flag) {
		if !strings.HasPrefix(f.Name, "test.") && !strings.Contains(text, "-"+f.Name+" ") && !strings.Contains(text, "-"+f.Name+"\n") {
			t.Errorf("the flag -%s is not there", f.Name)
		}
	})
	if flag.Lookup("conf") == nil {
		t.Error("the flags of the program are not known here")
	}
}
