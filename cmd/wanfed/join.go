// SPDX-License-Identifier: MPL-2.0

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/enroll"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/tlsutil"
)

func newJoin() *cobra.Command {
	var j join
	cmd := &cobra.Command{
		Use:   "join TOKEN",
		Short: "Join a federation with a token",
		Long: `Join this machine to a federation with the token that "wanfed token issue" has
printed. With - in place of TOKEN, the command reads the token from stdin.

The command creates the private keys on this machine. It sends a certificate
request through a gateway in the token to a server, which it verifies by the
fingerprint in the token. It writes certificates and settings, starts the server
and the gateway, waits until they are ok, and exits. Both continue in the
background: see "wanfed init --help".

The role of the token decides what this machine becomes: the first machine of a
new datacenter, with a server, a gateway, and a CA that signs certificates of that
datacenter only; or a further server, a further gateway, or the machine of an
operator, which runs nothing.`,
		Example: `  wanfed join wanfed1.CiBo... --wan 203.0.113.2:8443
  wanfed join - --dir /srv/wanfed --wan gw.dc2.example.com:8443 <token`,
		Args: exactArgs("TOKEN"),
		RunE: func(cmd *cobra.Command, args []string) error { return j.run(cmd, args[0]) },
	}
	cmd.Flags().StringVar(&j.dir, "dir", "", dirUsage)
	cmd.Flags().StringVar(&j.node, "node", "", "`name` of the new server, gateway or operator (default: a free name)")
	j.addresses.addFlags(cmd)
	j.start.addFlags(cmd)
	return cmd
}

// join has the flags of the command join.
type join struct {
	dir, node string
	addresses addresses
	start     starter
}

// maxTokenInput bounds the token on stdin, in bytes.
const maxTokenInput = 16 << 10

func (j *join) run(cmd *cobra.Command, text string) error {
	l, err := newLayout(j.dir)
	if err != nil || j.start.done(cmd, l) {
		return err
	}
	if text == "-" {
		b, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxTokenInput))
		if err != nil {
			return fmt.Errorf("read the token: %w", err)
		}
		text = string(b)
	}
	token, err := enroll.Parse(text)
	if err != nil {
		return usageError{err}
	}
	role := token.Role()
	withServer := role == enroll.RoleDatacenter || role == enroll.RoleServer
	withGateway := role == enroll.RoleDatacenter || role == enroll.RoleGateway
	if withServer || withGateway {
		if err := j.addresses.complete(withGateway); err != nil {
			return err
		}
	}
	if role == enroll.RoleDatacenter && j.node != "" {
		return usagef("--node is not for a new datacenter: its nodes are srv1 and gw1")
	}
	if err := j.start.check(cmd, l, j.addresses, withServer, withGateway); err != nil {
		return err
	}
	files, err := j.redeem(cmd, token, l)
	if err != nil {
		return err
	}
	if err := l.write(files); err != nil {
		return fmt.Errorf("%w; the token is used: create another one", err)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "wrote the certificates and settings of %s in %s\n", token.Datacenter(), l.conf)
	if !withServer && !withGateway {
		return nil
	}
	return j.start.run(cmd, l, j.addresses, token.Datacenter())
}

// redeem redeems the token, and returns the files of this machine.
func (j *join) redeem(cmd *cobra.Command, token *enroll.Token, l layout) (newFiles, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create a key: %w", err)
	}
	result, err := enroll.Redeem(cmd.Context(), token, enroll.Request{Key: key, Node: j.node})
	if err != nil {
		return nil, err
	}
	pair := tlsutil.KeyPair{Cert: result.Certificate}
	if pair.Key, err = tlsutil.EncodeKey(key); err != nil {
		return nil, err
	}
	m := member{
		dc: token.Datacenter(), domain: token.Domain(), primary: result.Primary, primaryGateways: result.PrimaryGateways,
		encrypted: result.GossipKey != "",
	}
	files := newFiles{l.caFile(): result.CAs}
	if m.encrypted {
		if _, err := gossip.ParseKey(result.GossipKey); err != nil {
			return nil, fmt.Errorf("the gossip key from the server: %w", err)
		}
		files[l.gossipKey()] = []byte(result.GossipKey + "\n")
	}
	switch token.Role() {
	case enroll.RoleDatacenter:
		m.primaryGateways = token.Addresses()
		return files, files.addFirst(l, m, j.addresses, pair, result.CAs)
	case enroll.RoleServer:
		m.servers = result.Servers
		files.addPair(l.cert(tlsutil.RoleServer), pair)
		files[l.serverHCL()] = serverSettings(l, m, j.addresses, result.Node)
	case enroll.RoleGateway:
		m.servers = result.Servers
		files.addPair(l.cert(tlsutil.RoleGateway), pair)
		files[l.gatewayHCL()] = gatewaySettings(l, m, j.addresses, result.Node, gatewayAdminAddr)
	case enroll.RoleOperator:
		files.addPair(l.cert(tlsutil.RoleOperator), pair)
	}
	return files, nil
}
