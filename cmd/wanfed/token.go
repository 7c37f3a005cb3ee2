// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/enroll"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/serverd"
	"github.com/wanfed/wanfed/tlsutil"
)

func newToken() *cobra.Command {
	return newGroup("token", "Create the tokens with which machines join", newTokenIssue())
}

// maxTTL bounds the validity of a token.
const maxTTL = 7 * 24 * time.Hour

func newTokenIssue() *cobra.Command {
	var i issuing
	cmd := &cobra.Command{
		Use:   "issue",
		Short: "Create a token with which a machine joins",
		Long: `Create a token with which a machine joins the federation, and print it alone on
stdout. The token is a secret: its holder becomes a member of the federation.
It has the addresses of the gateways, the fingerprint of the CA and a secret that
is valid for --uses machines during --ttl. The servers store only a public key,
as a resource of type enroll/v1/Token: to revoke a token, delete the resource.

Run the command on a machine with the keys of a CA: that of "wanfed init" for a new
datacenter, and the first machine of a datacenter for a further server, a further
gateway or an operator of that datacenter.`,
		Example: `  wanfed token issue --dc dc2                        # for a new datacenter
  wanfed token issue --role server --dir /srv/wanfed # for a further server of this one
  wanfed token issue --role gateway --uses 2 --ttl 1h
  wanfed resource list token --dir /srv/wanfed`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return i.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&i.dc, "dc", "", "`name` of the datacenter of the machine (default: this one)")
	f.StringVar(&i.role, "role", "",
		"`role` in an existing datacenter: server, gateway or operator (default: the first machine of a new datacenter)")
	f.DurationVar(&i.ttl, "ttl", 15*time.Minute, "`duration` of the validity, at most 168h")
	f.Uint32Var(&i.uses, "uses", 1, "`number` of machines that can join")
	f.StringVar(&i.dir, "dir", "", dirUsage)
	_ = cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions(
		[]string{enroll.RoleServer, enroll.RoleGateway, enroll.RoleOperator}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// issuing has the flags of the command token issue.
type issuing struct {
	dc, role, dir string
	ttl           time.Duration
	uses          uint32
}

func (i *issuing) run(cmd *cobra.Command) error {
	l, err := newLayout(i.dir)
	if err != nil {
		return err
	}
	s := serverd.DefaultSettings()
	if err := settings.Read(l.serverHCL(), &s); err != nil {
		return fmt.Errorf("%w; run the command on the machine of wanfed init, or set --dir", err)
	}
	if err := i.check(s); err != nil {
		return err
	}
	authority := enroll.Authority{Dir: l.caDir(), DC: s.DC, Domain: s.Domain}
	if len(s.SignerCommand) > 0 {
		authority.Command = enroll.NewSignerCommand(s.SignerCommand, nil)
	}
	if err := authority.CanSign(i.role); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), operatorTimeout)
	defer cancel()
	text, err := i.describe(ctx, s)
	if err != nil {
		return err
	}
	token, err := enroll.New(text)
	if err != nil {
		return err
	}
	if err := i.store(ctx, l, s, token); err != nil {
		return err
	}
	fmt.Fprintln(cmd.OutOrStdout(), token)
	return nil
}

// check checks the flags and sets their defaults.
func (i *issuing) check(s serverd.Settings) error {
	if i.dc = cmp.Or(i.dc, s.DC); tlsutil.CheckLabel(i.dc) != nil {
		return usagef("--dc: %w", tlsutil.CheckLabel(i.dc))
	}
	switch {
	case i.ttl <= 0 || i.ttl > maxTTL:
		return usagef("--ttl %v: must be above 0 and at most %v", i.ttl, maxTTL)
	case i.uses < 1 || i.uses > enroll.MaxUses:
		return usagef("--uses %d: must be 1 to %d", i.uses, enroll.MaxUses)
	case i.dc != s.DC && i.uses > 1:
		return usagef("--uses is for machines of an existing datacenter: one machine is the first of %s", i.dc)
	case i.dc == s.DC && i.role == "":
		return usagef("--role is required for a machine of %s, which exists: server, gateway or operator; "+
			"for a new datacenter, set --dc", s.DC)
	case i.dc != s.DC && i.role != "":
		return usagef("--role is for a machine of an existing datacenter: run the command in %s, without --dc; "+
			"for the first machine of %s, omit --role", i.dc, i.dc)
	case i.dc != s.DC:
		i.role = enroll.RoleDatacenter
	case i.role != enroll.RoleServer && i.role != enroll.RoleGateway && i.role != enroll.RoleOperator:
		return usagef("--role %q: must be server, gateway or operator", i.role)
	}
	return nil
}

// gatewayTime is the time for which a gateway that has just registered is waited
// for: its registration goes to the primary and back.
const gatewayTime = 3 * time.Second

// describe returns the text of the token without its secret.
func (i *issuing) describe(ctx context.Context, s serverd.Settings) (*pb.EnrollmentTokenText, error) {
	sum, err := fingerprintOf(s)
	if err != nil {
		return nil, err
	}
	c, err := api.NewClient(api.ClientConfig{Addr: s.HTTPAddr})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var lan, wan []string
	for deadline := time.Now().Add(gatewayTime); len(wan) == 0; {
		byDC, _, err := c.MeshGateways(ctx, api.QueryOptions{})
		if err != nil {
			return nil, explainHTTP(err)
		}
		for _, g := range byDC[s.DC] {
			if g.Healthy() {
				lan, wan = append(lan, g.Service.Addr("lan")), append(wan, g.Service.Addr("wan"))
			}
		}
		if len(wan) > 0 || !time.Now().Before(deadline) || ctx.Err() != nil {
			break
		}
		backoff.Sleep(ctx, 100*time.Millisecond, nil)
	}
	if len(wan) == 0 {
		return nil, fmt.Errorf("%s has no healthy gateway, through which a machine could join; see: wanfed status", s.DC)
	}
	addrs := wan
	if i.role != enroll.RoleDatacenter { // a machine of this datacenter reaches the server itself
		addrs = append(append([]string{serverAddr(s)}, lan...), wan...)
	}
	domain := s.Domain
	if domain == tlsutil.DefaultDomain {
		domain = ""
	}
	return &pb.EnrollmentTokenText{
		CaSha256: sum, Addresses: addrs, Server: s.Node, ServerDatacenter: s.DC, Domain: domain,
		Datacenter: i.dc, Role: i.role,
	}, nil
}

// serverAddr returns the address of the server port.
func serverAddr(s serverd.Settings) string {
	return net.JoinHostPort(s.Advertise, strconv.Itoa(s.Port))
}

// fingerprintOf returns the SHA-256 of the CA certificate that verifies the
// certificate of a server.
func fingerprintOf(s serverd.Settings) ([]byte, error) {
	var certs [2][]*x509.Certificate
	for n, path := range []string{s.CAFile, s.CertFile} {
		b, err := os.ReadFile(path)
		if err == nil {
			certs[n], err = tlsutil.ParseCerts(b)
		}
		if err != nil {
			return nil, fmt.Errorf("certificate file %s: %w", path, err)
		}
	}
	for _, ca := range certs[0] {
		if tlsutil.Verify(certs[1], []*x509.Certificate{ca}, s.Domain, time.Now()) == nil {
			sum := sha256.Sum256(ca.Raw)
			return sum[:], nil
		}
	}
	return nil, errors.New("no certificate in " + s.CAFile + " verifies " + s.CertFile)
}

// store makes the token valid. It deletes tokens that expired more than a day
// ago.
func (i *issuing) store(ctx context.Context, l layout, s serverd.Settings, token *enroll.Token) error {
	id, err := tlsutil.Load(l.cert(tlsutil.RoleOperator), s.Domain, nil)
	if err != nil {
		return err
	}
	cc, closeAll, err := api.DialServer(ctx, id, serverAddr(s), s.Node, s.DC)
	if err != nil {
		return err
	}
	defer closeAll()
	client := pb.NewResourceServiceClient(cc)
	r, err := token.Resource(time.Now().Add(i.ttl), i.uses)
	if err != nil {
		return err
	}
	r.Id.Uid, r.Generation = "", "" // the server chooses both
	if _, err := client.Write(ctx, &pb.WriteRequest{Resource: r}); err != nil {
		return fmt.Errorf("store the token: %w", resource.FromStatus(err))
	}
	old, err := client.List(ctx, &pb.ListRequest{Type: enroll.Type})
	if err != nil {
		return nil // the next command deletes them
	}
	for _, r := range old.GetResources() {
		t, err := resource.Decode[*pb.EnrollmentToken](r)
		if err == nil && time.Since(t.GetExpires().AsTime()) > 24*time.Hour {
			_, _ = client.Delete(ctx, &pb.DeleteRequest{Id: r.GetId()}) // the same
		}
	}
	return nil
}
