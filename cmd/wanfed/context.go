// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/atomicfile"
	"github.com/wanfed/wanfed/internal/output"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/tlsutil"
)

// savedContext is what a context has: the values of flags. It has paths, and
// never the content of a key. The JSON names are those of the settings.
type savedContext struct {
	HTTPAddr      string `json:"http_addr,omitempty"`
	Server        string `json:"server,omitempty"`
	TLSServerName string `json:"tls_server_name,omitempty"`
	CAFile        string `json:"ca_file,omitempty"`
	CertFile      string `json:"cert_file,omitempty"`
	KeyFile       string `json:"key_file,omitempty"`
	Domain        string `json:"domain,omitempty"`
	Dir           string `json:"dir,omitempty"`
}

// fields returns the fields of a context by the names of their flags.
func (c *savedContext) fields() map[string]*string {
	return map[string]*string{
		"http-addr": &c.HTTPAddr, "server": &c.Server, "tls-server-name": &c.TLSServerName, "ca-file": &c.CAFile,
		"cert-file": &c.CertFile, "key-file": &c.KeyFile, "domain": &c.Domain, "dir": &c.Dir,
	}
}

// flags returns the values of a context by the names of flags, without dir.
func (c *savedContext) flags() map[string]string {
	values := map[string]string{}
	for name, value := range c.fields() {
		if *value != "" && name != "dir" {
			values[name] = *value
		}
	}
	return values
}

// contextFile is the content of the file of contexts.
type contextFile struct {
	Current  string                   `json:"current"` // empty: none
	Contexts map[string]*savedContext `json:"contexts"`
}

// contextPath returns the path of the file of contexts of this user.
func contextPath() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("contexts need the configuration directory of the user: %w", err)
	}
	return filepath.Join(dir, "wanfed", "contexts.json"), nil
}

// readContexts returns the contexts of this user. Without a file there are none.
func readContexts() (contextFile, error) {
	f := contextFile{}
	path, err := contextPath()
	if err == nil {
		var text []byte
		text, err = settings.ReadFile(path, settings.MaxFile)
		if err == nil {
			dec := json.NewDecoder(bytes.NewReader(text))
			dec.DisallowUnknownFields()
			if err = dec.Decode(&f); err != nil {
				err = fmt.Errorf("file of contexts %s: %w; correct it, or remove it and create the contexts again", path, err)
			}
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if f.Contexts == nil {
		f.Contexts = map[string]*savedContext{}
	}
	for name, c := range f.Contexts {
		if c == nil {
			f.Contexts[name] = &savedContext{}
		}
	}
	return f, err
}

// save replaces the file of contexts, which only this user can read.
func (f contextFile) save() error {
	path, err := contextPath()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("save the contexts: %w", err)
	}
	text, err := json.MarshalIndent(f, "", "  ")
	if err == nil {
		err = atomicfile.WriteFile(path, append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("save the contexts: %w", err)
	}
	return nil
}

// get returns a context.
func (f contextFile) get(name string) (*savedContext, error) {
	if c := f.Contexts[name]; c != nil {
		return c, nil
	}
	names := slices.Sorted(maps.Keys(f.Contexts))
	return nil, usagef("context %q does not exist; see: wanfed context list%s", name, didYouMean(names, name))
}

// chosenContext returns the context with the name, or the current one if name is
// empty. The result name is empty if there is no context.
func chosenContext(name string) (string, *savedContext, error) {
	f, err := readContexts()
	if err != nil {
		if _, pathErr := contextPath(); pathErr != nil && name == "" {
			return "", nil, nil // such as a service without a home
		}
		return "", nil, usageError{err}
	}
	if name = cmp.Or(name, f.Current); name == "" {
		return "", nil, nil
	}
	c, err := f.get(name)
	return name, c, err
}

func newContext() *cobra.Command {
	c := newGroup("context", "Save and choose the servers that commands call",
		newContextList(), newContextShow(), newContextUse(), newContextSet(), newContextDelete())
	c.Long = `Save and choose the servers that commands call. A context has a name, the
addresses of a datacenter, the CA and your certificate. It has the paths of files,
not their content. The contexts are in the file wanfed/contexts.json of your
configuration directory, which only you can read.

Each value comes from the first of these that has it:

  1. the flag, such as --http-addr
  2. the environment variable, such as WANFED_HTTP_ADDR or WANFED_SERVER
  3. the directory of --dir (WANFED_DIR)
  4. the context of --context (WANFED_CONTEXT), or the current one
  5. the default: http://127.0.0.1:8500, and ` + defaultServer + ` for operators

A context is not used with --dir. Addresses belong together: with --http-addr, no
address comes from --dir or from a context. An error of a connection names what
chose the address.`
	c.Example = `  wanfed context set dc1 --dir /srv/wanfed
  wanfed context set dc2 --http-addr https://10.2.0.5:8500 --ca-file ca.pem \
    --cert-file operator.pem --key-file operator-key.pem
  wanfed context use dc2
  wanfed status --context dc1`
	return c
}

// contextEntry is the JSON of a context.
type contextEntry struct {
	Name    string `json:"name"`
	Current bool   `json:"current"`
	savedContext
}

func (e contextEntry) row(wide bool) []string {
	current, where := "-", cmp.Or(e.HTTPAddr, e.Server, "-")
	if e.Current {
		current = "yes"
	}
	files := cmp.Or(e.Dir, e.CertFile, "-")
	if !wide {
		return []string{e.Name, current, where, files}
	}
	return []string{e.Name, current, where, cmp.Or(e.Server, "-"), files, cmp.Or(e.CAFile, "-"), cmp.Or(e.KeyFile, "-")}
}

func newContextList() *cobra.Command {
	c := &cobra.Command{
		Use:   "list",
		Short: "List the contexts",
		Example: `  wanfed context list
  wanfed context list --output json | jq -r '.[].name'`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	printer := output.AddFlag(c)
	c.RunE = func(*cobra.Command, []string) error {
		f, err := readContexts()
		if err != nil {
			return err
		}
		list := []contextEntry{}
		for _, name := range slices.Sorted(maps.Keys(f.Contexts)) {
			list = append(list, contextEntry{name, name == f.Current, *f.Contexts[name]})
		}
		out := printer()
		return out.Print(list, func() error {
			rows := [][]string{{"Context", "Current", "Address", "Directory or Certificate"}}
			if out.IsWide() {
				rows = [][]string{{"Context", "Current", "Address", "Server", "Directory or Certificate", "CA", "Key"}}
			}
			for _, e := range list {
				rows = append(rows, e.row(out.IsWide()))
			}
			return out.Table(rows)
		})
	}
	return c
}

func newContextShow() *cobra.Command {
	c := &cobra.Command{
		Use:   "show [NAME]",
		Short: "Show a context, or the current one",
		Example: `  wanfed context show
  wanfed context show dc2 --output json`,
		Args:              optionalArg("NAME"),
		ValidArgsFunction: completeArgs(completeContexts),
	}
	printer := output.AddFlag(c)
	c.RunE = func(_ *cobra.Command, args []string) error {
		f, err := readContexts()
		if err != nil {
			return err
		}
		name := cmp.Or(append(args, f.Current)...)
		if name == "" {
			return errors.New("no context is current; choose one with: wanfed context use NAME")
		}
		ctx, err := f.get(name)
		if err != nil {
			return err
		}
		out := printer()
		return out.Print(contextEntry{name, name == f.Current, *ctx}, func() error {
			rows := [][]string{{"Context:", name}, {"Current:", strconv.FormatBool(name == f.Current)}}
			for _, flag := range slices.Concat([]string{"dir"}, serverFlags, identityFlags) {
				if value := *ctx.fields()[flag]; value != "" {
					rows = append(rows, []string{flag + ":", value})
				}
			}
			return output.WriteFields(out.W, rows)
		})
	}
	return c
}

func newContextUse() *cobra.Command {
	return changeContexts(&cobra.Command{
		Use:   "use NAME",
		Short: "Make a context the current one",
		Example: `  wanfed context use dc1
  WANFED_CONTEXT=dc2 wanfed status    # for one command`,
		Args:              exactArgs("NAME"),
		ValidArgsFunction: completeArgs(completeContexts),
	}, func(f *contextFile, name string) (string, error) {
		_, err := f.get(name)
		f.Current = name
		return "context " + name + " is current", err
	})
}

func newContextDelete() *cobra.Command {
	return changeContexts(&cobra.Command{
		Use:               "delete NAME",
		Short:             "Delete a context",
		Long:              `Delete a context. The files whose paths it has stay.`,
		Example:           `  wanfed context delete dc2`,
		Args:              exactArgs("NAME"),
		ValidArgsFunction: completeArgs(completeContexts),
	}, func(f *contextFile, name string) (string, error) {
		_, err := f.get(name)
		delete(f.Contexts, name)
		text := "deleted context " + name
		if f.Current == name {
			f.Current = ""
			text += "; no context is current"
		}
		return text, err
	})
}

func newContextSet() *cobra.Command {
	var given savedContext
	c := &cobra.Command{
		Use:   "set NAME",
		Short: "Create or change a context",
		Long: `Create a context, or change the values of one whose flags are given. An empty
value removes it. The first context becomes the current one.

--dir is the directory of wanfed init or wanfed join, which has the address of the
server, the CA and the certificate of an operator. Other values take precedence
over those of the directory.`,
		Example: `  wanfed context set dc1 --dir /srv/wanfed
  wanfed context set dc2 --http-addr https://10.2.0.5:8500 --server 10.2.0.5:8300 \
    --ca-file ca.pem --cert-file operator.pem --key-file operator-key.pem`,
		Args:              exactArgs("NAME"),
		ValidArgsFunction: completeArgs(completeContexts),
	}
	flags := c.Flags()
	flags.StringVar(&given.HTTPAddr, "http-addr", "", "`address` of the HTTP API of a server: host:port, URL or unix:///path")
	flags.StringVar(&given.Server, "server", "", "`host:port` of a server port, or of a gateway, for operators")
	flags.StringVar(&given.TLSServerName, "tls-server-name", "",
		"`name` in the certificate of the server, if not the host of --http-addr")
	flags.StringVar(&given.CAFile, "ca-file", "", "PEM `file` with the CA certificates")
	flags.StringVar(&given.CertFile, "cert-file", "", "PEM `file` with your certificate")
	flags.StringVar(&given.KeyFile, "key-file", "", "PEM `file` with the private key of your certificate")
	flags.StringVar(&given.Domain, "domain", "", "domain of the names in certificates and SNI (default \""+tlsutil.DefaultDomain+"\")")
	flags.StringVar(&given.Dir, "dir", "", "`directory` of wanfed init or wanfed join")
	_ = c.RegisterFlagCompletionFunc("dir", completeDirs)
	return changeContexts(c, func(f *contextFile, name string) (string, error) {
		if err := tlsutil.CheckLabel(name); err != nil {
			return "", usagef("context: %w", err)
		}
		if err := given.check(); err != nil {
			return "", usageError{err}
		}
		ctx := f.Contexts[name]
		if ctx == nil {
			ctx = &savedContext{}
			f.Contexts[name] = ctx
		}
		values := given.fields()
		for flag, to := range ctx.fields() {
			if flags.Changed(flag) {
				*to = *values[flag]
			}
		}
		if *ctx == (savedContext{}) {
			return "", usagef("context %s would be empty; set --dir or --http-addr", name)
		}
		text := "saved context " + name
		if len(f.Contexts) == 1 && f.Current == "" {
			f.Current = name
			text += ", the current one"
		}
		return text, nil
	})
}

// check checks the values, and makes the paths absolute.
func (c *savedContext) check() error {
	var errs []error
	if c.HTTPAddr != "" {
		cl, err := api.NewClient(api.ClientConfig{Addr: c.HTTPAddr})
		if err == nil {
			err = cl.Close()
		}
		errs = append(errs, err)
	}
	if c.Server != "" {
		errs = append(errs, checkServerAddr(c.Server))
	}
	for _, flag := range []string{"ca-file", "cert-file", "key-file", "dir"} {
		path := c.fields()[flag]
		if *path == "" {
			continue
		}
		if _, err := os.Stat(*path); err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w; check the path", flag, err))
		}
		abs, err := filepath.Abs(*path)
		errs = append(errs, err)
		*path = abs
	}
	return settings.Join(errs...)
}

// changeContexts makes c a command that changes the contexts. change has the
// name of the argument. It returns a text for the user.
func changeContexts(c *cobra.Command, change func(f *contextFile, name string) (string, error)) *cobra.Command {
	printer := output.AddFlag(c)
	c.RunE = func(_ *cobra.Command, args []string) error {
		f, err := readContexts()
		if err != nil {
			return err
		}
		text, err := change(&f, args[0])
		if err == nil {
			err = f.save()
		}
		if err != nil {
			return err
		}
		return printWritten(printer(), text, nil)
	}
	return c
}
