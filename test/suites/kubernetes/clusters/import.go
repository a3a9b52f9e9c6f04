package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// importNamespace is the one in east that the importer writes to.
const importNamespace = "fed"

// importTour shows what becomes in east of what west exports: objects of Kubernetes, for which
// CoreDNS answers with its plugin for the cluster.
func (s *show) importTour(ctx context.Context, west, east *domain.Domain) error {
	const web = "web-shop." + importNamespace + ".svc." + domain.ClusterZone
	s.sayf("Applying test/suites/kubernetes/clusters/west.yaml, and the namespace %s in east", importNamespace)
	if err := errors.Join(west.Cluster.Apply(ctx, westObjects), east.Cluster.Apply(ctx, "{apiVersion: v1, kind: Namespace, metadata: {name: "+importNamespace+"}}")); err != nil {
		return err
	}
	if err := s.startImporter(ctx, west, east); err != nil {
		return err
	}
	s.sayf("What CoreDNS of east answers now is the virtual address of a Service of east:")
	if err := errors.Join(s.ask(ctx, east, web, dns.TypeA, 1), s.ask(ctx, east, "_https._tcp."+web, dns.TypeSRV, 1)); err != nil {
		return err
	}
	if err := s.kubectl(ctx, east, "get", "services,endpointslices", "-n", importNamespace); err != nil {
		return err
	}
	s.sayf("\nThe owner of west is killed. The objects stay, for 24 hours by default, and so does the answer:")
	west.Owners[0].Kill()
	if err := errors.Join(s.ask(ctx, east, web, dns.TypeA, 1), west.Owners[0].Start(ctx)); err != nil {
		return err
	}
	s.sayf("\nIt is back, and west deletes the ServiceExport of web:")
	if err := s.timed(ctx, func() error { return west.Cluster.Delete(ctx, webExport) }, east, web, 0); err != nil {
		return err
	}
	return s.kubectl(ctx, east, "get", "services,endpointslices", "-n", importNamespace)
}

// startImporter starts federationctl import in east, for the services of west.
func (s *show) startImporter(ctx context.Context, west, east *domain.Domain) error {
	tls, file := east.ConsumerFiles(), filepath.Join(east.Dir, "import.yaml")
	text := fmt.Sprintf(`identity:
  files: {cert: %q, key: %q, ca: %q}
owners:
- name: west
  addresses: [%q]
  owner_ids: [%s]
  zones: [%s]
kubernetes:
  kubeconfig: %q
  namespace: %s
`, tls.Cert, tls.Key, tls.CA, west.Owners[0].Address, west.OwnerID(), west.Zone, east.Cluster.Kubeconfig, importNamespace)
	s.sayf("Starting an importer in east, with %s:\n\n%s", short(file), text)
	program, err := place.Program("federationctl")
	metrics, err2 := loopback.FreeAddress()
	if err := errors.Join(err, err2, os.WriteFile(file, []byte(text+"metrics: "+metrics+"\n"), 0o600)); err != nil {
		return err
	}
	s.importer = &realserver.Process{Name: "importer", Path: program, Dir: east.Dir, Args: []string{"import", file}, Ready: place.Dial(metrics)}
	return s.importer.Start(ctx)
}

// kubectl prints what kubectl does in the cluster of a domain.
func (s *show) kubectl(ctx context.Context, d *domain.Domain, args ...string) error {
	program, err := realserver.FindKubectl()
	if err != nil {
		return err
	}
	s.sayf("  %s$ kubectl %s", d.Name, strings.Join(args, " "))
	out, err := exec.CommandContext(ctx, program, append([]string{"--kubeconfig", d.Cluster.Kubeconfig}, args...)...).CombinedOutput()
	s.sayf("    %s", strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", "\n    "))
	return err
}
