package monitoring

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// TestAlertsFireForRealFaults produces, in real processes, a fault for every alert, waits
// until the alert fires in a real Prometheus, mends it, and waits until the alert has ended.
// Meanwhile each query of the dashboard must have had data. Each line of faults has
// processes of its own, and they run at the same time.
func TestAlertsFireForRealFaults(t *testing.T) {
	if os.Getenv("REAL_SERVERS") != "required" {
		t.Skip("not run: it takes a minute or more; make e2e-monitoring runs it")
	}
	w := newPlace(t)
	w.Put(t, "catalog.yaml", "services:\n"+web("192.0.2.1"))
	origin := w.startOwner(t, "owner", "origin", "- sources: [{file: {path: catalog.yaml, lifetime: forever}}]", days)
	unanswered := w.watch(t)
	t.Run("faults", func(t *testing.T) {
		for name, line := range map[string]func(*testing.T, *testPlace, *process){
			"catalog": faultsOfCatalog, "identity": faultsOfIdentity, "start": faultsOfStart, "registry": faultsOfRegistry, "version": faultsOfVersion,
			"publisher": faultsOfPublisher, "store": faultsOfStore, "importer": faultsOfImporter,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				line(t, w, origin)
			})
		}
	})
	if t.Failed() {
		return
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(alerts(t))), slices.Sorted(maps.Keys(w.seen))); diff != "" {
		t.Errorf("alerts (-rules +fired):\n%s", diff)
	}
	for _, expr := range unanswered() {
		t.Errorf("the dashboard's query has never had data: %s", expr)
	}
}

// faultsOfCatalog are those of an owner with a catalog file, and of a CoreDNS that follows it.
func faultsOfCatalog(t *testing.T, w *testPlace, origin *process) {
	// A certificate of the owner that is renewed late.
	w.fires(t, "origin", "FederationOwnerCertificateAging")
	w.issue(t, "origin", ownerID, long)
	w.ends(t, "origin", "FederationOwnerCertificateAging")

	const retention = 30 * time.Second
	gate := realserver.StartGate(t, origin.address)
	w.issue(t, "follower", coreDNSID, long)
	d := w.startDNS(t, "coredns", "follower", gate.Address, retention)
	d.answers(t, "192.0.2.1")

	// The folder of the saved catalog is gone.
	kept := filepath.Join(w.Dir, "follower-kept")
	must.Do(t, os.Rename(kept, kept+"-away"))
	w.Put(t, "catalog.yaml", "services:\n"+web("192.0.2.5"))
	w.fires(t, "follower", "FederationConsumerPersistFailing")
	must.Do(t, os.Rename(kept+"-away", kept))
	w.ends(t, "follower", "FederationConsumerPersistFailing")

	// The network stalls.
	gate.Stall(true)
	w.Put(t, "catalog.yaml", "services:\n"+web("192.0.2.6"))
	w.fires(t, "origin", "FederationOwnerConsumerLag")
	gate.Stall(false)
	d.answers(t, "192.0.2.6")
	w.ends(t, "origin", "FederationOwnerConsumerLag")

	// The network is cut, for longer than the retention.
	gate.Refuse(true)
	gate.Cut()
	lost := []string{"FederationConsumerOwnerStale", "FederationConsumerRetentionHalfGone", "FederationConsumerOwnerExpired"}
	w.fires(t, "follower", lost[0])
	d.answers(t, "192.0.2.6") // stale, which the dashboard shows
	w.fires(t, "follower", lost[1:]...)
	gate.Refuse(false)
	w.issue(t, "follower", coreDNSID, long) // has it try at once
	d.answers(t, "192.0.2.6")
	w.ends(t, "follower", lost...)

	// The process is gone.
	d.Kill()
	w.fires(t, "follower", "FederationConsumerDown")
	must.Do(t, d.Start(t.Context()))
	w.ends(t, "follower", "FederationConsumerDown")
}

// faultsOfPublisher are those of an owner that publishes what is wrong, one after the other, and
// then turns its consumer away.
func faultsOfPublisher(t *testing.T, w *testPlace, _ *process) {
	good := "services:\n" + web("192.0.2.1")
	w.Put(t, "publisher-catalog.yaml", good)
	o := w.startOwner(t, "owner", "publisher", "- sources: [{file: {path: publisher-catalog.yaml}}]\nallow_addresses: [169.254.0.0/16]", days)
	w.issue(t, "reader", coreDNSID, long)
	d := w.startDNS(t, "coredns", "reader", o.address, time.Hour)
	for _, instance := range []string{"publisher", "reader"} {
		w.has(t, fmt.Sprintf(`up{instance=%q} offset %s == 1`, instance, window)) // as the rules for counters want it
	}
	for _, fault := range []struct {
		catalog string
		alerts  map[string][]string // by instance
	}{
		{"services:\n" + web("169.254.7.7"), map[string][]string{"reader": {"FederationConsumerRefusals"}, "publisher": {"FederationOwnerRefusals"}}},
		{good + service("web2", "web."+zone, "192.0.2.2", "v1"), map[string][]string{"reader": {"FederationConsumerConflicts"}}},
		{strings.ReplaceAll(good, ", port: 80", ""), map[string][]string{"publisher": {"FederationOwnerFileBroken"}}},
	} {
		w.Put(t, "publisher-catalog.yaml", fault.catalog)
		w.allFire(t, fault.alerts)
		d.answers(t, "192.0.2.1")
		w.Put(t, "publisher-catalog.yaml", good)
		for of, names := range fault.alerts {
			w.ends(t, of, names...)
		}
	}
	config := read(t, w.Path("publisher.yaml"))
	w.Put(t, "publisher.yaml", strings.Replace(config, coreDNSID, "spiffe://somebody.else.example/coredns", 1))
	w.fires(t, "reader", "FederationConsumerOwnerParked")
	w.Put(t, "publisher.yaml", config)
	w.issue(t, "reader", coreDNSID, long) // has it try at once
	w.ends(t, "reader", "FederationConsumerOwnerParked")
}

// faultsOfIdentity are those of a CoreDNS with a certificate that is about to expire, and of a
// job that is not found any more.
func faultsOfIdentity(t *testing.T, w *testPlace, origin *process) {
	w.issue(t, "stranger", coreDNSID, short)
	d := w.startDNS(t, "coredns-west", "stranger", origin.address, time.Hour)
	all := []string{"FederationConsumerCertificateAging", "FederationConsumerCertificateExpiring"}
	w.fires(t, "stranger", all...)
	w.issue(t, "stranger", coreDNSID, long)
	w.ends(t, "stranger", all...)

	w.scrape(t, "", "stranger", "")
	w.fires(t, "coredns-west", "FederationConsumersAbsent")
	w.scrape(t, d.job, "stranger", d.metrics)
	w.ends(t, "coredns-west", "FederationConsumersAbsent")
}

// faultsOfStart are those of a CoreDNS that is started while its owner is away.
func faultsOfStart(t *testing.T, w *testPlace, origin *process) {
	gate := realserver.StartGate(t, origin.address)
	gate.Refuse(true)
	w.issue(t, "newcomer", coreDNSID, long)
	w.startDNS(t, "coredns", "newcomer", gate.Address, time.Hour)
	w.fires(t, "newcomer", "FederationConsumerNotReady", "FederationConsumerOwnerUnknown")
	gate.Refuse(false)
	w.issue(t, "newcomer", coreDNSID, long) // has it try at once
	w.ends(t, "newcomer", "FederationConsumerNotReady", "FederationConsumerOwnerUnknown")
}

// faultsOfVersion are those of an owner with a consumer of v1alpha1, which cannot express a
// service without a SAN.
func faultsOfVersion(t *testing.T, w *testPlace, _ *process) {
	catalog := "services:\n" + web("192.0.2.1")
	w.Put(t, "older-catalog.yaml", catalog)
	o := w.startOwner(t, "owner", "older", "- sources: [{file: {path: older-catalog.yaml, lifetime: forever}}]", days)
	w.issue(t, "older-follower", coreDNSID, long)
	d := w.startDNS(t, "coredns", "older-follower", o.address, time.Hour, "api v1alpha1")
	w.fires(t, "older", "FederationOwnerServicesWithheld")
	w.Put(t, "older-catalog.yaml", strings.Replace(catalog, "name: web,", "name: web, sans: [spiffe://owner.example/web],", 1))
	w.ends(t, "older", "FederationOwnerServicesWithheld")
	d.answers(t, "192.0.2.1")
}

// faultsOfStore are those of a source whose store comes back empty.
func faultsOfStore(t *testing.T, w *testPlace, _ *process) {
	catalog := "services:\n"
	for i := range 10 {
		catalog += service(fmt.Sprint("s", i), fmt.Sprint("s", i, ".", zone), "192.0.2.1", "v1")
	}
	w.Put(t, "stored-catalog.yaml", catalog)
	w.startOwner(t, "owner", "stored", "- sources: [{file: {path: stored-catalog.yaml, max_withdraw: 50%}}]", days)
	w.has(t, `federation_owner_services{instance="stored"} == 10`)
	w.Put(t, "stored-catalog.yaml", "services: []\n")
	w.fires(t, "stored", "FederationOwnerWithdrawalsPaused")
	w.has(t, `federation_owner_services{instance="stored"} == 10`)
	w.Put(t, "stored-catalog.yaml", catalog)
	w.ends(t, "stored", "FederationOwnerWithdrawalsPaused")
}

// faultsOfImporter are those of an importer, of the owner that it follows and of its API server.
func faultsOfImporter(t *testing.T, w *testPlace, _ *process) {
	server := realserver.StartAPIServer(t)
	good := "services:\n" + web("192.0.2.1")
	w.Put(t, "exporter-catalog.yaml", good)
	o := w.startOwner(t, "owner", "exporter", "- sources: [{file: {path: exporter-catalog.yaml}}]", days)
	gate, files, metrics := realserver.StartGate(t, o.address), w.issue(t, "importer", coreDNSID, long), loopback.Address(t)
	i := w.start(t, "import", "importer", "federationctl", "", metrics, "import", w.Put(t, "import.yaml", fmt.Sprintf(`
identity: {files: {cert: %q, key: %q, ca: %q}}
owners: [{name: exporter, addresses: [%q], owner_ids: [%q], zones: [%s], retention: 30s}]
kubernetes: {kubeconfig: %q, namespace: default}
metrics: %q
`, files.Cert, files.Key, files.CA, gate.Address, ownerID, zone, server.Kubeconfig, metrics)))
	const written = `federation_import_services{instance="importer", state="written"} == 1`
	w.has(t, written)

	// Two services have one name.
	w.Put(t, "exporter-catalog.yaml", good+service("web2", "web."+zone, "192.0.2.2", "v1"))
	w.fires(t, "importer", "FederationImportNotWritten")
	w.Put(t, "exporter-catalog.yaml", good)
	w.ends(t, "importer", "FederationImportNotWritten")

	// The network is cut, for longer than the retention.
	gate.Refuse(true)
	gate.Cut()
	lost := []string{"FederationImportOwnerLost", "FederationImportRetentionHalfGone", "FederationImportOwnerExpired"}
	w.fires(t, "importer", lost...)
	gate.Refuse(false)
	w.issue(t, "importer", coreDNSID, long) // has it try at once
	w.ends(t, "importer", lost...)
	w.has(t, written)

	// The API server is away, and then the importer.
	server.Kill()
	w.fires(t, "import", "FederationImportClusterAway")
	must.Do(t, server.Start(t.Context()))
	w.ends(t, "import", "FederationImportClusterAway")
	i.Kill()
	w.fires(t, "import", "FederationImportNoLeader")
	must.Do(t, i.Start(t.Context()))
	w.ends(t, "import", "FederationImportNoLeader")
}

// faultsOfRegistry are those of an owner in which programs register, with etcd.
func faultsOfRegistry(t *testing.T, w *testPlace, _ *process) {
	etcd := realserver.StartEtcd(t)
	w.Put(t, "registrations.yaml", `
rules:
- name: everything
  providers: ["spiffe://fed.example/provider"]
  services: ["*.reg.fed.example"]
  addresses: [10.0.0.0/8]
  ttl: {min: 1s, max: 1h, default: 3s}
  quota: 100
`)
	o := w.startOwner(t, "registry", "registry", fmt.Sprintf(`- server_name: localhost
  sources:
  - registration:
      rules: registrations.yaml
      convergence: 30s
      linger: 0s
      lifetime: 6s
      store: {etcd: {endpoints: [%q], prefix: /registrations}}`, etcd.URL), short)

	// The store is empty: nothing is known before the convergence is over. The
	// certificate has ten minutes left.
	start := []string{"FederationOwnerNotReady", "FederationOwnerConvergenceStuck"}
	w.fires(t, "registry", append(start, "FederationOwnerCertificateExpiring")...)
	w.issue(t, "registry", ownerID, long)
	w.ends(t, "registry", append(start, "FederationOwnerCertificateExpiring")...)

	// A program registers what no rule allows.
	files := w.issue(t, "provider", providerID, long)
	register := func(name, fqdn string) *process {
		return w.start(t, "", name, "federationctl", o.address, "", "register", "--server", o.address, "--server-name", "localhost",
			"--cert", files.Cert, "--key", files.Key, "--ca", files.CA, "--service", fqdn, "--node", "http://10.0.0.1:8080", "--ttl", "3s")
	}
	good := register("good", "good.reg.fed.example")
	wrong := register("wrong", "wrong.other.example")
	w.fires(t, "registry", "FederationOwnerRegistrationsRefused")
	wrong.Kill()
	w.ends(t, "registry", "FederationOwnerRegistrationsRefused")
	w.has(t, `federation_owner_registration_nodes == 1`)

	// The store is away, and a program wants to register.
	etcd.Kill()
	w.fires(t, "registry", "FederationOwnerStoreAway")
	late := register("late", "late.reg.fed.example")
	away := []string{
		"FederationOwnerRegistrationsWait", "FederationOwnerSourceAway", "FederationOwnerSourceLifetimeHalfGone", "FederationOwnerCatalogUnavailable",
	}
	w.fires(t, "registry", away...)
	must.Do(t, etcd.Start(t.Context()))
	w.ends(t, "registry", append(away, "FederationOwnerStoreAway")...)
	w.has(t, `federation_owner_registration_nodes == 2`)

	// A program is killed.
	good.Kill()
	w.fires(t, "registry", "FederationOwnerRegistrationsExpire")
	w.ends(t, "registry", "FederationOwnerRegistrationsExpire")

	// The owner is gone, and comes back without its providers.
	o.Kill()
	late.Kill()
	w.fires(t, "registry", "FederationOwnerDown")
	must.Do(t, o.Start(t.Context()))
	w.fires(t, "registry", "FederationOwnerProvidersNotBack")
	w.ends(t, "registry", "FederationOwnerDown", "FederationOwnerProvidersNotBack")

	w.scrape(t, "", "registry", "")
	w.fires(t, "registry", "FederationOwnersAbsent")
	w.scrape(t, o.job, "registry", o.metrics)
	w.ends(t, "registry", "FederationOwnersAbsent")
}
