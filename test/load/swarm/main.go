// Command swarm shows what thousands of consumers cost an owner, and how long they take
// to come back. It starts federationctl serve with a catalog file, and consumers that hold
// nothing but the versions of the services, in processes of their own: see the flags.
// It ends by itself.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
)

// plan is what the flags say.
type plan struct {
	binary    string
	consumers int
	processes int
	services  int
	classes   int
	window    int
	atOnce    int
	prime     bool

	// of the processes that swarm starts itself
	role, owner, dir string
	number           int
}

func main() {
	var p plan
	flag.StringVar(&p.binary, "federationctl", "bin/federationctl", "the `binary` of the owner")
	flag.IntVar(&p.consumers, "consumers", 1000, "`number` of consumers")
	flag.IntVar(&p.processes, "processes", 2, "`number` of processes that the consumers are in")
	flag.IntVar(&p.services, "services", 1000, "`number` of services in the catalog")
	flag.IntVar(&p.classes, "classes", 0, "`number` of classes of consumers, each of which a policy tells its part of the services, and what all are told; 0: there is no policy")
	flag.IntVar(&p.window, "window", 32, "`number` of messages that the owner sends ahead of their acknowledgements")
	flag.IntVar(&p.atOnce, "at-once", 500, "`number` of consumers of a process that connect at a time: unlike others they share the processors of the owner")
	flag.BoolVar(&p.prime, "prime", false, "only the first consumer of each process downloads the catalog; the others begin with what it holds, and resume")
	flag.StringVar(&p.role, "role", "", "internal: `crowd`")
	flag.StringVar(&p.owner, "owner", "", "internal: `address` of the owner")
	flag.StringVar(&p.dir, "dir", "", "internal: `directory` with the certificates")
	flag.IntVar(&p.number, "number", 0, "internal: `number` of the process")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	run := map[string]func(context.Context, plan, io.Writer) error{"": drive, "crowd": crowdProcess}[p.role]
	if err := run(ctx, p, os.Stdout); err != nil {
		cancel()
		log.Fatal(err) //nolint:gocritic // cancel was called
	}
}

// crowdProcess runs consumers until stdin ends. Each line of stdin is a command, and is
// answered by a line with the status in JSON.
func crowdProcess(ctx context.Context, p plan, out io.Writer) error {
	classes := make([]*tls.Config, max(1, p.classes))
	for i := range classes {
		of := p.dir + "/" + consumerOf(i)
		certificate, err := tls.LoadX509KeyPair(of+".pem", of+"-key.pem")
		if err != nil {
			return err
		}
		classes[i] = clientTLS(certificate)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := newCrowd(p.owner, classes, p.consumers, p.number, p.atOnce, p.prime)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.run(ctx)
	}()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		switch lines.Text() {
		case "reset":
			c.reset()
		case "full":
			c.resume.Store(false)
		case "resume":
			c.resume.Store(true)
		}
		if err := json.NewEncoder(out).Encode(c.status()); err != nil {
			return err
		}
	}
	cancel()
	<-done
	return lines.Err()
}

// clientTLS returns what a consumer needs for its handshake. Who the owner is does not
// matter here, and to verify it would cost the machine that it shares with the owner.
func clientTLS(certificate tls.Certificate) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
		InsecureSkipVerify: true,
	}
}

// child is a process that was started with a role.
type child struct {
	*process

	stdin io.WriteCloser
	lines *bufio.Reader
}

// ask sends a command to a crowd.
func (c *child) ask(command string) (status, error) {
	var s status
	if _, err := fmt.Fprintln(c.stdin, command); err != nil {
		return s, err
	}
	line, err := c.lines.ReadBytes('\n')
	if err != nil {
		return s, errors.Join(err, errors.New("a crowd has ended"))
	}
	return s, json.Unmarshal(line, &s)
}
