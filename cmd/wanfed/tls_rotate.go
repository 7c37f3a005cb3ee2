// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/enroll"
	"github.com/wanfed/wanfed/internal/dirlock"
	"github.com/wanfed/wanfed/internal/output"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/serverd"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/trust"
)

// rotation has the flags of the command tls ca rotate.
type rotation struct {
	abort, force bool
	timeout      time.Duration
	confirm      confirmation

	passphraseFile string

	layout    layout
	settings  serverd.Settings
	authority enroll.Authority
	printed   string // the last lines of what the phase waits for
}

func newTLSCARotate() *cobra.Command {
	var r rotation
	c := &cobra.Command{
		Use:   "rotate",
		Short: "Replace the CA of all datacenters, without interruption",
		Long: `Replace the CA of all datacenters that "wanfed init" has created. Run the command on
the machine with its key. Each phase waits until every server and gateway of every
datacenter has completed it, and prints those that have not:

  add      all processes trust the new CA too
  reissue  the new CA issues: a new CA for each datacenter, and then all
           certificates of servers, gateways and the operator of this machine
  remove   no process trusts the old CA any more

No connection is closed. If the command is interrupted, run it again: it continues
the phase. --abort goes back to the old CA, unless it is being removed.

Operators of other machines run "wanfed tls renew" in the second phase. The command
waits for the certificates that servers know to be in use. --force continues without
those that the phase waits for, after a minute without a further one and a
confirmation. In the last phase, they lose their connections and need new
certificates by hand.

A CA of "wanfed tls ca create", or of another PKI, is replaced by hand: see
docs/certificates.md.`,
		Example: `  wanfed tls ca rotate --yes
  wanfed tls ca rotate --dir /srv/wanfed --timeout 10m
  wanfed tls ca rotate --abort
  wanfed tls ca status                        # the phase, and what it waits for`,
		Args: noArgs,
	}
	addClientFlags(c)
	c.PreRunE = func(cmd *cobra.Command, _ []string) error { return useDefaultDir(cmd) }
	c.Flags().BoolVar(&r.abort, "abort", false, "go back to the old CA")
	c.Flags().BoolVar(&r.force, "force", false, "continue without the processes that the phase waits for, when a minute brings no further one")
	c.Flags().DurationVar(&r.timeout, "timeout", 0,
		"`duration` after which the command fails, and can be run again (default: none)")
	c.Flags().StringVar(&r.passphraseFile, "ca-passphrase-file", "",
		"`file` (mode 0600) with the passphrase of the CA keys (default: that in the settings of the server)")
	r.confirm.addFlag(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error { return r.run(cmd) }
	return c
}

// useDefaultDir is useTarget for a command whose default is the directory of the
// units.
func useDefaultDir(cmd *cobra.Command) error {
	if settings.FlagOrEnv(cmd.Flags(), "dir") == "" {
		l, err := newLayout("")
		if err != nil {
			return err
		}
		defer func() { _ = cmd.Flags().Set("dir", "") }() // which stands for both directories of the units
		if err := cmd.Flags().Set("dir", l.conf); err != nil {
			return err
		}
	}
	return useTarget(cmd)
}

func (r *rotation) run(cmd *cobra.Command) (err error) {
	if err := checkDuration("timeout", r.timeout, 0, 0); err != nil {
		return err
	}
	if r.layout, err = newLayout(settings.FlagOrEnv(cmd.Flags(), "dir")); err != nil {
		return err
	}
	r.settings = serverd.DefaultSettings()
	if err := settings.Read(r.layout.serverHCL(), &r.settings); err != nil {
		return fmt.Errorf("%w; run the command on the machine of wanfed init, or set --dir", err)
	}
	r.authority = enroll.Authority{
		Dir: r.layout.caDir(), DC: r.settings.DC, Domain: r.settings.Domain,
		Keys: enroll.NewCAKeys(enroll.Passphrase{File: cmp.Or(r.passphraseFile, r.settings.IssuingPassphrase)}),
	}
	if _, _, err := r.authority.Signer(enroll.RoleDatacenter); err != nil {
		return fmt.Errorf("%w; a CA that wanfed init has not created is replaced by hand: see docs/certificates.md", err)
	}
	if r.force || !r.abort {
		if err := r.confirm.check(cmd); err != nil {
			return err
		}
	}
	ctx := cmd.Context()
	if r.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.timeout)
		defer cancel()
	}
	lock, err := dirlock.Lock(r.layout.data, "ca-rotate.lock")
	if err != nil {
		return fmt.Errorf("lock the CA: %w; end the other wanfed tls ca rotate on this machine first", err)
	}
	defer lock.Close()
	stored, t, err := r.read(ctx, cmd)
	if err != nil {
		return err
	}
	if stored, t, err = r.begin(ctx, cmd, stored, t); err != nil {
		return err
	}
	return r.complete(ctx, cmd, stored, t)
}

// begin starts or aborts a rotation, or returns the one in progress.
func (r *rotation) begin(
	ctx context.Context, cmd *cobra.Command, stored *pb.Resource, t tlsutil.Trust,
) (*pb.Resource, tlsutil.Trust, error) {
	running := stored != nil && t.Phase != tlsutil.PhaseDone
	var next tlsutil.Trust
	var err error
	switch {
	case r.abort && !running:
		return nil, t, errors.New("no CA is being replaced")
	case running && t.Datacenter != r.settings.DC:
		return nil, t, fmt.Errorf("a CA is being replaced in %s: run the command there", output.Printable(t.Datacenter))
	case r.abort:
		next, err = enroll.AbortTrust(t)
	case running:
		fmt.Fprintf(cmd.OutOrStdout(), "continuing: %s\n", phaseText(t))
		return stored, t, nil
	default:
		if err := r.confirm.require(cmd, "The CA of all datacenters will be replaced, in three phases."); err != nil {
			return nil, t, err
		}
		if stored != nil { // the last command may have been interrupted
			if err := r.authority.EndRotation(t.Keep); err != nil {
				return nil, t, err
			}
		}
		next, err = r.authority.StartTrust(t.Number + 1)
	}
	if err != nil || next.Number == t.Number {
		return stored, t, err
	}
	// The resource may be that of an older snapshot.
	if ca, err := os.ReadFile(r.layout.caFile()); err == nil {
		next.Number = max(next.Number, tlsutil.TrustNumber(ca)+1)
	}
	stored, err = r.write(ctx, cmd, stored, next)
	return stored, next, err
}

// forceAfter is the time for which --force waits for further processes. Reports of
// a gateway count for a minute.
const forceAfter = time.Minute

// complete waits for each phase and writes the next one, until the rotation is
// complete.
func (r *rotation) complete(ctx context.Context, cmd *cobra.Command, stored *pb.Resource, t tlsutil.Trust) error {
	w, last, since := cmd.OutOrStdout(), "", time.Now()
	for timeout := minReportTimeout; ; timeout = min(timeout+time.Second, maxReportTimeout) {
		if err := r.useIssuer(t); err != nil {
			return err
		}
		if t.Phase == tlsutil.PhaseReissue {
			r.renewOperator(ctx, cmd, t)
		}
		done, waiting := reportedTrust(cmd, t, timeout)
		if text := waitingText(t, done, waiting); text != last {
			last, since = text, time.Now()
		}
		if len(waiting) > 0 && r.force && time.Since(since) > forceAfter {
			if err := r.confirm.require(cmd, forceText(t, waiting)); err != nil {
				return err
			}
			waiting = nil
		}
		if len(waiting) > 0 {
			r.print(cmd, t, done, waiting)
			select {
			case <-ctx.Done():
				return fmt.Errorf("%s: %d of the processes have not completed it, first %s; continue with the same command, "+
					"or go back with --abort: %w", phaseText(t), len(waiting),
					output.Printable(waiting[0].String()), context.Cause(ctx))
			case <-time.After(time.Second):
			}
			continue
		}
		fmt.Fprintf(w, "%s: complete, %d servers and gateways\n", phaseText(t), done)
		next := enroll.NextTrust(t)
		var err error
		if stored, err = r.write(ctx, cmd, stored, next); err != nil {
			return err
		}
		if t = next; t.Phase == tlsutil.PhaseDone {
			break
		}
	}
	if err := r.authority.EndRotation(t.Keep); err != nil {
		return err
	}
	if t.Aborted {
		fmt.Fprintln(w, "aborted: the old CA stays, and the new CA and its key were deleted")
	} else {
		fmt.Fprintln(w, "complete: the old CA and its key were deleted; keep a copy of the new one:", r.layout.caDir())
	}
	return nil
}

// useIssuer makes the CA that t names the one that issues.
func (r *rotation) useIssuer(t tlsutil.Trust) error {
	return errors.Join(r.authority.UseRoot(t.Issuer), r.layout.chown(r.layout.caDir()))
}

// renewOperator renews the certificate of the operator of this machine, if it is
// not below the CA that issues. It is tried again while the phase waits.
func (r *rotation) renewOperator(ctx context.Context, cmd *cobra.Command, t tlsutil.Trust) {
	id, err := loadIdentity(cmd, cmd.CommandPath())
	if err != nil || id.RootOf(id.Certificates()[0]) == t.Issuer {
		return
	}
	renew := renewal{domain: r.settings.Domain, servers: []string{serverAddr(r.settings)}}
	if renew.renew(ctx, r.layout.cert(tlsutil.RoleOperator), t.Issuer) == nil {
		_ = r.layout.chown(r.layout.conf) // the next command does it again
	}
}

// print prints what the phase waits for, if that has changed.
func (r *rotation) print(cmd *cobra.Command, t tlsutil.Trust, done int, waiting []enroll.Waiting) {
	if text := waitingText(t, done, waiting); text != r.printed {
		fmt.Fprint(cmd.OutOrStdout(), text)
		r.printed = text
	}
}

// waitingText describes the progress of the phase of t.
func waitingText(t tlsutil.Trust, done int, waiting []enroll.Waiting) string {
	text := fmt.Sprintf("%s: %d servers and gateways have completed it, waiting for %d\n", phaseText(t), done, len(waiting))
	for _, w := range waiting {
		text += "  " + output.Printable(w.String()) + "\n"
	}
	return text
}

// forceText describes what --force loses.
func forceText(t tlsutil.Trust, waiting []enroll.Waiting) string {
	text := phaseText(t) + " is not complete. Without it:\n"
	for _, w := range waiting {
		text += "  " + output.Printable(w.String()) + "\n"
	}
	switch t.Phase {
	case tlsutil.PhaseAdd:
		return text + "These refuse connections with certificates of the new CA until they have received it."
	case tlsutil.PhaseReissue:
		return text + "These lose their connections: all others will refuse certificates of the old CA. " +
			"They need new certificates and a new CA file by hand."
	}
	return text + "These trust the old CA until they receive the change."
}

// phaseText names the phase of t.
func phaseText(t tlsutil.Trust) string {
	phases := []tlsutil.Phase{tlsutil.PhaseAdd, tlsutil.PhaseReissue, tlsutil.PhaseRemove}
	text := fmt.Sprintf("phase %d of %d, %s", slices.Index(phases, t.Phase)+1, len(phases), t.Phase)
	if t.Phase == tlsutil.PhaseDone {
		text = "complete"
	}
	if t.Aborted {
		text += " (aborted)"
	}
	return text
}

// read returns the stored resource and its content. The resource is nil if no CA
// was ever replaced.
func (r *rotation) read(ctx context.Context, cmd *cobra.Command) (*pb.Resource, tlsutil.Trust, error) {
	var stored *pb.Resource
	err := r.call(ctx, cmd, func(ctx context.Context, c pb.ResourceServiceClient) error {
		resp, err := c.Read(ctx, &pb.ReadRequest{Id: resource.ID(trust.Type, trust.Name)})
		stored = resp.GetResource()
		return err
	})
	if errors.Is(err, resource.ErrNotFound) {
		return nil, tlsutil.Trust{}, nil
	}
	if err != nil {
		return nil, tlsutil.Trust{}, fmt.Errorf("read the trusted CAs: %w", err)
	}
	t, err := trust.Content(stored)
	return stored, t, err
}

// write signs and stores t in place of the stored resource.
func (r *rotation) write(
	ctx context.Context, cmd *cobra.Command, stored *pb.Resource, t tlsutil.Trust,
) (*pb.Resource, error) {
	signed, err := r.authority.SignTrust(t)
	if err != nil {
		return nil, err
	}
	next, err := resource.New(trust.Type, trust.Name, trust.Message(signed))
	if err != nil {
		return nil, err
	}
	next.Id.Uid, next.Generation, next.Version = stored.GetId().GetUid(), "", stored.GetVersion()
	err = r.call(ctx, cmd, func(ctx context.Context, c pb.ResourceServiceClient) error {
		resp, err := c.Write(ctx, &pb.WriteRequest{Resource: next})
		next = resp.GetResource()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", phaseText(t), err)
	}
	return next, nil
}

// call calls the server of this machine as the operator of this machine.
func (r *rotation) call(
	ctx context.Context, cmd *cobra.Command, f func(context.Context, pb.ResourceServiceClient) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, operatorTimeout)
	defer cancel()
	id, err := loadIdentity(cmd, cmd.CommandPath())
	if err != nil {
		return err
	}
	cc, closeAll, err := api.DialServer(ctx, id, serverAddr(r.settings), r.settings.Node, r.settings.DC)
	if err != nil {
		return err
	}
	defer closeAll()
	return resource.FromStatus(f(ctx, pb.NewResourceServiceClient(cc)))
}

// Bounds of the timeout of the call at a datacenter whose certificates are needed.
// It grows, so a datacenter that is cut off is known soon, and a slow one responds.
const (
	minReportTimeout = 3 * time.Second
	maxReportTimeout = 15 * time.Second
)

// reportedTrust returns the number of servers and gateways of all datacenters that
// have completed the phase of t, and what it waits for. timeout bounds the call at
// each datacenter.
func reportedTrust(cmd *cobra.Command, t tlsutil.Trust, timeout time.Duration) (done int, waiting []enroll.Waiting) {
	dcs, err := datacentersOf(cmd)
	var id *tlsutil.Identity
	if err == nil {
		id, err = loadIdentity(cmd, cmd.CommandPath())
	}
	if err != nil {
		return 0, []enroll.Waiting{{Datacenter: "this machine", Reason: err.Error()}}
	}
	reports := make([]enroll.DatacenterReport, len(dcs))
	var calls sync.WaitGroup
	for i, dc := range dcs {
		calls.Go(func() {
			resp, err := listCertificates(cmd, id, operator{dc: dc}, timeout)
			reports[i] = enroll.DatacenterReport{Datacenter: dc, Response: resp, Err: err}
		})
	}
	calls.Wait()
	return enroll.Acknowledged(t, reports)
}

// rotationStatus is the JSON of the command tls ca status.
type rotationStatus struct {
	Phase     string           `json:"phase"` // "none": no CA was ever replaced
	Number    uint64           `json:"number"`
	Aborted   bool             `json:"aborted"`
	Issuer    string           `json:"issuer,omitempty"` // SHA-256
	Keep      string           `json:"keep,omitempty"`
	Drop      string           `json:"drop,omitempty"`
	Completed int              `json:"completed"`
	Waiting   []enroll.Waiting `json:"waiting"`
}

func newTLSCAStatus() *cobra.Command {
	var o operator
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the replacement of the CA of all datacenters",
		Long: `Show the phase of "wanfed tls ca rotate", the number of servers and gateways that
have completed it, and the processes that have not. It changes nothing.`,
		Example: `  wanfed tls ca status --dir /etc/wanfed
  wanfed tls ca status --dir /etc/wanfed --output json`,
		Args: noArgs,
	}
	o.addFlags(c)
	c.PreRunE = func(cmd *cobra.Command, _ []string) error { return useDefaultDir(cmd) }
	printer := output.AddFlag(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error { return tlsCAStatus(cmd, &o, printer()) }
	return c
}

func tlsCAStatus(cmd *cobra.Command, o *operator, out output.Printer) error {
	resp, err := callServer(cmd, o, "tls ca status", "", func(ctx context.Context, cc *grpc.ClientConn) (*pb.ReadResponse, error) {
		resp, err := pb.NewResourceServiceClient(cc).Read(ctx, &pb.ReadRequest{Id: resource.ID(trust.Type, trust.Name)})
		if errors.Is(resource.FromStatus(err), resource.ErrNotFound) {
			return &pb.ReadResponse{}, nil
		}
		return resp, err
	})
	if err != nil {
		return err
	}
	st := rotationStatus{Phase: "none", Waiting: []enroll.Waiting{}}
	text := "no CA was replaced\n"
	if resp.Resource != nil {
		t, err := trust.Content(resp.Resource)
		if err != nil {
			return err
		}
		st = rotationStatus{
			Phase: string(t.Phase), Number: t.Number, Aborted: t.Aborted, Issuer: t.Issuer, Keep: t.Keep, Drop: t.Drop,
			Waiting: []enroll.Waiting{},
		}
		var waiting []enroll.Waiting
		if st.Completed, waiting = reportedTrust(cmd, t, maxReportTimeout); waiting != nil {
			st.Waiting = waiting
		}
		text = waitingText(t, st.Completed, waiting)
	}
	return out.Print(st, func() error {
		_, err := fmt.Fprint(out.W, text)
		return err
	})
}
