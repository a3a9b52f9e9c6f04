package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/inspect"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/internal/status"
)

func servicesCommand(ctx context.Context) *cobra.Command {
	var o statusOptions
	var of string
	command := &cobra.Command{
		Use:   "services [WORD...]",
		Short: "List the services that a running CoreDNS or owner holds",
		Long: `services lists the services of the owners that a CoreDNS follows, as these publish them,
or of an owner's catalogs. A WORD is a part of the name, the fqdn or an address of a
service, or of a label written as KEY=VALUE. Of several words a service must have all.`,
		Example: `  federationctl services team=storefront
  federationctl services 192.0.2.10 --of owner.example:8008 -o json`,
	}
	outputFlag(command, &o.output)
	command.Flags().StringVar(&of, "of", "", "`owner` or server name of the catalog; none: all")
	return o.runOnEndpoint(command, func(e *inspect.Endpoint, words []string, out io.Writer) error {
		names, err := e.CatalogNames(ctx, of)
		if err != nil {
			return failureOf(err)
		}
		table, several, found, total := printable.IsTable(o.output), len(names) > 1, 0, 0
		show := func(s *inspect.FoundService) error {
			text, err := s.FormatLine(several), error(nil)
			if found++; !table {
				text, err = printable.JSON(s)
			} else if found == 1 {
				text = inspect.TableHeading(several) + text
			}
			if err == nil {
				_, err = io.WriteString(out, text)
			}
			return err
		}
		for _, of := range names {
			n, err := e.FindServices(ctx, of, words, show)
			if err != nil {
				return failureOf(err)
			}
			total += n
		}
		if table {
			fmt.Fprintf(command.ErrOrStderr(), "federationctl: %s of %s\n", status.FormatNumber(found), status.CountNoun(total, "service"))
		}
		return nil
	})
}
