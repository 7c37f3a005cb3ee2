// SPDX-License-Identifier: MPL-2.0

package enroll

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/netaddr"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// Roles of a token. A token of RoleDatacenter is for the CA of a new datacenter.
// Other tokens are for the certificate of one node of an existing datacenter.
const (
	RoleDatacenter = "datacenter"
	RoleServer     = "server"
	RoleGateway    = "gateway"
	RoleOperator   = "operator"
)

// certRoles are the roles of the certificates, by the role of the token.
var certRoles = map[string]tlsutil.Role{
	RoleServer: tlsutil.RoleServer, RoleGateway: tlsutil.RoleGateway, RoleOperator: tlsutil.RoleOperator,
}

// checkRole returns an error unless role is a role of a token.
func checkRole(role string) error {
	if role != RoleDatacenter && certRoles[role] == "" {
		return fmt.Errorf("role %q: must be datacenter, server, gateway or operator", role)
	}
	return nil
}

// Bounds of a token.
const (
	maxAddresses = 32
	maxText      = 8 << 10 // bytes of the text
	MaxUses      = 100
)

// prefix begins the text of each token. A later format has another prefix.
const prefix = "wanfed1."

// Token is a token with its secret.
type Token struct {
	text *pb.EnrollmentTokenText
	key  ed25519.PrivateKey
}

// New returns a token with a new secret. All other fields of text are required,
// except Domain.
func New(text *pb.EnrollmentTokenText) (*Token, error) {
	text = proto.CloneOf(text)
	text.Seed = make([]byte, ed25519.SeedSize)
	_, _ = rand.Read(text.Seed) // never fails
	return newToken(text)
}

func newToken(t *pb.EnrollmentTokenText) (*Token, error) {
	var errs []error
	if len(t.Seed) != ed25519.SeedSize || len(t.CaSha256) != sha256.Size {
		errs = append(errs, errors.New("the secret or the fingerprint is incomplete"))
	}
	if n := len(t.Addresses); n == 0 || n > maxAddresses {
		errs = append(errs, fmt.Errorf("%d addresses: must be 1 to %d", n, maxAddresses))
	}
	for _, a := range t.Addresses {
		errs = append(errs, netaddr.CheckHostPort(a))
	}
	errs = append(errs, tlsutil.CheckLabel(t.Server), tlsutil.CheckLabel(t.ServerDatacenter),
		tlsutil.CheckDomain(domainOf(t)), tlsutil.CheckLabel(t.Datacenter), checkRole(t.Role))
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return nil, errs[i]
	}
	return &Token{t, ed25519.NewKeyFromSeed(t.Seed)}, nil
}

func domainOf(t *pb.EnrollmentTokenText) string { return cmp.Or(t.Domain, tlsutil.DefaultDomain) }

// Datacenter returns the datacenter of the certificate.
func (t *Token) Datacenter() string { return t.text.Datacenter }

// Role returns the role of the certificate, such as RoleServer.
func (t *Token) Role() string { return t.text.Role }

// Domain returns the domain of names.
func (t *Token) Domain() string { return domainOf(t.text) }

// Addresses returns the addresses (host:port) that lead to the server.
func (t *Token) Addresses() []string { return t.text.Addresses }

// ID returns the id, which is the name of the resource of the token. It is not a
// secret.
func (t *Token) ID() string { return idOf(t.public()) }

func (t *Token) public() ed25519.PublicKey { return t.key.Public().(ed25519.PublicKey) }

func idOf(public []byte) string {
	sum := sha256.Sum256(public)
	return hex.EncodeToString(sum[:16])
}

// Resource returns the resource that makes the token valid until expires.
func (t *Token) Resource(expires time.Time, uses uint32) (*pb.Resource, error) {
	return resource.New(Type, t.ID(), &pb.EnrollmentToken{
		PublicKey: t.public(), Datacenter: t.text.Datacenter, Role: t.text.Role,
		Expires: timestamppb.New(expires), Uses: uses,
	})
}

// checksumSize is the number of bytes of the checksum at the end of a text. The
// checksum detects a text that was not copied completely.
const checksumSize = 4

// String returns the text of the token, which is a secret.
func (t *Token) String() string {
	b, err := proto.Marshal(t.text)
	if err != nil {
		panic(fmt.Sprintf("enroll: encode a token: %v", err)) // newToken has checked the text
	}
	sum := sha256.Sum256(b)
	return prefix + base64.RawURLEncoding.EncodeToString(append(b, sum[:checksumSize]...))
}

// Parse parses the text of a token. Its errors do not contain the text.
func Parse(text string) (*Token, error) {
	fault := func(why string) (*Token, error) {
		return nil, fmt.Errorf("the token %s; copy the complete line that wanfed token issue has printed", why)
	}
	encoded, ok := strings.CutPrefix(strings.TrimSpace(text), prefix)
	if !ok {
		return fault("does not begin with " + prefix)
	}
	if len(encoded) > maxText {
		return fault("is too long")
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(encoded)
	if err != nil || len(b) < checksumSize {
		return fault("is damaged")
	}
	b, sum := b[:len(b)-checksumSize], b[len(b)-checksumSize:]
	if want := sha256.Sum256(b); !bytes.Equal(sum, want[:checksumSize]) {
		return fault("is damaged or incomplete")
	}
	t := &pb.EnrollmentTokenText{}
	if err := proto.Unmarshal(b, t); err != nil {
		return fault("is damaged")
	}
	parsed, err := newToken(t)
	if err != nil {
		return nil, fmt.Errorf("the token has an invalid field: %w", err)
	}
	return parsed, nil
}
