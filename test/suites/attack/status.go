package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
)

// configured is federationctl serve with a port for its status.
type configured struct {
	*publisher

	status string // its address
	client *tls.Config
}

// configure starts an owner with this catalog of its configuration. setup is as for start.
func (a *arena) configure(ctx context.Context, setup, catalog string) (*configured, error) {
	address, err := loopback.FreeAddress()
	if err != nil {
		return nil, err
	}
	status, err := loopback.FreeAddress()
	if err != nil {
		return nil, err
	}
	config, err := a.write("owner.yaml", fmt.Sprintf(`
listen: %q
status: {listen: %q, cert: %s, key: %s, ca: %[5]s}
identity:
  files: {cert: %[3]s, key: %[4]s, ca: %[5]s}
allow:
  ids: [consumer.example]
catalogs:
- %[6]s
`, address, status, a.owner.Cert, a.owner.Key, a.owner.CA, catalog))
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(a.consumer.Cert, a.consumer.Key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.authority.PEM())
	p, err := a.start(ctx, setup, "federationctl", "serve", "--config", config)
	if err != nil {
		return nil, err
	}
	o := &configured{
		&publisher{p, address, "", a}, status,
		&tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13},
	}
	return o, o.read(ctx, time.Minute)
}

// read reads the status. It tries again until the bound.
func (o *configured) read(ctx context.Context, bound time.Duration) error {
	client := http.Client{
		Transport: &http.Transport{TLSClientConfig: o.client, DisableKeepAlives: true},
		Timeout:   2 * time.Second,
	}
	code := 0
	_, err := until(ctx, bound, func() bool {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+o.status+"/v1/status", http.NoBody)
		if err != nil {
			return false
		}
		answer, err := client.Do(request)
		if err != nil {
			return !o.running()
		}
		code = answer.StatusCode
		return answer.Body.Close() == nil
	})
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("the status is answered with %d", code)
	}
	return err
}

var statusAttacks = []attack{
	{"forms of 60 MB with GET, sent to the status", statusForms},
	{"consumer of a catalog that is unavailable", unavailableCatalog},
}

// statusForms sends forms, which net/http keeps in memory and on the disk once somebody
// asks for a value.
func statusForms(ctx context.Context, a *arena) (damage, error) {
	folder := a.path("tmp")
	if err := os.Mkdir(folder, 0o700); err != nil {
		return damage{}, err
	}
	catalog, err := a.write("catalog.yaml", catalogOf(1))
	if err != nil {
		return damage{}, err
	}
	o, err := a.configure(ctx, "export TMPDIR="+folder+";", "sources: [{file: {path: "+catalog+"}}]")
	if err != nil {
		return damage{}, err
	}
	d := damage{victim: o.process}
	const senders, size = 8, 60
	var sending sync.WaitGroup
	taken := make([]int, senders) // in MB
	for i := range senders {
		c, err := (&tls.Dialer{Config: o.client}).DialContext(ctx, "tcp", o.status)
		if err != nil {
			return d, err
		}
		defer c.Close() // when the files are counted
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		sending.Go(func() {
			_, err := io.WriteString(c, "GET /v1/why?name=a.b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n"+
				"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\r\n")
			for buf := make([]byte, 1e6); err == nil && taken[i] < size; taken[i]++ {
				_, err = c.Write(buf)
			}
		})
	}
	sending.Wait()
	most := slices.Max(taken)
	files, err := os.ReadDir(folder)
	if err != nil {
		return d, err
	}
	d.effect = fmt.Sprintf("%d files; %d MB of a form taken at most", len(files), most)
	d.limit("files", float64(len(files)), 0)
	d.limit("MB of a form taken", float64(most), size/2) // the buffers of the kernel take some
	d.limit("memory in MiB", float64(o.peak.Load()), 150)
	return d, o.read(ctx, 10*time.Second)
}

// unavailableCatalog subscribes to a catalog whose origin is away. Consumers are others than
// those who run the owner, and are not told where that gets its catalog from.
func unavailableCatalog(ctx context.Context, a *arena) (damage, error) {
	origin, err := loopback.FreeAddress()
	if err != nil {
		return damage{}, err
	}
	o, err := a.configure(ctx, "", fmt.Sprintf("relay: {name: mesh-secret, addresses: [%q], owner_ids: [%q]}", origin, ownerID))
	if err != nil {
		return damage{}, err
	}
	d := damage{victim: o.process}
	conn, err := o.dial()
	if err != nil {
		return d, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	stream, err := subscribe(ctx, conn)
	if err == nil {
		_, err = stream.Recv()
	}
	told := grpcstatus.Convert(err)
	d.effect = fmt.Sprintf("told %v: %s", told.Code(), told.Message())
	d.require(told.Code() == codes.Unavailable, "the catalog is available")
	for _, secret := range []string{origin, "127.0.0.1", a.dir, "mesh-secret", "relay", "spiffe:"} {
		d.require(!strings.Contains(told.Message(), secret), "the consumer is told "+secret)
	}
	return d, nil
}
