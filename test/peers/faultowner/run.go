package faultowner

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
)

// Run runs an owner as a process of its own, for faults that only a process can
// have. Its arguments are LISTEN CERT KEY CA SCRIPT [PINGS]; SCRIPT is a file, and
// PINGS a duration (see Config). It writes "serving ADDRESS" and then each Event as
// a line to stdout. Each line of stdin is a call of Owner.Go. It runs until ctx ends.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	if len(args) < 5 || len(args) > 6 {
		return errors.New("the arguments are LISTEN CERT KEY CA SCRIPT [PINGS]")
	}
	text, err := os.ReadFile(args[4])
	if err != nil {
		return err
	}
	var mu sync.Mutex
	config := Config{Event: func(line string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintln(stdout, line)
	}}
	if config.Script, err = Parse(string(text)); err != nil {
		return fmt.Errorf("%s: %w", args[4], err)
	}
	if len(args) == 6 {
		if config.Pings, err = time.ParseDuration(args[5]); err != nil {
			return err
		}
	}
	source, err := mtls.Load(mtls.Files{Cert: args[1], Key: args[2], CA: args[3]}, nil)
	if err != nil {
		return err
	}
	config.Credentials = source.Server()
	listener, err := net.Listen("tcp", args[0])
	if err != nil {
		return err
	}
	owner := New(config)
	config.Event("serving " + listener.Addr().String())
	go func() { // it ends with the process, as a read of stdin cannot be interrupted
		for lines := bufio.NewScanner(stdin); lines.Scan(); {
			if owner.Go(ctx) != nil {
				return
			}
		}
	}()
	return owner.Serve(ctx, listener)
}
