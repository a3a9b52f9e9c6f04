package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/serve"
	"github.com/hamlet-federation/coredns-federation/internal/status/page"
)

// daemonProcess is what serve and import have around what they do: the ports of status and of metrics,
// and what is said of the begin and the end.
type daemonProcess struct {
	logger   *slog.Logger
	stdout   io.Writer
	source   page.ReportSource
	metrics  http.Handler // and probes
	farewell string       // is logged at the end

	status *page.Server // nil: there is none
	web    net.Listener // of metrics and probes; nil: there is none
}

// listen takes the ports that a configuration names. Its errors are of type serve.Error.
func (d *daemonProcess) listen(ctx context.Context, c config.ProcessConfig) (err error) {
	if c.Metrics != "" {
		if d.web, err = new(net.ListenConfig).Listen(ctx, "tcp", c.Metrics); err != nil {
			return serve.Error{Key: "metrics", Err: err}
		}
	}
	if c.Status.Address != "" {
		if d.status, err = page.Listen(ctx, c.Status, d.logger); err != nil {
			return serve.Error{Key: "status", Err: err}
		}
	}
	return nil
}

// announce says that the process works, and where.
func (d *daemonProcess) announce(lines ...string) {
	if d.web != nil {
		lines = append(lines, fmt.Sprintf("metrics on http://%s/metrics", d.web.Addr()))
	}
	if d.status != nil {
		lines = append(lines, fmt.Sprintf("status on %s", d.status.Addr()))
	}
	fmt.Fprintln(d.stdout, strings.Join(lines, "\n"))
	d.tellSystemd(daemon.SdNotifyReady)
}

// run has the process work until ctx ends, and serves its ports meanwhile.
func (d *daemonProcess) run(ctx context.Context, work func() error) error {
	ending := make(chan struct{})
	context.AfterFunc(ctx, func() {
		d.tellSystemd(daemon.SdNotifyStopping)
		d.logger.Info(d.farewell, "reason", context.Cause(ctx))
		close(ending)
	})
	var serving sync.WaitGroup
	defer serving.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if d.status != nil {
		serving.Go(func() {
			if err := d.status.Serve(ctx, d.source); err != nil {
				d.logger.Error("status and why are not served any more", "error", err)
			}
		})
	}
	if d.web != nil {
		server := &http.Server{
			Handler: d.metrics, MaxHeaderBytes: 16 << 10,
			ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
		}
		defer server.Close() // after the work has ended, so that its end can be watched
		serving.Go(func() {
			if err := server.Serve(d.web); !errors.Is(err, http.ErrServerClosed) {
				d.logger.Error("metrics and health are not served any more", "error", err)
			}
		})
	}
	if err := work(); err != nil {
		return failureOf(err)
	}
	<-ending
	return nil
}

// tellSystemd tells systemd a state, where it has started the process.
func (d *daemonProcess) tellSystemd(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		d.logger.Warn("systemd cannot be told the state of the process", "state", state, "error", err)
	}
}
