// SPDX-License-Identifier: MPL-2.0

package enroll

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/ratelog"
	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// Config configures a Service. All fields are required.
type Config struct {
	// DC and Node name this server.
	DC, Node string
	// Authority signs certificates.
	Authority Authority
	// CAs returns the certificates of the CAs that all datacenters trust, in PEM.
	CAs func() ([]byte, error)
	// Backend has the tokens, with strong reads.
	Backend resource.Backend
	// Known reports whether a datacenter exists.
	Known func(dc string) bool
	// Taken reports whether a server or a gateway of this datacenter has the
	// name. role is that of a token.
	Taken func(role, node string) bool
	// Federation returns the primary datacenter, the addresses of its gateways if
	// this datacenter is a secondary, and the addresses of the local servers.
	Federation func() (primary string, gateways, servers []string)
	// GossipKey returns the key with which gossip is encrypted, in base64, or ""
	// if gossip is not encrypted.
	GossipKey func() string
	// Record receives the record of each request. If it returns an error, the
	// certificate is not sent.
	Record func(ctx context.Context, c *policy.Call, err error) error
	Logger *slog.Logger
}

const (
	// maxClients is the number of clients that a Service serves at the same time.
	maxClients = 32
	// minInterval is the minimum time between two requests.
	minInterval = 20 * time.Millisecond
)

// Service issues certificates. It is safe for concurrent use.
type Service struct {
	cfg     Config
	log     *ratelog.Logger[string]
	clients chan struct{} // size maxClients: one element for each client
	issuing sync.Mutex    // held while a name is chosen and stored

	interval time.Duration // minInterval; changed by tests

	mu   sync.Mutex
	next time.Time // of the next request
}

// NewService returns a Service.
func NewService(cfg Config) *Service {
	return &Service{
		cfg: cfg, log: ratelog.New[string](cfg.Logger), clients: make(chan struct{}, maxClients), interval: minInterval,
	}
}

// Serve serves one client. It is a wanfed.Handler of an anonymous protocol.
func (s *Service) Serve(ctx context.Context, c *tls.Conn, _ tlsutil.Peer) {
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	_ = c.SetDeadline(deadline) // if it fails, reads and writes fail too
	call := &policy.Call{
		Caller: policy.Caller{Peer: tlsutil.Peer{Role: tlsutil.RoleAnonymous, DC: s.cfg.DC, Node: s.cfg.Node}},
		Method: wanfed.ProtoEnroll, Addr: c.RemoteAddr().String(),
	}
	resp, err := s.serve(policy.WithCall(ctx, call), c, call)
	if recorded := s.cfg.Record(ctx, call, err); recorded != nil && err == nil {
		err = fmt.Errorf("%w; the token is used: the request cannot be recorded: %w", errUnavailable, recorded)
	}
	if err != nil {
		s.log.Log("refused", slog.LevelWarn, "enrollment refused", "remote", call.Addr, "err", err)
		resp = &pb.EnrollResponse{Refused: publicText(err)}
	}
	if err := writeMessage(c, resp); err != nil {
		s.cfg.Logger.Warn("cannot send an enrollment response", "remote", call.Addr, "err", err)
	}
}

// errUnavailable means that this server cannot check a token now.
var errUnavailable = errors.New("the server cannot enroll now; repeat the request")

// publicText returns the text of an error for the client. A client without a
// valid token does not receive the reason, and no client the names of files.
func publicText(err error) string {
	if errors.Is(err, ErrNoCA) {
		return ErrNoCA.Error() + ", because it has no CA; create the token on the machine that has it"
	}
	for _, public := range []error{ErrToken, errUnavailable, errSigner, errAuthority} {
		if errors.Is(err, public) {
			return public.Error()
		}
	}
	return err.Error()
}

// serve reads and executes one request.
func (s *Service) serve(ctx context.Context, c *tls.Conn, call *policy.Call) (*pb.EnrollResponse, error) {
	select {
	case s.clients <- struct{}{}:
		defer func() { <-s.clients }()
	default:
		return nil, fmt.Errorf("%w: %d clients enroll at the same time, which is the limit", errUnavailable, maxClients)
	}
	if err := s.pace(ctx); err != nil {
		return nil, err
	}
	signed := &pb.SignedEnrollRequest{}
	if err := readMessage(c, signed); err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	req := &pb.EnrollRequest{}
	if err := proto.Unmarshal(signed.Request, req); err != nil {
		return nil, fmt.Errorf("the request is invalid: %w", err)
	}
	if resource.CheckName(req.Token) == nil {
		call.Method += "/" + req.Token
	}
	text, err := signedText(c.ConnectionState(), signed.Request)
	if err != nil {
		return nil, err
	}
	return s.redeem(ctx, req, call.Addr, func(public []byte) bool {
		return ed25519.Verify(public, text, signed.Signature)
	})
}

// pace waits until the next request may start. Guesses are therefore slow.
func (s *Service) pace(ctx context.Context) error {
	s.mu.Lock()
	now := time.Now()
	wait := max(0, s.next.Sub(now))
	s.next = now.Add(wait + s.interval)
	s.mu.Unlock()
	backoff.Sleep(ctx, wait, nil)
	return ctx.Err()
}

// maxConflicts bounds the attempts to store one use of a token.
const maxConflicts = 5

// redeem issues the certificate for a request. verify verifies its signature.
func (s *Service) redeem(
	ctx context.Context, req *pb.EnrollRequest, addr string, verify func(public []byte) bool,
) (*pb.EnrollResponse, error) {
	var err error
	for range maxConflicts {
		var stored *pb.Resource
		var t *pb.EnrollmentToken
		if stored, t, err = s.token(ctx, req, verify); err != nil {
			return nil, err
		}
		var resp *pb.EnrollResponse
		if resp, err = s.issue(ctx, req, stored, t, addr); !errors.Is(err, resource.ErrConflict) {
			return resp, err
		}
	}
	return nil, err
}

// token returns the stored token of a request, if it is valid.
func (s *Service) token(
	ctx context.Context, req *pb.EnrollRequest, verify func(public []byte) bool,
) (*pb.Resource, *pb.EnrollmentToken, error) {
	refuse := func(why string) (*pb.Resource, *pb.EnrollmentToken, error) {
		return nil, nil, fmt.Errorf("%w: token %.32q for %.64q, role %.16q: %s", ErrToken, req.Token, req.Datacenter, req.Role, why)
	}
	if resource.CheckName(req.Token) != nil {
		return refuse("the id is invalid")
	}
	stored, err := s.cfg.Backend.Read(ctx, resource.Strong, resource.ID(Type, req.Token))
	if errors.Is(err, resource.ErrNotFound) {
		return refuse("no such token")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w: read the token: %w", errUnavailable, err)
	}
	t, err := resource.Decode[*pb.EnrollmentToken](stored)
	if err == nil {
		err = check(t)
	}
	if err != nil {
		return nil, nil, err
	}
	switch expires := t.Expires.AsTime(); {
	case !verify(t.PublicKey):
		return refuse("the signature is wrong")
	case t.Uses == 0:
		return refuse("it is used")
	case !time.Now().Before(expires):
		return refuse("it expired at " + expires.UTC().Format(time.RFC3339))
	case req.Datacenter != t.Datacenter:
		return refuse("it is for datacenter " + t.Datacenter)
	case req.Role != t.Role:
		return refuse("it is for role " + t.Role)
	}
	return stored, t, nil
}

// issue signs the certificate, and stores one use of the token. It fails with
// resource.ErrConflict if the token has changed since it was read.
func (s *Service) issue(
	ctx context.Context, req *pb.EnrollRequest, stored *pb.Resource, t *pb.EnrollmentToken, addr string,
) (*pb.EnrollResponse, error) {
	csr, err := tlsutil.ParseCSR(req.Csr)
	if err != nil {
		return nil, err
	}
	s.issuing.Lock()
	defer s.issuing.Unlock()
	node, err := s.chooseNode(ctx, t, req.Node)
	if err != nil {
		return nil, err
	}
	cas, err := s.cfg.CAs()
	if err != nil {
		return nil, err
	}
	cert, err := s.cfg.Authority.issue(ctx, t.Role, t.Datacenter, node, csr)
	if err != nil {
		return nil, err
	}
	chain, err := tlsutil.ParseCerts(cert)
	if err != nil {
		return nil, err
	}
	serial := chain[0].SerialNumber.Text(16)
	t.Uses--
	t.Enrollments = append(t.Enrollments, &pb.Enrollment{
		Node: node, Serial: serial, Address: addr, Time: timestamppb.Now(),
	})
	next, err := resource.WithData(stored, t)
	if err != nil {
		return nil, err
	}
	if _, err := s.cfg.Backend.Commit(ctx, resource.PutOp(next, stored.GetVersion())); err != nil {
		return nil, fmt.Errorf("store the use of the token: %w", err)
	}
	s.cfg.Logger.Info("certificate issued", "peer", t.Role+"/"+t.Datacenter+"/"+node, "serial", serial,
		"token", req.Token, "remote", addr)
	resp := &pb.EnrollResponse{Certificate: cert, Cas: cas, Node: node}
	resp.Primary, resp.PrimaryGateways, resp.Servers = s.cfg.Federation()
	if t.Role == RoleServer || t.Role == RoleDatacenter {
		resp.GossipKey = s.cfg.GossipKey()
	}
	return resp, nil
}

// nodePrefixes begin the names that a server chooses.
var nodePrefixes = map[string]string{RoleServer: "srv", RoleGateway: "gw", RoleOperator: "operator"}

// maxNodes bounds the names that chooseNode tries.
const maxNodes = 1000

// chooseNode returns the name of the new node: want if it is free, or a free
// name if want is empty. A datacenter has no node.
func (s *Service) chooseNode(ctx context.Context, t *pb.EnrollmentToken, want string) (string, error) {
	if t.Role == RoleDatacenter {
		if t.Datacenter == s.cfg.DC || s.cfg.Known(t.Datacenter) {
			return "", fmt.Errorf("datacenter %s exists; create a token for another server or gateway in %s itself, "+
				"or delete %s first with: wanfed federation delete %s", t.Datacenter, t.Datacenter, t.Datacenter, t.Datacenter)
		}
		return "", nil
	}
	if t.Datacenter != s.cfg.DC {
		return "", fmt.Errorf("role %s in %s: a server of %s issues certificates of %s only", t.Role, t.Datacenter, s.cfg.DC, s.cfg.DC)
	}
	issued, err := s.issued(ctx, t.Role)
	if err != nil {
		return "", err
	}
	if want != "" {
		if err := tlsutil.CheckLabel(want); err != nil {
			return "", fmt.Errorf("node: %w", err)
		}
		if s.cfg.Taken(t.Role, want) || slices.Contains(issued, want) {
			return "", fmt.Errorf("%s %s exists in %s; choose another name with --node", t.Role, want, s.cfg.DC)
		}
		return want, nil
	}
	for i := 1; i <= maxNodes; i++ {
		node := nodePrefixes[t.Role] + strconv.Itoa(i)
		if !s.cfg.Taken(t.Role, node) && !slices.Contains(issued, node) {
			return node, nil
		}
	}
	return "", errors.New("no free name; choose one with --node")
}

// issued returns the names in the certificates that were issued for a role and
// whose tokens still exist. Such a node may not run yet.
func (s *Service) issued(ctx context.Context, role string) (nodes []string, _ error) {
	tokens, _, err := s.cfg.Backend.List(ctx, resource.Strong, resource.Query{Type: Type})
	if err != nil {
		return nil, fmt.Errorf("read the tokens: %w", err)
	}
	for _, r := range tokens {
		t, err := resource.Decode[*pb.EnrollmentToken](r)
		if err != nil || t.Role != role {
			continue
		}
		for _, e := range t.Enrollments {
			nodes = append(nodes, e.Node)
		}
	}
	return nodes, nil
}
