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
	var of, address string
	var labels []string
	command := &cobra.Command{
		Use:   "services [PATTERN]",
		Short: "List the services that a running CoreDNS or owner holds",
		Long: `services lists what a process holds: the services of the owners that a CoreDNS
follows, or those of an owner's catalogs, sorted by name, with their endpoints. A
CoreDNS has them as the owner tells them, before a rename.

PATTERN is a part of a name or an fqdn or, if it has a *, all of it. Of several
conditions all have to be met.

The process must have the status endpoint, 'status' in its configuration.`,
		Example: `  federationctl services --label team=storefront
  federationctl services '*.fed.example' --of owner.example:8008 -o json`,
		Args: configFile("services", "a PATTERN, or nothing", 0, 1),
	}
	var stderr io.Writer
	outputFlag(command, &o.output)
	o.asking(command, func(e *inspect.Endpoint, args []string, out io.Writer) error {
		filter, err := inspect.NewFilter(strings.Join(args, ""), labels, address)
		if err != nil {
			return err //nolint:wrapcheck // it names the flag
		}
		stderr = command.ErrOrStderr()
		names, err := e.Names(ctx, of)
		if err != nil {
			return failure(err)
		}
		titles := []string{"NAME", "FQDN", "STATE", "ENDPOINTS"}
		if len(names) > 1 {
			titles = append([]string{"CATALOG"}, titles...)
		}
		found, total := 0, 0
		err = o.list(out, titles, func(row func(cells []string, object any) error) error {
			for _, of := range names {
				n, err := e.Find(ctx, of, filter, func(s *inspect.Found) error {
					found++
					return row(s.Cells(len(names) > 1), s)
				})
				if err != nil {
					return err
				}
				total += n
			}
			return nil
		})
		if err == nil && printable.IsTable(o.output) {
			fmt.Fprintf(stderr, "federationctl: %s of %s\n", status.Number(found), status.Count(total, "service"))
		}
		return err
	})
	flags := command.Flags()
	flags.StringVar(&of, "of", "", "`owner` or server name of the catalog; none: all")
	flags.StringArrayVar(&labels, "label", nil, "`KEY=VALUE` that a service has among its labels, KEY=* for any value; repeatable, all have to match")
	flags.StringVar(&address, "address", "", "`IP` address or host name of an endpoint")
	return command
}

// atOnce is how many rows of a table are laid out at once: more come below them, in columns
// that are as wide or wider.
const atOnce = 500

// list writes a list of objects: rows of a table or, in another format, an object each.
func (o *statusOptions) list(out io.Writer, titles []string, each func(row func(cells []string, object any) error) error) error {
	width := terminalWidth(out)
	if width == 0 {
		width = printable.LineWidth
	}
	columns, rows := printable.Columns{Titles: titles, Width: width}, [][]string(nil)
	flush := func() error {
		if !printable.IsTable(o.output) || len(rows) == 0 {
			return nil
		}
		_, err := io.WriteString(out, strings.Join(columns.Lines(rows), "\n")+"\n")
		rows = rows[:0]
		return err
	}
	err := each(func(cells []string, object any) error {
		if printable.IsTable(o.output) {
			if rows = append(rows, cells); len(rows) == atOnce {
				return flush()
			}
			return nil
		}
		text, err := printable.JSON(object)
		if err == nil {
			_, err = io.WriteString(out, text)
		}
		return err
	})
	if err == nil {
		err = flush()
	}
	return failure(err)
}
