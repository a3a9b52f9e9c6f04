package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

var fileAttacks = []attack{
	{"catalog of 254 kB that lost its dashes, served", func(ctx context.Context, a *arena) (damage, error) {
		o, err := a.publish(ctx, "", 1)
		if err != nil {
			return damage{}, err
		}
		d := damage{victim: o.process}
		slip := strings.ReplaceAll(catalogOf(1900), "- name", "  name")
		slip = strings.Replace(slip, "  name", "- name", 1) // one service with all the keys
		if _, err := a.write("catalog.yaml", slip); err != nil {
			return d, err
		}
		took, err := until(ctx, time.Minute, func() bool { return !o.running() || o.count(`"file is not used: fix it" what="catalog file"`) > 0 })
		d.effect = fmt.Sprintf("%d kB, reported after %.1f s", len(slip)/1000, took.Seconds())
		if err != nil {
			d.effect = fmt.Sprintf("%d kB, not reported within a minute", len(slip)/1000)
		}
		d.victim.measure()
		d.limit("memory in MiB", float64(d.victim.peak.Load()), 300)
		d.limit("bytes of log", float64(d.victim.size), 100_000)
		d.limit("seconds", took.Seconds(), 10)
		return d, nil
	}},
}
