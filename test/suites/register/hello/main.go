// Command hello is a small program for `make run-register`: an HTTP server that says
// its name, and knows nothing of registration.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const patience = 5 * time.Second // with a request

func main() {
	listen := flag.String("listen", "127.0.0.1:8080", "`HOST:PORT` to serve on")
	name := flag.String("name", "hello", "what to say")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := serve(ctx, *listen, *name)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "hello:", err)
		os.Exit(1)
	}
}

// serve answers every request until ctx ends.
func serve(ctx context.Context, address, name string) error {
	server := &http.Server{
		Addr: address, ReadHeaderTimeout: patience,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello from", name) }),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	err := server.Shutdown(ending)
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return err
}
