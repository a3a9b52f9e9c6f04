package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
)

// brokenFiles is a Corefile with a zone of an owner, and one that has nothing to do with it. Its
// arguments are the address of the owner, the files of the consumer, and that of persist.
const brokenFiles = `
other.example:PORT {
    bind 127.0.0.1
    hosts {
        192.0.2.9 web.other.example
    }
}
a.fed.example:PORT {
    bind 127.0.0.1
    errors
    federation {
        owner %s
        tls %s %s %s
        owner_id ` + ownerID + `
        persist %s
        settle 1s
    }
}
`

var certificateAttacks = []attack{
	{"consumer's certificate expired at the start, then garbage", brokenConsumer((*arena).expire)},
	{"consumer's CA bundle damaged at the start, then garbage", brokenConsumer((*arena).halveCA)},
	{"consumer's key missing at the start, then garbage", brokenConsumer((*arena).removeKey)},
	{"owner's certificate expired at the start, then garbage", brokenOwner((*arena).expire)},
	{"owner's CA bundle damaged at the start, then garbage", brokenOwner((*arena).halveCA)},
	{"owner's key missing at the start, then garbage", brokenOwner((*arena).removeKey)},
}

// The damages after which files cannot be used.

func (a *arena) expire(f mtls.Files) error {
	issued, err := a.authority.Issue(mtls.Leaf{Name: "own", DNSNames: []string{"own.example"}, Lifetime: time.Minute})
	if err != nil {
		return err
	}
	return issued.WriteFiles(f)
}

func (*arena) halveCA(f mtls.Files) error {
	data, err := os.ReadFile(f.CA)
	if err != nil {
		return err
	}
	return os.WriteFile(f.CA, data[:len(data)/2], 0o600)
}

func (*arena) removeKey(f mtls.Files) error { return os.Remove(f.Key) }

// ownFiles copies files for one process, so that they can be damaged without the others. It
// returns them, and what writes them again.
func (a *arena) ownFiles(of mtls.Files) (own mtls.Files, mend func() error, err error) {
	own = mtls.Files{Cert: a.path("own.pem"), Key: a.path("own-key.pem"), CA: a.path("own-ca.pem")}
	good := make(map[string][]byte)
	for from, to := range map[string]string{of.Cert: own.Cert, of.Key: own.Key, of.CA: own.CA} {
		if good[to], err = os.ReadFile(from); err != nil {
			return own, nil, err
		}
	}
	mend = func() error {
		for path, data := range good {
			if err := os.WriteFile(path, data, 0o600); err != nil {
				return err
			}
		}
		return nil
	}
	return own, mend, mend()
}

// garbage replaces the files by what is no certificate, over and over, in place and by renaming,
// until ctx ends. It returns how often.
func garbage(ctx context.Context, f mtls.Files) (replaced int, err error) {
	cert, err := os.ReadFile(f.Cert)
	if err != nil {
		return 0, err
	}
	contents := [][]byte{
		nil, []byte("rubbish\x1b[31m"), cert[:len(cert)/2], bytes.Repeat([]byte{0}, 1<<20),
		bytes.Repeat([]byte("-----BEGIN CERTIFICATE-----\n"), 1000), bytes.Repeat(cert, 200),
	}
	for ctx.Err() == nil {
		for i, path := range []string{f.Cert, f.Key, f.CA} {
			to := path
			if replaced%2 == 0 {
				to += ".new"
			}
			if err := os.WriteFile(to, contents[(replaced/2+i)%len(contents)], 0o600); err != nil {
				return replaced, err
			}
			if to != path {
				if err := os.Rename(to, path); err != nil {
					return replaced, err
				}
			}
			replaced++
		}
		pause(ctx, 5*time.Millisecond)
	}
	return replaced, nil
}

// garbageTime is how long files are replaced by garbage. They are read every 200 ms then.
const garbageTime = 3 * time.Second

// brokenConsumer starts a CoreDNS with a catalog in its file of persist, and files of a
// certificate that cannot be used. It answers that, and another zone, while the files are replaced
// by garbage, and is synced when they are mended.
func brokenConsumer(damaged func(*arena, mtls.Files) error) func(context.Context, *arena) (damage, error) {
	return func(ctx context.Context, a *arena) (damage, error) {
		own, mend, err := a.ownFiles(a.consumer)
		if err != nil {
			return damage{}, err
		}
		var later atomic.Bool // the service has another address
		o, err := a.serveOwner(ctx, func(s *ownerStream) error {
			address := "10.1.1.1"
			if later.Load() {
				address = "10.1.1.2"
			}
			if err := s.upsert(simple("web", "a.fed.example", address)); err != nil {
				return err
			}
			return s.hang()
		})
		if err != nil {
			return damage{}, err
		}
		corefile := fmt.Sprintf(brokenFiles, o.address, own.Cert, own.Key, own.CA, a.path("persist"))
		before, err := a.serveDNS(ctx, corefile)
		if err != nil {
			return damage{}, err
		}
		if _, err := until(ctx, time.Minute, before.complete); err != nil {
			return damage{victim: before.process}, fmt.Errorf("with good files the owner is not synced: %w", err)
		}
		before.end()
		later.Store(true)
		if err := damaged(a, own); err != nil {
			return damage{}, err
		}

		begun := time.Now()
		s, err := a.serveDNS(ctx, corefile)
		if s == nil {
			return damage{}, err
		}
		d := damage{victim: s.process}
		if err != nil {
			return d, err
		}
		d.effect = fmt.Sprintf("answers %.1f s after the start", time.Since(begun).Seconds())
		attacked, stop := context.WithTimeout(ctx, garbageTime)
		defer stop()
		var replaced, answered, unanswered int
		var wg sync.WaitGroup
		wg.Go(func() { replaced, err = garbage(attacked, own) })
		for attacked.Err() == nil {
			if s.says("web.other.example.", "192.0.2.9") && s.says("web.a.fed.example.", "10.1.1.1") {
				answered++
			} else {
				unanswered++
			}
			pause(attacked, 5*time.Millisecond)
		}
		wg.Wait()
		if err != nil {
			return d, err
		}
		d.require(s.running(), "CoreDNS has ended")
		d.require(answered > 0, "nothing was answered")
		d.limit("looks at the other zone and at what persist has that failed", float64(unanswered), 0)
		d.effect += fmt.Sprintf("; answers both zones %d of %d times while files are replaced %d times", answered, answered+unanswered, replaced)
		if err := mend(); err != nil {
			return d, err
		}
		took, err := until(ctx, 30*time.Second, func() bool { return s.says("web.a.fed.example.", "10.1.1.2") })
		d.mended(took, err)
		return d, nil
	}
}

// complete reports whether the whole catalog of the owner is known: a name that it does not have
// is denied then.
func (s *server) complete() bool {
	m := s.ask("none.a.fed.example.", dns.TypeA)
	return m != nil && m.Rcode == dns.RcodeNameError
}

// brokenOwner starts an owner with files of a certificate that cannot be used. It goes on while
// they are replaced by garbage, and serves when they are mended.
func brokenOwner(damaged func(*arena, mtls.Files) error) func(context.Context, *arena) (damage, error) {
	return func(ctx context.Context, a *arena) (damage, error) {
		own, mend, err := a.ownFiles(a.owner)
		if err != nil {
			return damage{}, err
		}
		if err := damaged(a, own); err != nil {
			return damage{}, err
		}
		a.owner = own
		o, err := a.publish(ctx, "", 1)
		if o == nil {
			return damage{}, err
		}
		d := damage{victim: o.process}
		if err != nil {
			return d, err
		}
		attacked, stop := context.WithTimeout(ctx, garbageTime)
		defer stop()
		replaced, err := garbage(attacked, own)
		if err != nil {
			return d, err
		}
		d.require(o.running(), "the owner has ended")
		d.effect = fmt.Sprintf("goes on while files are replaced %d times", replaced)
		if err := mend(); err != nil {
			return d, err
		}
		took, err := o.served(ctx, 30*time.Second)
		d.mended(took, err)
		ended, ok := o.end()
		d.effect += fmt.Sprintf("; ends %.1f s after SIGTERM", ended.Seconds())
		d.require(ok, "SIGTERM does not end it")
		return d, nil
	}
}

// mended records how long it took until the files were used after they were mended, and what the
// garbage has cost.
func (d *damage) mended(took time.Duration, err error) {
	d.effect += fmt.Sprintf("; serves %.1f s after they are mended", took.Seconds())
	d.require(err == nil, "the files are not used after they are mended")
	d.limit("seconds until the files are used after they are mended", took.Seconds(), 15)
	d.victim.measure()
	d.require(d.victim.count("certificate files cannot be used") > 0, "the log does not say that the files cannot be used")
	d.limit("log lines", float64(d.victim.lines), 100)
	d.limit("memory in MiB", float64(d.victim.peak.Load()), 300)
	d.limit("panics", float64(d.victim.count("Recovered from panic")+d.victim.count("a panic was recovered")), 0)
}
