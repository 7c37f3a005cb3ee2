// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gatewayd"
	"github.com/wanfed/wanfed/internal/output"
	"github.com/wanfed/wanfed/internal/settings"
)

func newMonitor() *cobra.Command {
	var o operator
	var admin string
	level, format := "info", "text"
	c := &cobra.Command{
		Use:   "monitor",
		Short: "Show the live log of a server or gateway, at another level",
		Long: `Print the log of the server that responds from now on, until SIGINT or SIGTERM.
--level is the lowest level of the printed lines. The log of the server itself does
not change. --node names another server of the datacenter.

With --admin-addr, print the log of the gateway with this admin address, on this
machine.

A server or gateway has at most 8 viewers at a time. If the terminal is too slow,
lines are dropped, and their number is printed. The command fails when the server
or gateway ends. It needs the certificate of an operator of the datacenter.`,
		Example: `  wanfed monitor --level debug
  wanfed monitor --node srv2 --datacenter dc1
  wanfed monitor --level debug --output json | jq -r 'select(.dc == "dc2").msg'
  wanfed monitor --admin-addr 127.0.0.1:9102`,
		Args: noArgs,
	}
	o.addFlags(c)
	o.addNodeFlag(c)
	flags := c.Flags()
	flags.StringVar(&level, "level", level, "lowest `level` of the lines: debug, info, warn or error")
	flags.StringVarP(&format, "output", "o", format, "`format` of the lines: text or json")
	flags.StringVar(&admin, "admin-addr", "", "host:port of the admin address of a gateway of this machine")
	_ = c.RegisterFlagCompletionFunc("level", completeWords(settingWords["log-level"]...))
	_ = c.RegisterFlagCompletionFunc("output", completeWords("text", "json"))
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if _, err := settings.ParseLevel(level); err != nil {
			return usagef("--level %q: must be debug, info, warn or error", level)
		}
		if format != "text" && format != "json" {
			return usagef("--output %q: must be text or json", format)
		}
		req := &pb.WatchLogRequest{Level: level, Format: format}
		if admin != "" {
			return monitorGateway(cmd, admin, req)
		}
		return monitorServer(cmd, &o, req)
	}
	return c
}

func monitorServer(cmd *cobra.Command, o *operator, req *pb.WatchLogRequest) error {
	cc, closeAll, err := o.connect(cmd)
	if err != nil {
		return err
	}
	defer closeAll()
	ctx := cmd.Context()
	err = watchLog(ctx, cc, req, func(l *pb.LogLine) error { return printLine(cmd, l) })
	if ctx.Err() != nil {
		return nil
	}
	return o.explain(ctx, "monitor", err)
}

// watchLog calls f with the lines of the log of a server. It returns an error
// when f fails, when the stream ends, and when ctx ends.
func watchLog(ctx context.Context, cc *grpc.ClientConn, req *pb.WatchLogRequest, f func(*pb.LogLine) error) error {
	stream, err := pb.NewOperatorServiceClient(cc).WatchLog(ctx, req)
	for err == nil {
		var line *pb.LogLine
		if line, err = stream.Recv(); err == nil && (line.Text != "" || line.Dropped > 0) {
			err = f(line)
		}
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("the server ended the log")
	}
	return err
}

func printLine(cmd *cobra.Command, l *pb.LogLine) error {
	if l.Dropped > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "%d lines were dropped, because they were not read in time\n", l.Dropped)
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), output.Printable(l.Text))
	return err
}

func monitorGateway(cmd *cobra.Command, addr string, req *pb.WatchLogRequest) error {
	if err := (gatewayd.Settings{AdminAddr: addr}).CheckAdminAddr(); err != nil {
		return usageError{err}
	}
	id, err := loadIdentity(cmd, cmd.CommandPath()+" --admin-addr")
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	err = gatewayd.WatchLog(ctx, addr, id, req.Level, req.Format, func(line string, dropped uint64) error {
		return printLine(cmd, &pb.LogLine{Text: line, Dropped: dropped})
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}
