// Command attack lets hostile owners, consumers and clients attack real
// processes of this project: CoreDNS with the plugin, and federationctl. It prints a
// table with one row for each attack: what it did to the process, and to a healthy
// owner or consumer beside it. Each attack has bounds for what it may do; the exit
// code is 1 when one of them was exceeded.
//
// Everything is on loopback, and bounded in count and time. The programs under
// attack are taken from the folder that -bin names, so that one version of this
// command can compare two versions of them.
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
	effect   string   // in a few words, for the table
	exceeded []string // bounds that were exceeded, one sentence each
}

// limit records that a value is over its bound, if it is.
func (d *damage) limit(what string, value, bound float64) {
	if value > bound {
		d.exceeded = append(d.exceeded, fmt.Sprintf("%s is %.4g, the bound is %.4g", what, value, bound))
	}
}

// require records what is wrong, unless ok.
func (d *damage) require(ok bool, wrong string) {
	if !ok {
		d.exceeded = append(d.exceeded, wrong)
	}
}

// attackTimeout ends an attack that hangs. The longest ones take a minute.
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

// runAll runs the attacks whose names match, and reports whether all of them kept
// their bounds. It is an error if none matches.
func runAll(ctx context.Context, out io.Writer, bin string, pattern *regexp.Regexp) (bool, error) {
	attacks := slices.Concat(ownerAttacks, consumerAttacks)
	fmt.Fprintln(out, "| attack | peak memory | log lines | log bytes | effect |")
	fmt.Fprintln(out, "|---|---|---|---|---|")
	var exceeded []string
	matched := 0
	for _, at := range attacks {
		if !pattern.MatchString(at.name) {
			continue
		}
		matched++
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
	if matched == 0 {
		return false, fmt.Errorf("no attack matches %q", pattern)
	}
	return len(exceeded) == 0, nil
}

// runOne runs one attack in an arena of its own.
func runOne(ctx context.Context, bin string, at attack) (damage, error) {
	ctx, cancel := context.WithTimeout(ctx, attackTimeout)
	defer cancel()
	a, err := newArena(bin)
	if err != nil {
		return damage{}, err
	}
	defer debug.FreeOSMemory() // the next victim needs it
	defer a.close()
	d, err := at.run(ctx, a)
	d.victim.measure() // before its log is removed
	return d, err
}
