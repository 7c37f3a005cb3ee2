// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/serverd"
	"github.com/wanfed/wanfed/tlsutil"
)

// The flags that choose a server, and the flags of the certificate. The flags of
// a server belong together: a server that a flag or the environment chooses is
// not combined with the address of another one.
var (
	serverFlags   = []string{"http-addr", "server", "tls-server-name"}
	identityFlags = []string{"ca-file", "cert-file", "key-file", "domain"}
)

// useTarget sets the flags that choose a server and a certificate, if neither
// the command line nor the environment has them: from the directory in --dir,
// or otherwise from the context.
func useTarget(cmd *cobra.Command) error {
	values, source, err := targetValues(cmd)
	if err != nil {
		return err
	}
	flags := cmd.Flags()
	if env := os.Getenv(settings.EnvName("server")); env != "" && flags.Lookup("server") != nil && !flags.Changed("server") {
		if err := setFrom(cmd, "server", env, settings.EnvName("server")); err != nil {
			return err
		}
	}
	given := func(name string) bool {
		return flags.Changed(name) || os.Getenv(settings.EnvName(name)) != ""
	}
	for _, name := range serverFlags {
		if flags.Lookup(name) != nil && given(name) {
			for _, name := range serverFlags {
				delete(values, name)
			}
		}
	}
	for name, value := range values {
		if value == "" || flags.Lookup(name) == nil || given(name) {
			continue
		}
		if err := setFrom(cmd, name, value, source); err != nil {
			return err
		}
	}
	return nil
}

// setFrom sets a flag, and notes what has set it.
func setFrom(cmd *cobra.Command, flag, value, source string) error {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[sourceKey+flag] = source
	return cmd.Flags().Set(flag, value)
}

// sourceKey begins the keys of the annotations that useTarget writes.
const sourceKey = "source of "

// sourceOf names what set a flag that addClientFlags or operator.addFlags adds,
// for errors.
func sourceOf(cmd *cobra.Command, flag string) string {
	switch source := cmd.Annotations[sourceKey+flag]; {
	case source != "":
		return source
	case cmd.Flags().Changed(flag):
		return "--" + flag
	case os.Getenv(settings.EnvName(flag)) != "":
		return settings.EnvName(flag)
	}
	return "the default"
}

// targetValues returns the values of flags that the directory or the context
// has. source names it.
func targetValues(cmd *cobra.Command) (values map[string]string, source string, err error) {
	if dir := settings.FlagOrEnv(cmd.Flags(), "dir"); dir != "" {
		values, err = dirValues(dir)
		return values, "--dir " + dir, err
	}
	name, ctx, err := chosenContext(settings.FlagOrEnv(cmd.Flags(), "context"))
	if err != nil || name == "" {
		return nil, "", err
	}
	values, source = ctx.flags(), "context "+name
	if ctx.Dir == "" {
		return values, source, nil
	}
	fromDir, err := dirValues(ctx.Dir)
	if err != nil {
		return nil, "", usagef("context %s: %w", name, err)
	}
	for flag, value := range fromDir {
		if values[flag] == "" {
			values[flag] = value
		}
	}
	return values, source, nil
}

// dirValues returns the values of flags for a directory of wanfed init or
// wanfed join: the address of its server, and the certificate of its operator.
// A machine without that certificate, such as a further server, can only read.
func dirValues(dir string) (map[string]string, error) {
	l, err := newLayout(dir)
	if err != nil {
		return nil, err
	}
	values := map[string]string{}
	load, isServer := loadFile(l.serverHCL(), serverd.DefaultSettings)
	if isServer {
		s, err := load()
		if err != nil {
			return nil, err
		}
		values["domain"], values["http-addr"] = s.Domain, s.HTTPAddr
	}
	f := l.cert(tlsutil.RoleOperator)
	switch _, err := os.Stat(f.Key); {
	case err == nil:
		values["ca-file"], values["cert-file"], values["key-file"] = f.CA, f.Cert, f.Key
		if isServer {
			addr := values["http-addr"]
			values["http-addr"] = "https://" + addr[strings.LastIndexByte(addr, '/')+1:]
		}
	case !isServer:
		return nil, usagef("directory %s has neither a server nor the certificate of an operator; "+
			"name the directory of wanfed init or wanfed join", dir)
	}
	return values, nil
}
