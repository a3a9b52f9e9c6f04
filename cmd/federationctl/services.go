package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/inspect"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/federation/status"
)

func servicesCommand(ctx context.Context) *cobra.Command {
	var o statusOptions
	var of string
	command := &cobra.Command{
		Use:   "services [WORD...]",
		Short: "List the services that a running CoreDNS or owner holds",
		Long: `services lists what a process holds: the services of the owners that a CoreDNS
follows, or those of an owner's catalogs, sorted by name, with their endpoints. A
CoreDNS has them as the owner tells them, before a rename.

A WORD is a part of anything that a service has, in any case: of its name, its fqdn,
an address, or a label as KEY=VALUE. Of several words all have to be there.

The process must have the status endpoint, 'status' in its configuration.`,
		Example: `  federationctl services team=storefront
  federationctl services 192.0.2.10 --of owner.example:8008 -o json`,
	}
	outputFlag(command, &o.output)
	command.Flags().StringVar(&of, "of", "", "`owner` or server name of the catalog; none: all")
	return o.asking(command, func(e *inspect.Endpoint, words []string, out io.Writer) error {
		names, err := e.Names(ctx, of)
		if err != nil {
			return failure(err)
		}
		table, several := printable.IsTable(o.output), len(names) > 1
		columns, rows := printable.Columns{Titles: []string{"NAME", "FQDN", "STATE", "ENDPOINTS"}, Width: lineWidth(out)}, [][]string(nil)
		if several {
			columns.Titles = append([]string{"CATALOG"}, columns.Titles...)
		}
		flush := func() (err error) {
			if len(rows) > 0 {
				_, err = io.WriteString(out, strings.Join(columns.Lines(rows), "\n")+"\n")
				rows = rows[:0]
			}
			return err
		}
		found, total := 0, 0
		for _, of := range names {
			n, err := e.Find(ctx, of, words, func(s *inspect.Found) error {
				found++
				if !table {
					text, err := printable.JSON(s)
					if err == nil {
						_, err = io.WriteString(out, text)
					}
					return err
				}
				if rows = append(rows, s.Cells(several)); len(rows) < atOnce {
					return nil
				}
				return flush()
			})
			if err != nil {
				return failure(err)
			}
			total += n
		}
		if err = flush(); err == nil && table {
			fmt.Fprintf(command.ErrOrStderr(), "federationctl: %s of %s\n", status.Number(found), status.Count(total, "service"))
		}
		return failure(err)
	})
}

// atOnce is how many rows of a table are laid out at once: more come below them, in columns
// that are as wide or wider.
const atOnce = 500
