// Command attack sets hostile owners, consumers, clients and files on real
// processes of this project, CoreDNS with the plugin and federationctl, and prints
// what that did to them and to their neighbours: a row of a table for each attack.
// It fails when an attack did more than it may.
//
// Everything is on loopback, and bounded in count and time. The programs under
// attack are those in the folder that -bin names, so that two versions of them
// can be compared by one version of this.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"
)

// attack is one row of the table.
type attack struct {
	name string
	run  func(ctx context.Context, a *arena) (damage, error)
}

// damage is what an attack did.
type damage struct {
	victim   *process // whose memory and log are shown
	effect   string   // what else there is to say, in a few words
	exceeded []string // bounds that were not kept
}

// limit notes that a value is over its bound.
func (d *damage) limit(what string, value, bound float64) {
	if value > bound {
		d.exceeded = append(d.exceeded, fmt.Sprintf("%s is %.4g, the bound is %.4g", what, value, bound))
	}
}

// require notes that something is not so.
func (d *damage) require(ok bool, what string) {
	if !ok {
		d.exceeded = append(d.exceeded, what)
	}
}

// attackTimeout ends an attack that hangs. The longest take a minute.
const attackTimeout = 3 * time.Minute

func main() {
	bin := flag.String("bin", "bin", "`folder` of the programs coredns and federationctl")
	only := flag.String("run", "", "`regexp` of the attacks to run")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	pattern, err := regexp.Compile(*only)
	ok := false
	if err == nil {
		ok, err = runAll(ctx, os.Stdout, *bin, pattern)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "attack:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// runAll reports whether every attack that matches did no more than it may.
func runAll(ctx context.Context, out io.Writer, bin string, pattern *regexp.Regexp) (bool, error) {
	attacks := slices.Concat(ownerAttacks, consumerAttacks, fileAttacks)
	fmt.Fprintln(out, "| attack | peak memory | log lines | log bytes | effect |")
	fmt.Fprintln(out, "|---|---|---|---|---|")
	var exceeded []string
	for _, at := range attacks {
		if !pattern.MatchString(at.name) {
			continue
		}
		d, err := runOne(ctx, bin, at)
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		if err != nil {
			d.effect, d.exceeded = "failed", append(d.exceeded, err.Error())
		}
		fmt.Fprintf(out, "| %s | %s | %s |\n", at.name, d.victim.cost(), d.effect)
		for _, what := range d.exceeded {
			exceeded = append(exceeded, at.name+": "+what)
		}
	}
	if len(exceeded) > 0 {
		fmt.Fprintf(out, "\nOver a bound:\n\n- %s\n", strings.Join(exceeded, "\n- "))
	}
	return len(exceeded) == 0, nil
}

func runOne(ctx context.Context, bin string, at attack) (damage, error) {
	ctx, cancel := context.WithTimeout(ctx, attackTimeout)
	defer cancel()
	a, err := newArena(bin)
	if err != nil {
		return damage{}, err
	}
	defer debug.FreeOSMemory() // the victims need it
	defer a.close()
	d, err := at.run(ctx, a)
	d.victim.measure() // while it is there
	return d, err
}
