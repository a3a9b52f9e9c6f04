package config

import (
	"cmp"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/setting"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes/export"
	"github.com/hamlet-federation/coredns-federation/internal/status/page"
)

// MaxBytes is how large a configuration file may be.
const MaxBytes = 1 << 20

// processSection is what stands in every configuration file, where it differs from ProcessConfig
// in form.
type processSection struct {
	Identity struct {
		Files  certificateFiles `yaml:"files" needs:"cert key ca" doc:"The certificate, the key and the authorities of the other side as files, all of which are needed."`
		SPIFFE struct {
			Socket       string   `yaml:"socket" as:"socket" doc:"The address of the agent, such as unix:///run/spire/agent.sock or tcp://127.0.0.1:8081."`
			TrustDomains []string `yaml:"trust_domains" as:"trust" least:"one is required; leave it out for none" doc:"Further trust domains whose members are accepted, by default only the own one."`
		} `yaml:"spiffe" needs:"socket" doc:"The SPIFFE agent that issues certificate, key and authorities."`
	} `yaml:"identity" one:"files spiffe" why:"the identity has one origin" doc:"What is shown to the other side, and who is believed there: files or spiffe."`
	Status struct {
		Listen string `yaml:"listen" as:"address" doc:"The address of the status page, as host:port, such as localhost:9156."`

		certificateFiles
	} `yaml:"status" short:"listen" needs:"listen" doc:"Where the status page and federationctl why are served, by default nowhere. An address alone stands for listen; one that is not loopback needs cert, key and ca."`
	Metrics string `yaml:"metrics" as:"address" doc:"Where metrics and probes are served in plain text, as host:port, by default nowhere. Let only monitoring reach it, because everybody who does can read the status."`
}

// toConfig returns what the section says.
func (s *processSection) toConfig() ProcessConfig {
	return ProcessConfig{
		Identity: mtls.Origin{Files: mtls.Files(s.Identity.Files), SPIFFE: mtls.SPIFFE(s.Identity.SPIFFE)},
		Status:   page.Config{Address: s.Status.Listen, Files: mtls.Files(s.Status.certificateFiles)},
		Metrics:  s.Metrics,
	}
}

// rootSection is what stands in the file of an owner, where it differs from Config in form. Its fields
// hide those of what they embed.
type rootSection struct {
	Config
	processSection

	Catalogs []*catalogSection `yaml:"catalogs" one:"sources relay" least:"one is required" why:"a relay is the whole catalog; beside other sources it is one of them, in their list" doc:"What is published, one catalog for each server_name: sources or a relay."`
}

// certificateFiles are those of a certificate.
type certificateFiles struct {
	Cert string `yaml:"cert" doc:"A PEM file with the certificate to show, then intermediate ones. A renewed file is used without a restart."`
	Key  string `yaml:"key" doc:"A PEM file with the key of cert."`
	CA   string `yaml:"ca" doc:"A PEM file with the authorities that may have signed the certificate of the other side."`
}

type catalogSection struct {
	Catalog

	Sources []*sourceSection `yaml:"sources" one:"file kubernetes registration consul nsm relay" least:"one is required" why:"give each a '-' of its own" doc:"What fills the catalog, each entry of one kind. Where two publish the same name, the first wins."`
	Relay   *Relay           `yaml:"relay" needs:"addresses" doc:"Another owner whose catalog is passed on, in place of sources. It has the keys of sources.relay but lifetime."`
	Exports []*ruleSection   `yaml:"exports" needs:"to" doc:"Rules that say who is told what, of which the first that fits decides. Without exports, everybody in allow is told everything; [] tells nobody anything."`
}

// sourceSection is a source: one of its fields.
type sourceSection struct {
	File *struct {
		File
		withdrawLimits

		MaxWithdraw int `yaml:"max_withdraw" as:"share" doc:"As for a cluster, but off by default, because whoever edits a file means it. Set it if a program writes the file."`
	} `yaml:"file" needs:"path" doc:"A catalog file, which is followed."`
	Kubernetes   *kubernetesSection   `yaml:"kubernetes" needs:"cluster zone" doc:"A cluster that exports Services."`
	Registration *registrationSection `yaml:"registration" needs:"rules" doc:"Programs that register themselves."`
	Consul       *consulSection       `yaml:"consul" needs:"zone" doc:"A datacenter of Consul."`
	NSM          *struct {
		NSM
		withdrawLimits
	} `yaml:"nsm" needs:"registry zone" doc:"A registry of Network Service Mesh."`
	Relay *struct {
		Relay
		sourceLifetime
	} `yaml:"relay" needs:"addresses" doc:"Another owner whose catalog is passed on beside other sources, at most one in a catalog."`
}

// withdrawLimits are of every source that lists what there is. By default they pause what
// looks like an empty or restored store.
type withdrawLimits struct {
	sourceLifetime

	MaxWithdraw   int           `yaml:"max_withdraw" as:"share" default:"50%" doc:"The share of services that may go within a minute before the owner pauses their withdrawal, or off. 50% means that an empty or restored registry takes nothing away before you confirm it. Raise it if your services go in large groups."`
	WithdrawAfter time.Duration `yaml:"withdraw_after" as:"patience" default:"1h" doc:"When paused services are withdrawn all the same, or never. 1h means that somebody has an hour to look. Raise it if nobody watches at night."`
}

type sourceLifetime struct {
	Lifetime time.Duration `yaml:"lifetime" as:"lifetime" default:"1h" doc:"How long services stay while their origin cannot be asked, or forever. 1h means that they are withdrawn when it has been away for an hour. Raise it to the longest repair that you expect."`
}

type kubernetesSection struct {
	Kubernetes
	withdrawLimits

	Publish struct {
		Labels      []string `yaml:"labels" as:"key" least:"one is required; leave it out for none" doc:"Keys of labels to publish, such as tier."`
		Annotations []string `yaml:"annotations" as:"key" least:"one is required; leave it out for none" doc:"Keys of annotations to publish, such as acme.example/team."`
	} `yaml:"publish" doc:"What Services have that is published as labels, by default nothing. exports can choose by it."`
}

type registrationSection struct {
	Registration
	sourceLifetime

	Store struct {
		Etcd *struct {
			Etcd

			TLS certificateFiles `yaml:"tls" doc:"Files for https, by default the authorities of the system and no certificate."`
		} `yaml:"etcd" needs:"endpoints" doc:"The etcd that keeps registrations."`
	} `yaml:"store" needs:"etcd" doc:"Where several owners share registrations. Without it, one owner keeps them in memory."`
}

type consulSection struct {
	Consul
	withdrawLimits

	TLS certificateFiles `yaml:"tls" doc:"Files for https, by default the authorities of the system and no certificate."`
}

// configReader makes a configuration of what stands in a file, and notes what is wrong with it.
type configReader struct{ *problem.Document }

// needed are the keys that a file must have.
const needed = "identity allow catalogs"

// Schema returns what a configuration may have.
func Schema() *setting.Schema {
	return setting.SchemaOf(reflect.TypeFor[rootSection](), `needs:"`+needed+`"`)
}

// readContent returns a configuration, which can be used where nothing is wrong.
func readContent(data []byte) (Config, configReader) {
	var d rootSection
	r := configReader{problem.Read(data, MaxBytes, "a configuration is", needed, valueFormats(), &d)}
	c := d.Config
	if !r.HasValue("") {
		return c, r
	}
	c.ProcessConfig = d.toConfig()
	r.addProblemIf(r.HasValue("allow") && !r.HasValue("allow.ids") && !r.HasValue("allow.file"), "allow", "needs ids, file or both; 'ids: []' lets nobody subscribe")
	r.checkAddresses(c.ProcessConfig, c.Listen)
	r.readCatalogs(d.Catalogs, &c)
	r.checkExclusive(c)
	if len(r.SortedProblems()) == 0 {
		r.checkLabels(c)
	}
	return c, r
}

// addProblemIf notes what is wrong at a path if it is.
func (r *configReader) addProblemIf(wrong bool, path, format string, args ...any) {
	if wrong {
		r.AddProblemf(path, format, args...)
	}
}

// checkAddresses checks where the process itself listens. An importer does not listen for consumers.
func (r *configReader) checkAddresses(c ProcessConfig, listen string) {
	same := func(a, b string) bool { return a == b && a != "" && !strings.HasSuffix(a, ":0") }
	status := c.Status.Address
	r.addProblemIf(same(c.Metrics, listen), "metrics", "is the address of listen as well")
	r.addProblemIf(same(status, listen), "status", "has the address of listen as well")
	r.addProblemIf(same(status, c.Metrics) && status != listen, "status",
		"has the address of metrics as well; that port is for scrapers and probes, and catalogs are not for everybody")
	if err := c.Status.Validate(); status != "" && err != nil {
		r.AddProblemf("status", "%v", err)
	}
}

func (r *configReader) readCatalogs(catalogs []*catalogSection, c *Config) {
	names := make(map[string]string) // the paths of catalogs
	for i, in := range catalogs {
		path := fmt.Sprintf("catalogs[%d]", i)
		c.Catalogs = append(c.Catalogs, Catalog{})
		if in == nil {
			continue
		}
		of := &c.Catalogs[i]
		of.ServerName = in.ServerName
		if r.readSources(path+".sources", in.Sources, of); in.Relay != nil {
			of.Sources = append(of.Sources, in.Relay.toSource(source.NoLifetime))
		}
		if exports := path + ".exports"; r.HasValue(exports) {
			r.readExports(exports, in.Exports, of)
		}
		at, name := path, of.ServerName
		if r.HasValue(path + ".server_name") {
			if at += ".server_name"; name == "" {
				continue // it is wrong, and not that of the default catalog
			}
		}
		switch first := names[name]; {
		case first == "":
			names[name] = at
		case name == "":
			r.AddProblemf(at, "has no server_name, and neither has the catalog on line %d; only one can be the default", r.LineOf(first))
		default:
			r.AddProblemf(at, "%s is that of the catalog on line %d, too", name, r.LineOf(first))
		}
	}
}

func (r *configReader) readSources(path string, origins []*sourceSection, c *Catalog) {
	names := make(map[string]int) // lines
	portless := 0                 // the line of the registration that has no port of its own
	relay := 0                    // that of the relay
	for i, o := range origins {
		path := fmt.Sprintf("%s[%d]", path, i)
		c.Sources = append(c.Sources, Source{})
		if o == nil {
			continue
		}
		if o.Kubernetes != nil {
			r.checkKubernetes(path+".kubernetes", o.Kubernetes)
		}
		if o.Consul != nil {
			r.checkConsul(path+".consul", o.Consul)
		}
		if o.NSM != nil {
			r.checkNSM(path+".nsm", &o.NSM.NSM)
		}
		if g := o.Registration; g != nil {
			r.checkRegistration(path+".registration", g)
			if !r.HasValue(path + ".registration.listen") {
				r.addProblemIf(portless > 0, path, "has no listen, and neither has the registration on line %d; the port of the owner leads to one registration of each catalog", portless)
				portless = r.LineOf(path)
			}
		}
		if o.Relay != nil {
			r.addProblemIf(relay > 0, path, "is the second relay of the catalog, after that on line %d; consumers are told one path, so give it a catalog with a server_name of its own", relay)
			relay = r.LineOf(path)
		}
		s := o.toSource()
		c.Sources[i] = s
		if first, twice := names[s.Name]; twice && !strings.HasSuffix(s.Name, ":") {
			r.AddProblemf(path, "%s is there twice, first on line %d", safetext.Quote(s.Name), first)
		} else {
			names[s.Name] = r.LineOf(path)
		}
	}
}

// toSource returns the source that stands in a file in that form.
func (o *sourceSection) toSource() Source {
	switch {
	case o.File != nil:
		f := o.File
		return Source{Name: "file:" + f.Path, Lifetime: f.Lifetime, MaxWithdraw: f.MaxWithdraw, WithdrawAfter: f.WithdrawAfter, File: &f.File}
	case o.Kubernetes != nil:
		k := o.Kubernetes
		k.Labels, k.Annotations = k.Publish.Labels, k.Publish.Annotations
		return Source{Name: "kubernetes:" + k.Cluster, Lifetime: k.Lifetime, MaxWithdraw: k.MaxWithdraw, WithdrawAfter: k.WithdrawAfter, Kubernetes: &k.Kubernetes}
	case o.Consul != nil:
		n := o.Consul
		n.Consul.TLS = mtls.Files(n.TLS)
		return Source{Name: "consul:" + path.Join(n.Name, n.Datacenter), Lifetime: n.Lifetime, MaxWithdraw: n.MaxWithdraw, WithdrawAfter: n.WithdrawAfter, Consul: &n.Consul}
	case o.NSM != nil:
		n := o.NSM
		return Source{Name: "nsm:" + n.Name, Lifetime: n.Lifetime, MaxWithdraw: n.MaxWithdraw, WithdrawAfter: n.WithdrawAfter, NSM: &n.NSM}
	case o.Registration != nil:
		g := &o.Registration.Registration
		if e := o.Registration.Store.Etcd; e != nil {
			g.Etcd = &e.Etcd
			g.Etcd.TLS, g.Etcd.Prefix = mtls.Files(e.TLS), cmp.Or(e.Prefix, "/federation/"+g.Name)
		}
		return Source{Name: "registration:" + g.Name, Lifetime: o.Registration.Lifetime, Registration: g}
	case o.Relay != nil:
		return o.Relay.toSource(o.Relay.Lifetime)
	}
	return Source{}
}

// checkKubernetes checks what the source of a path has in the file, beyond each key.
func (r *configReader) checkKubernetes(path string, k *kubernetesSection) {
	published := k.Publish
	r.addProblemIf(slices.ContainsFunc(published.Labels, func(key string) bool { return key != "" && slices.Contains(published.Annotations, key) }), path+".publish",
		"has one key in labels and in annotations, and a service can have it once only")
	r.addProblemIf(len(published.Labels)+len(published.Annotations) > limits.Labels, path+".publish", "has more than %d keys", limits.Labels)
	r.addProblemIf(k.Context != "" && !r.HasValue(path+".kubeconfig"), path+".context", "is one of a kubeconfig, and none is named")
	hasPods := slices.Contains(k.Endpoints, export.Pods)
	endpoints := path + ".endpoints"
	r.addProblemIf(hasPods && !r.HasValue(path+".pods"), endpoints, "pods are endpoints only with 'pods: routable'")
	r.addProblemIf(k.Routable && r.HasValue(endpoints) && !hasPods && !r.HasProblemIn(endpoints), path+".pods", "has no effect, as endpoints leaves pods out")
	every, err := pattern.ParseName("*." + k.Zone.String())
	zone, _ := every.Zone()
	for i, of := range k.Names {
		for j, name := range of.Names {
			if err != nil || name == (pattern.Name{}) {
				continue // that is said already
			}
			at := fmt.Sprintf("%s.allow_names[%d].names[%d]", path, i, j)
			quoted, itself := safetext.Quote(name.String()), name.String() == zone
			r.addProblemIf(itself, at, "%s is the zone itself, which can be no name of a Service", quoted)
			r.addProblemIf(name.Covers(every), at, "%s gives no name: a name below the zone %s belongs to a namespace, or is above those that do; write each name of one label", quoted, zone)
			r.addProblemIf(!itself && !name.Covers(every) && !every.Covers(name), at, "%s matches no name below the zone %s", quoted, zone)
		}
	}
}
