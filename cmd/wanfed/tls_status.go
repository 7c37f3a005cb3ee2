// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/enroll"
	"github.com/wanfed/wanfed/internal/output"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/tlsutil"
)

func newTLSStatus() *cobra.Command {
	var o operator
	c := &cobra.Command{
		Use:   "status",
		Short: "List the certificates in use in all datacenters",
		Long: `List the certificates that the servers of all datacenters know to be in use: their
own, and those of the peers that have connections with them, such as gateways,
sync daemons and this command. A gateway appears when it has connected to a server.

With --output wide or json, the list has the serial numbers and the CAs that have
signed the certificates.

Renews is false for a certificate that must be replaced before Valid Until.
With --datacenter or --server, the command calls the servers of one datacenter. If
a datacenter or a server does not respond, the command prints the others and
fails.`,
		Example: `  wanfed tls status --dir /etc/wanfed
  wanfed tls status --dir /etc/wanfed --output json`,
		Args: noArgs,
	}
	o.addFlags(c)
	printer := output.AddFlag(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error { return tlsStatus(cmd, &o, printer()) }
	return c
}

// certificateInUse is the JSON of a certificate.
type certificateInUse struct {
	Datacenter string    `json:"datacenter"`
	Node       string    `json:"node"`
	Role       string    `json:"role"`
	Issuer     string    `json:"issuer"`
	Serial     string    `json:"serial"`
	NotAfter   time.Time `json:"not_after"`
	DaysLeft   int       `json:"days_left"`
	Renews     bool      `json:"renews"`
}

// tlsStatus prints the certificates of all datacenters, or of that of o.
func tlsStatus(cmd *cobra.Command, o *operator, out output.Printer) error {
	if err := o.checkFlags(cmd); err != nil {
		return err
	}
	id, err := loadIdentity(cmd, cmd.CommandPath())
	if err != nil {
		return err
	}
	dcs := []string{o.dc}
	if o.dc == "" {
		if dcs, err = datacentersOf(cmd); err != nil {
			return err
		}
	}
	var all []*pb.CertificateInUse
	var errs []error
	for _, dc := range dcs {
		resp, err := listCertificates(cmd, id, operator{dc: dc, server: o.server}, operatorTimeout)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", dc, err))
		}
		all = append(all, resp.GetCertificates()...)
		for _, node := range resp.GetUnreachable() {
			errs = append(errs, fmt.Errorf("%s of %s does not respond", output.Printable(node), dc))
		}
	}
	list := []certificateInUse{}
	for _, c := range enroll.MergeCertificates(all) {
		end := c.NotAfter.AsTime()
		list = append(list, certificateInUse{
			Datacenter: c.Datacenter, Node: c.Node, Role: tlsutil.Role(c.Role).String(), Issuer: c.Issuer, Serial: c.Serial,
			NotAfter: end, DaysLeft: int(time.Until(end).Hours() / 24), Renews: c.Renews,
		})
	}
	return settings.Join(append(errs, out.Print(list, func() error { return out.Table(certificateRows(list, out.IsWide())) }))...)
}

// datacentersOf returns the names of the known datacenters.
func datacentersOf(cmd *cobra.Command) (names []string, err error) {
	cl, err := newClient(cmd, 0)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	st, err := cl.Status(cmd.Context(), api.QueryOptions{})
	if err != nil {
		return nil, explainHTTP(err)
	}
	for _, d := range st.Datacenters {
		names = append(names, d.Name)
	}
	return names, nil
}

// listCertificates calls a server of a datacenter.
func listCertificates(
	cmd *cobra.Command, id *tlsutil.Identity, at operator, timeout time.Duration,
) (*pb.ListCertificatesResponse, error) {
	ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
	defer cancel()
	if at.server == "" {
		if err := at.find(cmd); err != nil {
			return nil, err
		}
	}
	cc, closeAll, err := api.DialServer(ctx, id, at.server, "", at.dc)
	if err != nil {
		return nil, err
	}
	defer closeAll()
	resp, err := pb.NewEnrollmentServiceClient(cc).ListCertificates(ctx, &pb.ListCertificatesRequest{})
	return resp, at.explain(ctx, "tls status", err)
}

func certificateRows(list []certificateInUse, wide bool) [][]string {
	rows := [][]string{{"Datacenter", "Role", "Node", "Valid Until", "Days", "Renews"}}
	if wide {
		rows[0] = append(rows[0], "Serial", "Issuer")
	}
	for _, c := range list {
		row := []string{
			c.Datacenter, c.Role, c.Node, c.NotAfter.UTC().Format(time.RFC3339), strconv.Itoa(c.DaysLeft),
			strconv.FormatBool(c.Renews),
		}
		if wide {
			row = append(row, output.Printable(c.Serial), output.Printable(c.Issuer))
		}
		rows = append(rows, row)
	}
	return rows
}
