// SPDX-License-Identifier: MPL-2.0

package enroll

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/tlsutil"
)

// Renewer renews the certificate of a process, if it is one of enrolment. All
// fields are required.
type Renewer struct {
	Identity *tlsutil.Identity
	// Connect returns a connection to a server of the datacenter of the process.
	Connect func() (grpc.ClientConnInterface, error)
	Logger  *slog.Logger
}

const (
	// renewTimeout bounds one attempt.
	renewTimeout = 15 * time.Second
	// checkInterval is the longest time between two looks at the clock, which may
	// have been set.
	checkInterval = time.Hour
	// Bounds of the pause after an attempt.
	minRenewPause = time.Second
	maxRenewPause = 10 * time.Minute
	// maxReissuePause bounds the pause while another CA of all datacenters issues.
	maxReissuePause = 5 * time.Second
)

// sleep sleeps for d, until ctx ends, or until one of the channels is closed.
func sleep(ctx context.Context, d time.Duration, a, b <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-a:
	case <-b:
	case <-ctx.Done():
	}
}

// Run renews the certificate at two thirds of its life, and when another CA of all
// datacenters issues, until ctx ends. After a failure it tries again with a
// backoff. It does nothing for a certificate of another PKI, and considers a
// certificate that was replaced otherwise. It returns nil.
func (r Renewer) Run(ctx context.Context) error {
	retry := backoff.Backoff{Min: minRenewPause, Max: maxRenewPause}
	reissue := backoff.Backoff{Min: minRenewPause, Max: maxReissuePause}
	for ctx.Err() == nil {
		changed, trust, leaf := r.Identity.Changed(), r.Identity.TrustChanged(), r.Identity.Leaf()
		wait, root := checkInterval, ""
		if tlsutil.Enrolled(leaf) {
			wait, root = min(wait, time.Until(tlsutil.RenewAt(leaf))), r.Identity.MissingRoot()
		}
		if wait > 0 {
			retry.Reset()
			if root == "" {
				reissue.Reset()
			} else if err := r.Renew(ctx, root); err == nil {
				r.Identity.ReportRenewal(nil)
				continue
			} else if wait = min(wait, reissue.Next()); ctx.Err() == nil {
				// The CA of the datacenter is replaced first, so this is not a failure.
				r.Logger.Info("certificate not reissued yet", "err", err)
			}
			sleep(ctx, wait, changed, trust)
			continue
		}
		err := r.Renew(ctx, "")
		if ctx.Err() != nil {
			break
		}
		r.Identity.ReportRenewal(err)
		if err == nil {
			backoff.Sleep(ctx, minRenewPause, nil) // a CA that expires soon gives certificates of a short life
			continue
		}
		r.Logger.Warn("cannot renew the certificate", "not_after", leaf.NotAfter.UTC().Format(time.RFC3339),
			"serial", leaf.SerialNumber.Text(16), "err", err)
		// A certificate of a short life has more attempts.
		retry.Max = max(minRenewPause, min(maxRenewPause, time.Until(leaf.NotAfter)/10))
		backoff.Sleep(ctx, retry.Next(), changed)
	}
	return nil
}

// Renew renews the certificate now: it makes a new key, requests the certificate
// with the present one, and replaces the files of the Identity. root is the
// fingerprint of the CA of all datacenters that the certificate must be below.
// Empty: any.
func (r Renewer) Renew(ctx context.Context, root string) error {
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("create a key: %w", err)
	}
	before, _, _ := r.Identity.Trust()
	old := r.Identity.Leaf()
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: old.DNSNames}, key)
	if err != nil {
		return fmt.Errorf("create the certificate request: %w", err)
	}
	req := &pb.RenewRequest{Csr: csr, Chain: r.Identity.Chain(), Root: root}
	if req.Signature, err = r.Identity.Sign(renewText(csr)); err != nil {
		return fmt.Errorf("sign the certificate request: %w", err)
	}
	cc, err := r.Connect()
	if err != nil {
		return err
	}
	resp, err := pb.NewEnrollmentServiceClient(cc).Renew(ctx, req, grpc.WaitForReady(true))
	if err != nil {
		return errors.New(status.Convert(err).Message())
	}
	pair := tlsutil.KeyPair{Cert: resp.Certificate}
	if pair.Key, err = tlsutil.EncodeKey(key); err != nil {
		return err
	}
	if err := r.Identity.IfTrust(before.Number, func() error { return r.Identity.Replace(pair) }); err != nil {
		return err
	}
	leaf := r.Identity.Leaf()
	r.Logger.Info("certificate renewed", "serial", leaf.SerialNumber.Text(16), "not_after",
		leaf.NotAfter.UTC().Format(time.RFC3339), "replaces", old.SerialNumber.Text(16))
	return nil
}
