// SPDX-License-Identifier: MPL-2.0

package syncd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/automation/config"
	"github.com/wanfed/wanfed/automation/state"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/tlsutil"
)

// servers connects to the servers of a datacenter.
type servers struct {
	http *api.Client // HTTP API of the source of data
	id   *tlsutil.Identity
	dc   string
	conn *grpc.ClientConn

	mu    sync.Mutex
	known []string // addresses of server ports
	fixed bool     // they are configured
}

// loadIdentity loads the certificate of the daemon.
func loadIdentity(w config.Wanfed, logger *slog.Logger) (*tlsutil.Identity, error) {
	if w.CA == "" || w.Cert == "" || w.Key == "" {
		return nil, errors.New("the block wanfed needs ca, cert and key: " +
			"create a certificate with: wanfed tls cert create --sync --datacenter DC")
	}
	id, err := tlsutil.Load(tlsutil.Files{CA: w.CA, Cert: w.Cert, Key: w.Key}, tlsutil.DefaultDomain, logger)
	if err != nil {
		return nil, err
	}
	if p := id.Peer(); p.Role != tlsutil.RoleSync {
		return nil, fmt.Errorf("%s: the role of the certificate is %s, and a sync daemon needs the role sync: "+
			"create it with: wanfed tls cert create --sync --datacenter %s", w.Cert, p.Role, p.DC)
	}
	return id, nil
}

// CheckFiles checks the certificates and keys that a configuration names: those
// of the daemon, unless another file names them, of its HTTP API, and of an agent
// of Consul.
func CheckFiles(cfg *config.Config) error {
	var errs []error
	if w := cfg.Wanfed; w.CA != "" || w.Cert != "" || w.Key != "" {
		_, err := loadIdentity(w, slog.New(slog.DiscardHandler))
		errs = append(errs, err)
	}
	if cfg.Wanfed.FromConsul {
		agent, err := cfg.ConsulAgent().Client()
		if err == nil {
			err = agent.Close()
		}
		errs = append(errs, err)
	}
	if cfg.StateKeyFile != "" {
		_, err := state.ReadKeys(cfg.StateKeyFile)
		errs = append(errs, err)
	}
	_, err := apiTLS(cfg.TLS)
	return settings.Join(append(errs, err)...)
}

// connect returns connections to the servers, and to the source of data. If
// wanfed is the source, connect waits for the first response of its HTTP API
// until ctx ends.
func connect(ctx context.Context, cfg *config.Config, id *tlsutil.Identity, logger *slog.Logger) (*servers, error) {
	if cfg.Wanfed.FromConsul {
		return connectConsul(cfg, id)
	}
	client := api.ClientConfig{Addr: cfg.Consul.Address}
	if !strings.Contains(client.Addr, "://") {
		client.Addr = "http://" + client.Addr
		if cfg.Consul.TLS.Enabled {
			client.Addr = "https" + strings.TrimPrefix(client.Addr, "http")
		}
	}
	if strings.HasPrefix(client.Addr, "https://") {
		client.Identity, client.ServerName = id, cfg.Consul.TLS.ServerName
	}
	c, err := api.NewClient(client)
	if err != nil {
		return nil, err
	}
	s := &servers{http: c, id: id, dc: id.Peer().DC, known: cfg.Wanfed.Addresses, fixed: len(cfg.Wanfed.Addresses) > 0}
	for pause := (backoff.Backoff{Min: 100 * time.Millisecond, Max: 2 * time.Second}); ; {
		st, err := c.Status(ctx, api.QueryOptions{})
		switch {
		case api.IsStatus(err, http.StatusNotFound):
			return nil, errors.Join(fmt.Errorf(`%s is not a server of wanfed; if it is an agent of Consul, set source = "consul" and `+
				`address in the block wanfed`, client.Addr), c.Close())
		case err == nil && st.Datacenter != s.dc:
			return nil, fmt.Errorf("the server at %s belongs to %s, and the certificate of the daemon to %s",
				client.Addr, st.Datacenter, s.dc)
		case err == nil:
			s.conn, err = api.NewServerClient(id, s.dc, s.addresses)
			return s, err
		case ctx.Err() != nil:
			return nil, fmt.Errorf("connect to the servers: %w", err)
		}
		logger.Warn("cannot connect to a server", "addr", client.Addr, "err", err)
		backoff.Sleep(ctx, pause.Next(), nil)
	}
}

// connectConsul returns connections to the servers of wanfed and to an agent of
// Consul, which is the source of data. It waits for no response.
func connectConsul(cfg *config.Config, id *tlsutil.Identity) (*servers, error) {
	agent, err := cfg.ConsulAgent().Client()
	if err != nil {
		return nil, err
	}
	s := &servers{http: agent, id: id, dc: id.Peer().DC, known: cfg.Wanfed.Addresses, fixed: true}
	if s.conn, err = api.NewServerClient(id, s.dc, s.addresses); err != nil {
		return nil, errors.Join(err, agent.Close())
	}
	return s, nil
}

func (s *servers) close() error { return errors.Join(s.conn.Close(), s.http.Close()) }

// addresses returns the addresses of the server ports. It reads them from the
// HTTP API, unless they are configured, and returns the last known ones if the
// API does not respond.
func (s *servers) addresses(ctx context.Context) ([]string, error) {
	if s.fixed {
		return s.known, nil
	}
	members, err := s.http.Members(ctx, false, api.QueryOptions{})
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		if len(s.known) > 0 {
			err = nil
		}
		return s.known, err
	}
	s.known = nil
	for _, m := range members {
		s.known = append(s.known, net.JoinHostPort(m.Addr, strconv.Itoa(int(m.Port))))
	}
	return s.known, nil
}
